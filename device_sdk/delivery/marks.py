"""The high-water marks of a bundle: version and time that this device has had, and what it refuses because of them.

Pure. Two copies of a mark are kept. Each states its own digest: a damaged one is recognised, and the other one counts.
"""

from __future__ import annotations

import hashlib
import re

import msgspec

from device_sdk.errors import BundleError, RollbackError
from device_sdk.files.atomic import decode_json
from device_sdk.signing.release import TimeMark

_DIGEST = re.compile(r"[0-9a-f]{64}")
ADDRESSES_MAX = 64  # more are forgotten, the oldest first


class Mark(msgspec.Struct, frozen=True):
    """Bundle ``name`` was installed in ``version``, with the manifest ``digest``, from ``addresses`` (their sha256).

    ``rolled_back_to``: digest of the lower version that a signed rollback let this device install since.
    """

    name: str
    version: int
    digest: str
    addresses: tuple[str, ...] = ()
    rolled_back_to: str | msgspec.UnsetType = msgspec.UNSET

    def permits(self, version: int, digest: str) -> bool:
        """True if a bundle is not below the mark, or is the one that this device was rolled back to."""
        return version > self.version or digest in (self.digest, self.rolled_back_to)


class _Record(msgspec.Struct, frozen=True):
    mark: msgspec.Raw
    sha256: str


def encode_mark(mark: Mark | TimeMark) -> bytes:
    """One line of JSON: the mark, and the sha256 of its bytes."""
    data = msgspec.json.encode(mark)
    return msgspec.json.encode(_Record(msgspec.Raw(data), hashlib.sha256(data).hexdigest())) + b"\n"


def decode_mark(data: bytes) -> Mark:
    """Raises ValueError: the record is damaged."""
    mark = decode_json(_checked(data), Mark)
    back = mark.rolled_back_to
    if not _DIGEST.fullmatch(mark.digest) or not (back is msgspec.UNSET or _DIGEST.fullmatch(back)):
        raise ValueError("it names no digest")
    return mark


def decode_time_mark(data: bytes) -> TimeMark:
    """Raises ValueError: the record is damaged."""
    return decode_json(_checked(data), TimeMark)


def _checked(data: bytes) -> bytes:
    record = decode_json(data, _Record)
    if hashlib.sha256(bytes(record.mark)).hexdigest() != record.sha256:
        raise ValueError("it does not match its digest")
    return bytes(record.mark)


def refuse_rollback(mark: Mark | None, *, name: str, version: int, digest: str, source: str) -> None:
    """Refuse what is below ``mark``, or other bytes under its version. ``source``: where it comes from.

    Raises:
        RollbackError: refused.
    """
    if mark is None or mark.permits(version, digest):
        return
    if version < mark.version:
        raise RollbackError(
            f"{source} has version {version} of {name}; this device has had {mark.version}",
            hint="to install the older version, allow the rollback",
        )
    raise RollbackError(
        f"{source} has version {version} of {name} with other contents than this device has had under that version",
        hint="give the new contents a higher version, or allow the rollback",
    )


def refuse_other_name(pinned: str | None, *, name: str, source: str) -> None:
    """Refuse another product than ``pinned``, the one that this address had at first.

    Raises:
        BundleError: refused.
    """
    if pinned is not None and pinned != name:
        raise BundleError(
            f"{source} has bundle {name}; this device has had {pinned} from there",
            hint="serve another product at an address of its own",
        )
