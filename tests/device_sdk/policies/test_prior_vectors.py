from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from device_sdk.supernet.plan import Prior, decode_plan
from tests.contract.agreement import differences_from_frozen

CONTRACT = Path(__file__).parents[2] / "contract"
VECTORS = json.loads((CONTRACT / "priors.json").read_text())


def test_the_vectors_are_those_that_the_script_writes(tmp_path):
    assert not differences_from_frozen("priors", tmp_path, relative=1e-6), "python tests/contract/write_priors.py"


def test_priors_are_found_with_and_without_labels_and_not_everywhere() -> None:
    kinds = {(case["labels"] is not None, case["prior"] is not None) for case in VECTORS["found"]}
    assert kinds == {(False, False), (False, True), (True, False), (True, True)}


def test_the_plans_have_a_prior() -> None:
    assert all(decode_plan(text.encode()).class_prior is not None for text in VECTORS["plans"])


@pytest.mark.parametrize("value", VECTORS["refused"], ids=str)
def test_what_is_no_prior_is_refused(value) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(value, Prior)
