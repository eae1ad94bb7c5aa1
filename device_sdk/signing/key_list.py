"""Numbered lists of the keys that may sign releases, each signed by root keys: ``keys/<number>.json``. Pure.

A device starts with one list that its application brings along, the pinned one. It takes a further list only if its
number is exactly one higher, and if it is signed by the threshold of root keys of the list before it and of its own. So
keys of both kinds are replaced and revoked without a new application.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Literal

import msgspec

from device_sdk.errors import SignatureError
from device_sdk.signing.signed_json import Envelope, Key, TimeS, decode_envelope, decode_payload

KEYS = "keys"  # the folder of the lists
KEYS_MAX_BYTES = 65_536
KEYS_CONTEXT = b"pathweave keys\n"
KEYS_PER_LIST = 32  # of each kind

_Keys = Annotated[tuple[Key, ...], msgspec.Meta(min_length=1, max_length=KEYS_PER_LIST)]


class KeyList(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The payload of a list.

    ``root_threshold``: number of ``root_keys`` that must sign this list and the next one. Times are in seconds since
    1970, UTC. Once the newest list that a device knows has expired, it installs nothing.
    """

    format: Literal[1] = 1
    number: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
    signed_at_s: TimeS
    expires_at_s: TimeS
    root_keys: _Keys
    root_threshold: Annotated[int, msgspec.Meta(ge=1, le=KEYS_PER_LIST)]
    release_keys: _Keys


def list_name(number: int) -> str:
    """The file of a list, below the bundle's address and in the operator's folder."""
    return f"{KEYS}/{number}.json"


def list_digest(data: bytes) -> str:
    """Identity of a list: the sha256 of the bytes of its file."""
    return hashlib.sha256(data).hexdigest()


def open_list(data: bytes, *, what: str) -> tuple[KeyList, Envelope]:
    """A list whose signatures are not verified.

    Raises:
        SignatureError: too large, or not a list that could be valid. UnsupportedFormatError: of another format.
    """
    envelope = decode_envelope(data, what=what, max_bytes=KEYS_MAX_BYTES)
    keys = decode_payload(envelope, KeyList, what=what)
    for named in (keys.root_keys, keys.release_keys):
        if len(set(named)) != len(named):
            raise SignatureError(f"{what} names a key twice")
    if keys.root_threshold > len(keys.root_keys):
        raise SignatureError(f"{what} asks for {keys.root_threshold} signatures of {len(keys.root_keys)} root keys")
    return keys, envelope


def missing_signatures(envelope: Envelope, keys: KeyList) -> int:
    """Number of root keys of ``keys`` that must still sign the list in ``envelope``; 0 if enough have."""
    return max(0, keys.root_threshold - len(envelope.signed_by(keys.root_keys, context=KEYS_CONTEXT)))


def pinned_list(data: bytes, *, what: str = "the pinned key list") -> KeyList:
    """The list that trust starts from.

    Raises:
        SignatureError: not a list, or not signed by its own root keys. UnsupportedFormatError: of another format.
    """
    keys, envelope = open_list(data, what=what)
    _require(envelope, keys, what=what, whose="its own")
    return keys


def next_list(before: KeyList, data: bytes) -> KeyList:
    """The list after ``before``.

    Raises:
        SignatureError: another number than the next one, or too few signatures of the root keys of either list.
        UnsupportedFormatError: of another format.
    """
    what = list_name(before.number + 1)
    keys, envelope = open_list(data, what=what)
    if keys.number != before.number + 1:
        raise SignatureError(f"{what} has number {keys.number}")
    _require(envelope, before, what=what, whose=f"list {before.number}'s")
    _require(envelope, keys, what=what, whose="its own")
    return keys


def _require(envelope: Envelope, keys: KeyList, *, what: str, whose: str) -> None:
    if missing := missing_signatures(envelope, keys):
        raise SignatureError(
            f"{what} has {keys.root_threshold - missing} of {keys.root_threshold} signatures by {whose} root keys",
            hint="the list was altered, or its signing was not completed; do not use it",
        )
