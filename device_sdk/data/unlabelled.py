"""The value that stands for a label where there is none."""

from __future__ import annotations

IGNORED = 255  # the class of a pixel without one
