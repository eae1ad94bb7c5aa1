"""Signed rollbacks: permission of an operator to install one version below a device's high-water mark."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Literal

import msgspec

from device_sdk.errors import RollbackError, SignatureError
from device_sdk.signing.release import refuse_expired
from device_sdk.signing.signatures import TimeS, decode_envelope, decode_payload
from device_sdk.supernet.blocks import IDENTIFIER

ROLLBACK = "rollback.json"
ROLLBACK_MAX_BYTES = 16_384
ROLLBACK_CONTEXT = b"pathweave rollback\n"

_RENEW = "the operator signs another: pathweave sign rollback"
_Version = Annotated[int, msgspec.Meta(ge=1, le=2**53 - 1)]


class Rollback(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The payload: devices that have had at most ``from_version`` may go back to ``to_version`` with that manifest.

    ``to_manifest_sha256``: of the exact bytes of its manifest.json. Times are in seconds since 1970, UTC.
    """

    format: Literal[1] = 1
    name: Annotated[str, msgspec.Meta(max_length=200)]
    from_version: _Version
    to_version: _Version
    to_manifest_sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
    signed_at_s: TimeS
    expires_at_s: TimeS


def verify_rollback(data: bytes, signers: Collection[str] | None) -> Rollback:
    """The rollback in ``data``, signed by one of the keys ``signers``; None: no signature is needed.

    Raises:
        SignatureError: too large, not a rollback, or signed by none of the keys.
        UnsupportedFormatError: of another format.
    """
    envelope = decode_envelope(data, what=ROLLBACK, max_bytes=ROLLBACK_MAX_BYTES)
    if signers is not None and not envelope.signed_by(signers, context=ROLLBACK_CONTEXT):
        raise SignatureError(f"{ROLLBACK} is not signed by a key that this device trusts", hint=_RENEW)
    rollback = decode_payload(envelope, Rollback, what=ROLLBACK)
    if not IDENTIFIER.fullmatch(rollback.name) or rollback.to_version >= rollback.from_version:
        raise SignatureError(f"{ROLLBACK} names no version to go back to")
    return rollback


def require_permitted(rollback: Rollback, *, name: str, version: int, digest: str, had: int) -> None:
    """Refuse a rollback that is for something else. ``had``: the highest version that this device has had.

    Raises:
        RollbackError: refused.
    """
    if (rollback.name, rollback.to_version, rollback.to_manifest_sha256) != (name, version, digest):
        raise RollbackError(
            f"{ROLLBACK} leads to {rollback.name} {rollback.to_version}, not to this {name} {version}", hint=_RENEW
        )
    if had > rollback.from_version:
        raise RollbackError(
            f"{ROLLBACK} is for devices that have had {name} {rollback.from_version} at most; this one has had {had}",
            hint=_RENEW,
        )


def require_valid(rollback: Rollback, *, clock_s: float, proven_s: int) -> None:
    """Refuse a rollback that has expired. ``proven_s``: the latest signed time that the device knows.

    Raises:
        ExpiredError: refused. ClockError: refused, but the device's own clock may be the reason.
    """
    refuse_expired(
        f"the rollback to {rollback.name} {rollback.to_version}",
        rollback.expires_at_s,
        clock_s=clock_s,
        proven_s=max(proven_s, rollback.signed_at_s),
        renew=_RENEW,
    )
