"""The vectors of tests/contract/low_bit.json, which Kotlin reads too."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import numpy as np
import pytest

from device_sdk.fragments.composition import Stretch
from device_sdk.runtimes import OnnxRuntime
from device_sdk.supernet.blocks import TensorSpec
from tests.contract.agreement import differences_from_frozen

CONTRACT = Path(__file__).parents[2] / "contract"
CASES = json.loads((CONTRACT / "low_bit.json").read_text())


@pytest.mark.slow
def test_the_vectors_are_those_that_the_script_writes(tmp_path):
    found = differences_from_frozen("low_bit", tmp_path)
    assert not found, "python tests/contract/write_low_bit.py"


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['kind']} in {case['bits']} bits")
def test_what_is_stored_in_few_bits_answers_exactly(case):
    start, end = (TensorSpec(one["name"], tuple(one["shape"])) for one in case["ends"])
    fragments = (bytes.fromhex(case["fragment"]),)
    stretch = Stretch(fragments, (start,), (end,), ir_version=case["ir_version"], opset=case["opset"])
    given = np.array(case["input"], dtype=np.float32).reshape(2, *start.shape)
    with contextlib.closing(OnnxRuntime(threads=1).load(stretch)) as loaded:
        [found] = loaded.run([given])
    assert found.ravel().tolist() == case["output"]
