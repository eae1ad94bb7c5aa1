"""What is inferred of nodes, and which models are refused for a size: the same in every implementation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from device_sdk.errors import CompositionError
from device_sdk.fragments.composition import Stretch, compose
from device_sdk.supernet.blocks import TensorSpec
from tests.contract.agreement import differences_from_frozen

CONTRACT = Path(__file__).parents[2] / "contract"
VECTORS = json.loads((CONTRACT / "shapes.json").read_text())


def test_the_vectors_are_what_is_inferred_here(tmp_path):
    found = differences_from_frozen("shapes", tmp_path)
    assert not found, "python tests/contract/write_shapes.py"


@pytest.mark.parametrize("case", VECTORS["models"], ids=lambda case: case["name"])
def test_models_are_refused_for_their_sizes_alike(case):
    ends = [(TensorSpec(f"cut_{index}", (4, 8, 8)),) for index in (0, 1)]
    stretch = Stretch((bytes.fromhex(case["fragment"]),), *ends, ir_version=10, opset=20)
    if case["refusal"] is None:
        compose(stretch)
        return
    with pytest.raises(CompositionError) as caught:
        compose(stretch)
    assert case["refusal"] in str(caught.value)
