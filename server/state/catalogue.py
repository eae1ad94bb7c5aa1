"""Contents of a store of bundles, as the rest of the server sees them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from device_sdk.bundles.bundle import MANIFEST, SIGNATURE, Bundle
from device_sdk.errors import ManifestError
from device_sdk.supernet.paths import architecture_count
from server.errors import NotFoundError


@dataclass(frozen=True, eq=False)
class ServedBundle:
    """A bundle with the bytes of its manifest, signature and release, read together so that versions are never mixed.

    A release and a rollback to this version may be renewed at any time; they are verified by devices only.
    """

    bundle: Bundle
    manifest: bytes
    signature: bytes | None
    release: bytes | None
    rollback: bytes | None
    blob_sizes: Mapping[str, int]
    architectures: int

    @classmethod
    def of(
        cls, bundle: Bundle, *, release: bytes | None, rollback: bytes | None, blob_sizes: Mapping[str, int]
    ) -> ServedBundle:
        """The bundle with the files beside its manifest.

        Raises:
            ManifestError: the manifest was replaced since ``bundle`` was opened. OSError.
        """
        manifest = (bundle.folder / MANIFEST).read_bytes()
        signature = (bundle.folder / SIGNATURE).read_bytes() if bundle.has_signature else None
        if hashlib.sha256(manifest).hexdigest() != bundle.digest:
            raise ManifestError(f"{MANIFEST} was replaced while it was read")
        return cls(bundle, manifest, signature, release, rollback, blob_sizes, architecture_count(bundle.supernet))

    @property
    def name(self) -> str:
        """The name in its manifest."""
        return self.bundle.manifest.name

    @property
    def version(self) -> int:
        """The version in its manifest."""
        return self.bundle.manifest.version

    @property
    def size_bytes(self) -> int:
        """Bytes of manifest and blobs."""
        return len(self.manifest) + sum(self.blob_sizes.values())


@dataclass(frozen=True)
class BrokenBundle:
    """A bundle that is not served, with the reason. ``folder``: where it is."""

    folder: str
    reason: str


@dataclass(frozen=True)
class Listing:
    """The bundles that are served at one moment. ``bundles``: by name, the highest version of each first."""

    bundles: Mapping[str, tuple[ServedBundle, ...]]
    broken: tuple[BrokenBundle, ...]

    @classmethod
    def of(cls, entries: Iterable[ServedBundle | BrokenBundle]) -> Listing:
        """The listing of ``entries``; of two with the same version, the last is always used."""
        bundles: dict[str, list[ServedBundle]] = {}
        broken = []
        for entry in entries:
            if isinstance(entry, BrokenBundle):
                broken.append(entry)
            else:
                bundles.setdefault(entry.name, []).append(entry)
        ordered = {
            name: tuple(sorted(reversed(versions), key=lambda entry: entry.version, reverse=True))
            for name, versions in bundles.items()
        }
        return cls(ordered, tuple(broken))

    @property
    def served(self) -> tuple[ServedBundle, ...]:
        """The highest version of each bundle, by name."""
        return tuple(versions[0] for _, versions in sorted(self.bundles.items()))

    def versions(self, name: str) -> tuple[ServedBundle, ...]:
        """The versions of a bundle, the highest first (NotFoundError if there is none)."""
        try:
            return self.bundles[name]
        except KeyError:
            raise NotFoundError("there is no such bundle", hint="GET /v1/bundles lists them") from None

    def version(self, name: str, version: int) -> ServedBundle:
        """One version of a bundle (NotFoundError if there is none)."""
        for served in self.versions(name):
            if served.version == version:
                return served
        raise NotFoundError(f"there is no version {version} of {name}", hint=f"GET /v1/bundles/{name} has the highest")

    def with_blob(self, name: str, blob: str) -> ServedBundle:
        """A version of the bundle ``name`` that has ``blob``, so that downloads of older versions can complete.

        Raises:
            NotFoundError: no such bundle, or no manifest of it names this blob.
        """
        for served in self.versions(name):
            if blob in served.blob_sizes:
                return served
        raise NotFoundError(f"the bundle {name} has no such blob")


def place_of(name: str, version: int, *, folder: Path) -> Path:
    """The folder of a bundle that is published into ``folder``."""
    return folder / f"{name}-{version}"
