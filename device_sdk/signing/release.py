"""Key lists and releases: who may sign, and which version a device takes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Literal

import msgspec

from device_sdk.errors import ClockError, ExpiredError, RollbackError, SignatureError
from device_sdk.signing.signatures import Envelope, Key, TimeS, decode_envelope, decode_payload
from device_sdk.supernet.blocks import IDENTIFIER

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


RELEASE = "release.json"
RELEASE_MAX_BYTES = 16_384
RELEASE_CONTEXT = b"pathweave release\n"
CLOCK_DOUBT_S = 366 * 24 * 3600  # expired for longer than this by the device's clock alone: the clock may be wrong


class Release(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The payload. ``manifest_sha256``: of the exact bytes of manifest.json. ``keys``: number of the newest key list.

    Times are in seconds since 1970, UTC.
    """

    format: Literal[1] = 1
    name: Annotated[str, msgspec.Meta(max_length=200)]
    version: Annotated[int, msgspec.Meta(ge=1, le=2**53 - 1)]
    manifest_sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
    signed_at_s: TimeS
    expires_at_s: TimeS
    keys: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]


class TimeMark(msgspec.Struct, frozen=True):
    """The latest ``signed_at_s`` of a bundle's releases that a device has seen; ``keys``: the newest key list then."""

    keys: int = 0
    signed_at_s: int = 0


def verify_release(data: bytes, lists: Sequence[KeyList]) -> Release:
    """The release in ``data``, signed by a release key of one of ``lists``, which are in order of their numbers.

    Raises:
        SignatureError: too large, not a release, signed by none of the keys, or made with a list after ``lists``.
        UnsupportedFormatError: of another format.
    """
    envelope = decode_envelope(data, what=RELEASE, max_bytes=RELEASE_MAX_BYTES)
    keys = {key for one in lists for key in one.release_keys}
    if not envelope.signed_by(keys, context=RELEASE_CONTEXT):
        raise SignatureError(
            f"{RELEASE} is not signed by a release key of key list {lists[-1].number}",
            hint="it was altered, or its key was revoked; the operator signs with: pathweave sign release sign",
        )
    release = decode_payload(envelope, Release, what=RELEASE)
    if not IDENTIFIER.fullmatch(release.name):
        raise SignatureError(f"{RELEASE} has a name that no bundle can have")
    if release.keys > lists[-1].number:
        raise SignatureError(f"{RELEASE} was made with key list {release.keys}; the newest here is {lists[-1].number}")
    return release


def require_same_manifest(release: Release, data: bytes) -> None:
    """Refuse other bytes of manifest.json than those of the release; before they are parsed.

    Raises:
        SignatureError: refused.
    """
    if hashlib.sha256(data).hexdigest() != release.manifest_sha256:
        raise SignatureError(
            f"manifest.json is not the one that {RELEASE} names for {release.name} {release.version}",
            hint="two releases were mixed, or the bundle was replaced and not released again; do not use it",
        )


def require_same_name(release: Release, name: str, version: int) -> None:
    """Refuse a release that says another name or version than the manifest.

    Raises:
        SignatureError: refused.
    """
    if (name, version) != (release.name, release.version):
        raise SignatureError(f"{RELEASE} is of {release.name} {release.version}, manifest.json of {name} {version}")


def require_unexpired(release: Release, newest: KeyList, *, clock_s: float, mark: TimeMark) -> None:
    """Refuse to install what has expired: the release, or the newest key list.

    ``mark``: as this release raised it (see ``raised``). The time is the latest of the device's clock and of all signed
    times, so setting the clock back changes nothing.

    Raises:
        ExpiredError: refused. ClockError: refused, but the device's own clock may be the reason.
    """
    proven_s = max(newest.signed_at_s, mark.signed_at_s)
    for what, expires_at_s in (
        (f"the release of {release.name} {release.version}", release.expires_at_s),
        (f"key list {newest.number}", newest.expires_at_s),
    ):
        refuse_expired(what, expires_at_s, clock_s=clock_s, proven_s=proven_s, renew=_RENEW)


_RENEW = "ask who runs the server to renew it (pathweave sign release renew)"


def refuse_expired(what: str, expires_at_s: int, *, clock_s: float, proven_s: int, renew: str) -> None:
    """Refuse ``what`` if it has expired by the device's clock or by ``proven_s``, the latest time that is signed.

    Raises:
        ExpiredError: refused; ``renew`` is its hint. ClockError: refused, but the device's own clock may be the reason.
    """
    if max(clock_s, proven_s) <= expires_at_s:
        return
    if proven_s <= expires_at_s and clock_s - expires_at_s > CLOCK_DOUBT_S:
        raise ClockError(
            f"{what} expired on {utc(expires_at_s)}, and this device's clock says {utc(clock_s)}: it may be wrong",
            hint="set the clock; if it is right, ask who runs the server for a new release",
        )
    raise ExpiredError(
        f"{what} expired on {utc(expires_at_s)}: newer ones may be withheld",
        hint=renew,
    )


def raised(mark: TimeMark, release: Release, newest: KeyList, *, allow_rollback: bool = False) -> TimeMark:
    """The mark once ``release`` is verified under the key list ``newest``.

    A newer list begins anew: it ends the effect of a release that was signed with a clock far ahead.

    Raises:
        RollbackError: there was a newer list than ``newest``; not if ``allow_rollback``.
    """
    if mark.keys > newest.number and not allow_rollback:
        raise RollbackError(
            f"the newest key list from there is {newest.number}; this device has had {mark.keys}",
            hint="to begin with new root keys, number their first list higher, or allow the rollback",
        )
    if mark.keys == newest.number and mark.signed_at_s >= release.signed_at_s:
        return mark
    return TimeMark(newest.number, release.signed_at_s)


def utc(time_s: float) -> str:
    """For messages: ``2026-11-25 07:30 UTC``, whatever a clock says."""
    try:
        return f"{datetime.fromtimestamp(time_s, UTC):%Y-%m-%d %H:%M} UTC"
    except (ValueError, OverflowError, OSError):
        return f"second {time_s:.0f} since 1970"
