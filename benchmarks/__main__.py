"""``python -m benchmarks NAME``, with ``list`` and ``report``."""

from __future__ import annotations

import sys

from benchmarks.runner.command import bench
from pathweave.cli import main

sys.exit(main(group=bench, prog_name="python -m benchmarks"))
