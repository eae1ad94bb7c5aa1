"""Key lists and releases as bytes that anybody may have altered."""

from __future__ import annotations

import pytest

from device_sdk.errors import BundleError, SignatureError
from device_sdk.signing.release import RELEASE_CONTEXT, RELEASE_MAX_BYTES, pinned_list, utc, verify_release
from device_sdk.signing.signatures import Envelope, decode_envelope, encode_envelope
from tests.contract.signed_files import digits, key_list, release, write_pair

LISTS = [pinned_list(key_list())]


@pytest.mark.parametrize(
    ("data", "read"),
    [(release(b"manifest"), lambda data: verify_release(data, LISTS)), (key_list(), pinned_list)],
    ids=["release", "key list"],
)
def test_no_altered_byte_is_taken_for_another_statement(data, read):
    good = read(data)
    for position in range(len(data)):
        for bit in (1, 4, 32, 128):
            altered = data[:position] + bytes([data[position] ^ bit]) + data[position + 1 :]
            try:
                assert read(altered) == good
            except BundleError:
                continue


@pytest.mark.parametrize("step", [1, 7])
def test_every_truncation_is_refused(step):
    data = release(b"manifest")
    for length in range(0, len(data), step):
        with pytest.raises(SignatureError):
            verify_release(data[:length], LISTS)


@pytest.mark.parametrize("data", [b"[" * 16_000, b'{"payload": "' + b"[" * 15_000 + b'", "signatures": []}'])
def test_deep_nesting_is_refused(data):
    with pytest.raises(SignatureError):
        verify_release(data, LISTS)


def test_what_was_signed_is_read_again_byte_for_byte(tmp_path):
    private_key, _ = write_pair(tmp_path, "release-1")
    envelope = Envelope('{"é": "∞", "a": 1.0}').with_signature(private_key, context=RELEASE_CONTEXT)
    again = decode_envelope(encode_envelope(envelope), what="it", max_bytes=RELEASE_MAX_BYTES)
    assert again == envelope
    assert again.signed_by({digits("release-1")}, context=RELEASE_CONTEXT) == {digits("release-1")}
    assert not again.signed_by({digits("release-1")}, context=b"")


def test_a_key_that_signs_again_replaces_its_signature(tmp_path):
    private_key, _ = write_pair(tmp_path, "release-1")
    envelope = Envelope("{}")
    for _ in range(3):
        envelope = envelope.with_signature(private_key, context=RELEASE_CONTEXT)
    assert len(envelope.signatures) == 1


@pytest.mark.parametrize(
    ("time_s", "text"),
    [
        (0, "1970-01-01 00:00 UTC"),
        (1_800_000_000.9, "2027-01-15 08:00 UTC"),
        (2**60, "second 1152921504606846976 since 1970"),
        (-(2**60), "second -1152921504606846976 since 1970"),
        (float("inf"), "second inf since 1970"),
    ],
)
def test_any_time_can_be_said(time_s, text):
    assert utc(time_s) == text
