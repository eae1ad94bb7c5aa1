"""The records of the high-water mark that every implementation writes and reads alike."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from device_sdk.delivery.marks import Mark, decode_mark, encode_mark

VECTORS = json.loads((Path(__file__).parents[2] / "contract/vectors.json").read_text())["marks"]


@pytest.mark.parametrize("case", VECTORS, ids=lambda case: case["name"])
def test_marks_are_written_the_same_everywhere_and_damaged_ones_are_recognised(case):
    record = bytes.fromhex(case["record"])
    if case["outcome"] == "damaged":
        with pytest.raises(ValueError, match=r"\S"):
            decode_mark(record)
        return
    told = case["mark"]
    mark = Mark(told["name"], int(told["version"]), told["digest"], tuple(told["addresses"]))
    assert decode_mark(record) == mark
    assert encode_mark(mark) == record
