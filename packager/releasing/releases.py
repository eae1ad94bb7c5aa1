"""Signing ``release.json`` beside a bundle, and renewing it before it expires."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from device_sdk.bundles.bundle import MANIFEST, Bundle
from device_sdk.bundles.releasing import DAY_S, require_usable, write_release
from device_sdk.errors import BundleError, UsageError
from device_sdk.signing.release import (
    RELEASE,
    RELEASE_MAX_BYTES,
    Release,
    require_same_manifest,
)
from device_sdk.signing.trust import TrustedKeys


@dataclass(frozen=True)
class Renewal:
    """Outcome of renewing the release of one bundle. ``reason``: cause if it is neither renewed nor fresh."""

    folder: Path
    release: Release | None
    renewed: bool
    reason: str | None = None


def renew_releases(
    folder: Path, chain: TrustedKeys, private_key: Path, *, now_s: int, within_days: float, days: float
) -> list[Renewal]:
    """Renew the releases of the bundles in ``folder`` that expire ``within_days``.

    Only bundles that a key of the newest list has released before, unchanged: this can run unattended.

    Raises:
        UsageError, SignatureError, StorageError: as ``sign_release``.
    """
    require_usable(chain, private_key, now_s)

    def renewal(place: Path) -> Renewal:
        try:
            bundle, release = _released(place, chain)
        except BundleError as error:
            return Renewal(place, None, False, str(error))
        if release.expires_at_s - now_s > within_days * DAY_S:
            return Renewal(place, release, False)
        return Renewal(place, write_release(bundle, chain, private_key, now_s, days), True)

    return [renewal(place) for place in _bundles(folder)]


def _released(folder: Path, chain: TrustedKeys) -> tuple[Bundle, Release]:
    """The bundle and the release that names it (SignatureError: there is none)."""
    bundle = Bundle.open(folder, trust=TrustedKeys(chain.lists[-1:], chain.digest))
    with (folder / RELEASE).open("rb") as file:
        release = chain.release(file.read(RELEASE_MAX_BYTES + 1))
    require_same_manifest(release, (folder / MANIFEST).read_bytes())
    return bundle, release


def _bundles(folder: Path) -> Iterator[Path]:
    """As the server finds them: ``folder`` itself, or its subfolders."""
    if (folder / MANIFEST).exists():
        yield folder
        return
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}")
    yield from (one for one in sorted(folder.iterdir()) if not one.name.startswith(".") and (one / MANIFEST).exists())
