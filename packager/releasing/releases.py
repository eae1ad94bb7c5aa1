"""Signing ``release.json`` beside a bundle, and renewing it before it expires."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from device_sdk.bundles import signing
from device_sdk.bundles.bundle import MANIFEST, Bundle
from device_sdk.bundles.release import (
    RELEASE,
    RELEASE_CONTEXT,
    RELEASE_MAX_BYTES,
    Release,
    require_same_manifest,
    utc,
)
from device_sdk.bundles.signed_json import LATEST_S, Envelope, encode_envelope
from device_sdk.bundles.trust import TrustedKeys
from device_sdk.errors import BundleError, UsageError
from device_sdk.files.atomic import write_atomically
from packager.releasing.key_folder import DAY_S


@dataclass(frozen=True)
class Renewal:
    """What became of the release of one bundle. ``reason``: why it was neither renewed nor fresh."""

    folder: Path
    release: Release | None
    renewed: bool
    reason: str | None = None


def sign_release(folder: Path, chain: TrustedKeys, private_key: Path, *, now_s: int, days: float) -> Release:
    """Verify the bundle in ``folder`` and write its release, which may be installed for ``days`` from ``now_s`` on.

    Raises:
        UsageError: the key is not a release key of the newest list, that list has expired, or the clock is behind it.
        BundleError: the bundle is damaged. SignatureError: the key file cannot be used. StorageError.
    """
    _require_usable(chain, private_key, now_s)
    bundle = Bundle.open(folder)
    bundle.verify()
    return _write(bundle, chain, private_key, now_s, days)


def renew_releases(
    folder: Path, chain: TrustedKeys, private_key: Path, *, now_s: int, within_days: float, days: float
) -> list[Renewal]:
    """Renew the releases of the bundles in ``folder`` that expire ``within_days``.

    Only what a key of the newest list has released before, unchanged: this can run unattended.

    Raises:
        UsageError, SignatureError, StorageError: as ``sign_release``.
    """
    _require_usable(chain, private_key, now_s)

    def renewal(place: Path) -> Renewal:
        try:
            bundle, release = _released(place, chain)
        except BundleError as error:
            return Renewal(place, None, False, str(error))
        if release.expires_at_s - now_s > within_days * DAY_S:
            return Renewal(place, release, False)
        return Renewal(place, _write(bundle, chain, private_key, now_s, days), True)

    return [renewal(place) for place in _bundles(folder)]


def _require_usable(chain: TrustedKeys, private_key: Path, now_s: int) -> None:
    newest = chain.newest
    if signing.public_half(private_key) not in newest.release_keys:
        raise UsageError(
            f"{private_key} is not a release key of list {newest.number}", hint="pathweave key list next --add-release"
        )
    if now_s < newest.signed_at_s - DAY_S:  # clocks of two machines differ a little
        raise UsageError(f"list {newest.number} was made on {utc(newest.signed_at_s)}, but it is {utc(now_s)} here")
    if now_s > newest.expires_at_s:
        raise UsageError(
            f"list {newest.number} expired on {utc(newest.expires_at_s)}: devices install nothing by it",
            hint="pathweave key list next, then sign",
        )


def _released(folder: Path, chain: TrustedKeys) -> tuple[Bundle, Release]:
    """The bundle and the release that names it (SignatureError: there is none)."""
    bundle = Bundle.open(folder, trust=TrustedKeys(chain.lists[-1:], chain.digest))
    with (folder / RELEASE).open("rb") as file:
        release = chain.release(file.read(RELEASE_MAX_BYTES + 1))
    require_same_manifest(release, (folder / MANIFEST).read_bytes())
    return bundle, release


def _write(bundle: Bundle, chain: TrustedKeys, private_key: Path, now_s: int, days: float) -> Release:
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


def _bundles(folder: Path) -> Iterator[Path]:
    """As the server finds them: ``folder`` itself, or its subfolders."""
    if (folder / MANIFEST).exists():
        yield folder
        return
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}")
    yield from (one for one in sorted(folder.iterdir()) if not one.name.startswith(".") and (one / MANIFEST).exists())
