"""The vectors of tests/contract/trust.json, which Kotlin reads too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from device_sdk import errors
from device_sdk.delivery.marks import decode_time_mark, encode_mark
from device_sdk.errors import PathweaveError, SignatureError
from device_sdk.signing.release import (
    TimeMark,
    list_digest,
    next_list,
    pinned_list,
    raised,
    require_same_manifest,
    require_same_name,
    require_unexpired,
)
from device_sdk.signing.trust import SignedParts, TrustedKeys
from tests.contract.agreement import differences_from_frozen

CONTRACT = Path(__file__).parents[2] / "contract"
VECTORS = json.loads((CONTRACT / "trust.json").read_text())
LISTS = {name: text.encode() for name, text in VECTORS["lists"].items()}


def chain(names):
    first, *others = (LISTS[name] for name in names)
    trusted = TrustedKeys((pinned_list(first),), list_digest(first))
    for data in others:
        trusted = trusted.followed_by(data)
    return trusted


def check(case, work):
    """``work`` raises exactly the error of the case, or none."""
    if case["error"] is None:
        work()
        return
    with pytest.raises(PathweaveError) as caught:
        work()
    assert type(caught.value) is getattr(errors, case["error"]), caught.value


def ids(case):
    return case["case"]


def test_the_vectors_are_those_that_the_script_writes(tmp_path):
    found = differences_from_frozen("trust", tmp_path)
    assert not found, "python tests/contract/write_trust.py"


@pytest.mark.parametrize("case", VECTORS["pinned"], ids=ids)
def test_pinned_lists(case):
    check(case, lambda: pinned_list(case["list"].encode()))


@pytest.mark.parametrize("case", VECTORS["next"], ids=ids)
def test_next_lists(case):
    before = chain(dict.fromkeys(("one", case["after"]))).newest
    check(case, lambda: next_list(before, case["list"].encode()))


@pytest.mark.parametrize("case", VECTORS["releases"], ids=ids)
def test_releases(case):
    trusted, marks = chain(case["lists"]), [TimeMark(*case["mark"])]

    def install():
        release = trusted.release(case["release"].encode())
        marks.append(raised(marks[0], release, trusted.newest))
        require_unexpired(release, trusted.newest, clock_s=case["clock_s"], mark=marks[1])
        require_same_manifest(release, MANIFESTS[case["manifest_sha256"]])
        require_same_name(release, case["name"], case["version"])

    check(case, install)
    assert (marks[1:] or [None])[0] == (case["mark_after"] and TimeMark(*case["mark_after"]))


def test_what_a_single_key_signed_opens_by_a_list_that_has_it_as_a_release_key():
    signed = VECTORS["signed_manifest"]
    manifest = signed["manifest"].encode()

    def verify(signature, names=("one",)):
        chain(names).verify(SignedParts("here", manifest, signature, None))

    by_release, by_root = (bytes.fromhex(signed[name]) for name in ("by_release_1", "by_root_1"))
    verify(by_release)
    for signature, names in ((None, ["one"]), (bytes(64), ["one"]), (by_root, ["one"]), (by_release, ["one", "two"])):
        with pytest.raises(SignatureError):
            verify(signature, names)


MANIFESTS = {
    list_digest(data): data for data in (b'{"name": "tiny", "version": 1}', b'{"name": "tiny", "version": 1} ')
}


@pytest.mark.parametrize("case", VECTORS["time_marks"], ids=lambda case: case.get("case", "whole"))
def test_marks_of_time_are_written_the_same_everywhere_and_damaged_ones_are_recognised(case):
    record = bytes.fromhex(case["record"])
    if case["mark"] is None:
        with pytest.raises(ValueError, match=r"\S"):
            decode_time_mark(record)
        return
    mark = TimeMark(*case["mark"])
    assert decode_time_mark(record) == mark
    assert encode_mark(mark) == record
