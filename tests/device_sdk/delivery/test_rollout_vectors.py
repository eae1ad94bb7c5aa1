"""The vectors of tests/contract/rollouts.json, which Kotlin reads too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from device_sdk import errors
from device_sdk.delivery.assignment import Assignment, asking_headers, decode_assignment
from device_sdk.delivery.marks import Mark, decode_mark, encode_mark
from device_sdk.delivery.refusals import reason_of
from device_sdk.errors import PathweaveError, ProtocolError, UsageError
from device_sdk.signing.rollback import require_permitted, require_valid, verify_rollback
from tests.contract.agreement import differences_from_frozen

VECTORS = json.loads((Path(__file__).parents[2] / "contract" / "rollouts.json").read_text())


def ids(case):
    return case["case"]


def test_the_vectors_are_those_that_the_script_writes(tmp_path):
    assert not differences_from_frozen("rollouts", tmp_path), "python tests/contract/write_rollouts.py"


@pytest.mark.parametrize("case", VECTORS["questions"])
def test_a_device_asks_with_its_name_and_plain_tags(case):
    if "error" not in case:
        assert asking_headers(case["device"], case["tags"]) == case["headers"]
        return
    with pytest.raises(UsageError):
        asking_headers(case["device"], case["tags"])


@pytest.mark.parametrize("case", VECTORS["assignments"], ids=ids)
def test_answers(case):
    answer = case["answer"].encode()
    if "error" not in case:
        told = Assignment(case["version"], case["rollout"], case["stage"], case["rollback"])
        assert decode_assignment(answer) == told
        return
    with pytest.raises(ProtocolError):
        decode_assignment(answer)


@pytest.mark.parametrize("case", VECTORS["rollbacks"], ids=ids)
def test_rollbacks(case):
    def take():
        found = verify_rollback(case["rollback"].encode(), case["signers"])
        told = {"name": case["name"], "version": case["version"], "digest": case["manifest_sha256"]}
        require_permitted(found, **told, had=case["had"])
        require_valid(found, clock_s=case["clock_s"], proven_s=case["proven_s"])

    if case["error"] is None:
        take()
        return
    with pytest.raises(PathweaveError) as caught:
        take()
    assert type(caught.value) is getattr(errors, case["error"]), caught.value


@pytest.mark.parametrize("case", VECTORS["marks"], ids=lambda case: case.get("case", "whole"))
def test_the_mark_of_a_device_that_was_rolled_back(case):
    record = bytes.fromhex(case["record"])
    if "mark" not in case:
        with pytest.raises(ValueError, match=r"\S"):
            decode_mark(record)
        return
    told = case["mark"]
    mark = Mark(told["name"], int(told["version"]), told["digest"], tuple(told["addresses"]), told["rolled_back_to"])
    assert decode_mark(record) == mark
    assert encode_mark(mark) == record
    assert all(mark.permits(*one) for one in case["permits"])
    assert not any(mark.permits(*one) for one in case["refuses"])


@pytest.mark.parametrize(("name", "reason"), VECTORS["reasons"].items())
def test_reasons_of_refusals(name, reason):
    kind = getattr(errors, name)
    arguments = {"status": 403} if kind is errors.RefusedError else {}
    assert reason_of(kind("no", **arguments)) == reason
