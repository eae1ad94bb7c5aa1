from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.delivery.marks import Mark, decode_mark, encode_mark, refuse_other_name, refuse_rollback
from device_sdk.errors import BundleError, RollbackError

MARK = Mark("tiny", 5, "a" * 64, ("b" * 64,))


def test_a_mark_is_read_back():
    assert decode_mark(encode_mark(MARK)) == MARK


@given(st.data())
def test_no_damaged_mark_is_taken_for_another_one(data):
    encoded = bytearray(encode_mark(MARK))
    position = data.draw(st.integers(0, len(encoded) - 1))
    encoded[position] ^= 1 << data.draw(st.integers(0, 7))
    for damaged in (bytes(encoded), bytes(encoded[:position])):
        with contextlib.suppress(ValueError):
            assert decode_mark(damaged) == MARK  # only white space was damaged


@pytest.mark.parametrize(("version", "digest"), [(6, "c" * 64), (5, "a" * 64)])
def test_newer_versions_and_the_same_contents_are_taken(version, digest):
    refuse_rollback(MARK, name="tiny", version=version, digest=digest, source="here")
    refuse_rollback(None, name="tiny", version=0, digest=digest, source="here")


@pytest.mark.parametrize(("version", "digest", "message"), [(4, "c" * 64, "had 5"), (5, "c" * 64, "other contents")])
def test_older_versions_and_other_contents_are_refused(version, digest, message):
    with pytest.raises(RollbackError, match=message) as caught:
        refuse_rollback(MARK, name="tiny", version=version, digest=digest, source="here")
    assert "allow the rollback" in caught.value.hint


def test_another_name_is_refused():
    refuse_other_name(None, name="tiny", source="here")
    refuse_other_name("tiny", name="tiny", source="here")
    with pytest.raises(BundleError, match="other; this device has had tiny"):
        refuse_other_name("tiny", name="other", source="here")
