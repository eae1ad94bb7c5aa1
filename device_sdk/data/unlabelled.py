"""The values that stand for a label where there is none."""

from __future__ import annotations

IGNORED = 255  # the class of a pixel without one
NO_CLASS = -1  # of a token that does not count: padding, marks around a text, all but the first token of a word
