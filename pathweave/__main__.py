"""``python -m pathweave``: the command line of a clone that is not installed."""

from __future__ import annotations

import sys

from pathweave.cli import main

if __name__ == "__main__":
    sys.exit(main())
