"""The operator's side of releases: a folder of key lists, and signing release or rollback beside a bundle.

Used by the packager's commands and by a server that publishes what its jobs made.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from device_sdk.bundles.bundle import Bundle
from device_sdk.errors import StorageError, UsageError
from device_sdk.files.atomic import write_atomically
from device_sdk.signing import signatures
from device_sdk.signing.release import KEYS_MAX_BYTES, RELEASE, RELEASE_CONTEXT, Release, list_digest, pinned_list, utc
from device_sdk.signing.rollback import ROLLBACK, ROLLBACK_CONTEXT, Rollback, verify_rollback
from device_sdk.signing.signatures import LATEST_S, Envelope, encode_envelope
from device_sdk.signing.trust import TrustedKeys

DAY_S = 24 * 3600
RELEASE_DAYS = 30.0  # that a release may be installed, unless said otherwise

_FILE = re.compile(r"([1-9][0-9]{0,9})\.(json|draft)")


def read_chain(folder: Path) -> TrustedKeys:
    """All finished lists, each verified by the one before.

    Raises:
        UsageError: there is none, or a number is missing.
        SignatureError: a list is not valid.
    """
    numbers = list_numbers(folder, "json")
    if not numbers:
        raise UsageError(f"{folder} has no key list", hint="pathweave sign key list new, then sign")
    if numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        raise UsageError(f"{folder} lacks one of the key lists {numbers[0]} to {numbers[-1]}")
    first = read_list(folder / f"{numbers[0]}.json")
    chain = TrustedKeys((pinned_list(first, what=f"{numbers[0]}.json"),), list_digest(first))
    for number in numbers[1:]:
        chain = chain.followed_by(read_list(folder / f"{number}.json"))
    return chain


def sign_release(folder: Path, chain: TrustedKeys, private_key: Path, *, now_s: int, days: float) -> Release:
    """Verify the bundle in ``folder`` and write its release, which may be installed for ``days`` from ``now_s`` on.

    Raises:
        UsageError: the key is not a release key of the newest list, that list has expired, or the clock is behind it.
        BundleError: the bundle is damaged. SignatureError: the key file cannot be used. StorageError.
    """
    require_usable(chain, private_key, now_s)
    bundle = Bundle.open(folder)
    bundle.verify()
    return write_release(bundle, chain, private_key, now_s, days)


def sign_rollback(
    folder: Path, chain: TrustedKeys | None, private_key: Path, *, from_version: int, now_s: int, days: float
) -> Rollback:
    """Verify the bundle in ``folder`` and write the permission to go back to it from up to ``from_version``.

    ``chain``: the key lists of the devices; None: they trust ``private_key`` alone.

    Raises:
        UsageError: the key may not sign, or the bundle is not below that version.
        BundleError: the bundle is damaged. SignatureError: the key file cannot be used. StorageError.
    """
    if chain is not None:
        require_usable(chain, private_key, now_s)
    bundle = Bundle.open(folder)
    bundle.verify()
    if bundle.manifest.version >= from_version:
        raise UsageError(
            f"{folder} has version {bundle.manifest.version}, which is not below {from_version}",
            hint="name the folder of the version that devices go back to, and the highest one that they may have",
        )
    rollback = Rollback(
        name=bundle.manifest.name,
        from_version=from_version,
        to_version=bundle.manifest.version,
        to_manifest_sha256=bundle.digest,
        signed_at_s=now_s,
        expires_at_s=min(LATEST_S, now_s + round(days * DAY_S)),
    )
    envelope = Envelope(msgspec.json.encode(rollback).decode()).with_signature(private_key, context=ROLLBACK_CONTEXT)
    data = encode_envelope(envelope)
    verify_rollback(data, frozenset((signatures.public_half(private_key),)))
    write_atomically(bundle.folder / ROLLBACK, data)
    return rollback


def require_usable(chain: TrustedKeys, private_key: Path, now_s: int) -> None:
    """Raise UsageError unless ``private_key`` may sign releases by the newest list of ``chain`` now."""
    newest = chain.newest
    if signatures.public_half(private_key) not in newest.release_keys:
        raise UsageError(
            f"{private_key} is not a release key of list {newest.number}",
            hint="pathweave sign key list next --add-release",
        )
    if now_s < newest.signed_at_s - DAY_S:  # clocks of two machines differ a little
        raise UsageError(f"list {newest.number} was made on {utc(newest.signed_at_s)}, but it is {utc(now_s)} here")
    if now_s > newest.expires_at_s:
        raise UsageError(
            f"list {newest.number} expired on {utc(newest.expires_at_s)}: devices install nothing by it",
            hint="pathweave sign key list next, then sign",
        )


def write_release(bundle: Bundle, chain: TrustedKeys, private_key: Path, now_s: int, days: float) -> Release:
    """Write the release of a verified bundle beside it."""
    release = Release(
        name=bundle.manifest.name,
        version=bundle.manifest.version,
        manifest_sha256=bundle.digest,
        signed_at_s=now_s,
        expires_at_s=min(LATEST_S, now_s + round(days * DAY_S)),
        keys=chain.newest.number,
    )
    envelope = Envelope(msgspec.json.encode(release).decode()).with_signature(private_key, context=RELEASE_CONTEXT)
    data = encode_envelope(envelope)
    chain.release(data)  # what a device would refuse is not written
    write_atomically(bundle.folder / RELEASE, data)
    return release


def list_numbers(folder: Path, kind: str) -> list[int]:
    """The numbers of the files ``<number>.<kind>`` in ``folder``, ascending."""
    try:
        names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    except OSError as error:
        raise StorageError(f"cannot read {folder}: {error.strerror}") from error
    found = [match for name in names if (match := _FILE.fullmatch(name)) and match[2] == kind]
    return sorted(int(match[1]) for match in found)


def read_list(path: Path) -> bytes:
    """The bytes of a key list or a draft; UsageError if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(KEYS_MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
