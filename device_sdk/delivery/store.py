"""A device's store of downloaded bundles.

```
blobs/<sha256>                            shared by all bundles and versions; verified before the rename
bundles/<name>/<sha256>/manifest.json     a bundle by the digest of its manifest, with manifest.sig if it is signed
bundles/<name>/current                    the digest of the last good bundle
urls/<sha256 of the address>              the name of the bundle at that address
partial/                                  blobs being downloaded (see blob_writer)
```

Files are written atomically, by a rename. There are no locks: several processes may use one store at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from device_sdk.bundles.bundle import MANIFEST, SIGNATURE
from device_sdk.bundles.manifest import IDENTIFIER, decode_manifest
from device_sdk.delivery.blob_writer import BlobWriter, orphans
from device_sdk.errors import BundleError
from device_sdk.files.atomic import storage_errors, write_atomically
from device_sdk.transports.addresses import base

_DIGEST = re.compile(r"[0-9a-f]{64}")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoredBundle:
    """A bundle in the store. ``digest``: sha256 of its manifest; ``folder`` holds manifest and signature."""

    name: str
    version: int
    digest: str
    folder: Path


class BundleStore:
    """The store in ``folder``, which is created by the first write."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.blobs = folder / "blobs"
        self._partial = folder / "partial"

    def has_blob(self, name: str, size: int | None) -> bool:
        """Whether blob ``name`` is stored, with ``size`` bytes if given. Its digest was verified when it was stored."""
        try:
            actual = self._blob(name).stat().st_size
        except OSError:
            return False
        return size is None or actual == size

    def writer(self, name: str, *, max_bytes: int) -> BlobWriter:
        """A writer for blob ``name`` of at most ``max_bytes``."""
        return BlobWriter(self._partial, name, self._blob(name), max_bytes=max_bytes)

    def remove_altered(self, names: Iterable[str]) -> tuple[str, ...]:
        """Read blobs and delete those that no longer match their digest, so that they are fetched again.

        Raises:
            StorageError: a blob could not be deleted.
        """
        removed = []
        for name in names:
            path = self._blob(name)
            with contextlib.suppress(FileNotFoundError):
                if not _matches(path, name):
                    with storage_errors(path):
                        path.unlink(missing_ok=True)
                    removed.append(name)
        return tuple(removed)

    def remove_leftovers(self) -> None:
        """Delete orphans of blobs that are stored."""
        for path in list(orphans(self._partial)):
            if self.has_blob(path.name[:64], None):
                with contextlib.suppress(OSError):
                    path.unlink()

    def save_bundle(self, name: str, manifest: bytes, signature: bytes | None) -> Path:
        """Store a verified manifest with its signature; returns their folder. It does not become the last good one.

        Raises:
            StorageError: they could not be written.
        """
        folder = self._bundle(name, hashlib.sha256(manifest).hexdigest())
        if signature is not None:
            write_atomically(folder / SIGNATURE, signature)
        write_atomically(folder / MANIFEST, manifest)
        return folder

    def remember_good(self, name: str, digest: str) -> None:
        """Make the bundle with this digest the last good one, the fallback of later downloads.

        Raises:
            BundleError: it is not in the store.
            StorageError: the record could not be written.
        """
        if not (self._bundle(name, digest) / MANIFEST).is_file():
            raise BundleError(f"the store has no bundle {name} with digest {digest[:12]}…")
        write_atomically(self._current(name), digest.encode() + b"\n")

    def last_good(self, name: str) -> StoredBundle | None:
        """The last good bundle ``name``; None if there is none or it cannot be read."""
        current = self._current(name)
        try:
            digest = current.read_text(encoding="ascii").strip()
            folder = self._bundle(name, digest)
            manifest = (folder / MANIFEST).read_bytes()
            if hashlib.sha256(manifest).hexdigest() != digest:
                raise BundleError("its manifest does not match its digest")
            return StoredBundle(name, decode_manifest(manifest).version, digest, folder)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, BundleError) as error:
            _log.warning("the last good bundle %s in %s cannot be used: %s", name, self.folder, error)
            return None

    def remember_address(self, url: str, name: str) -> None:
        """Record that ``url`` serves bundle ``name``.

        Raises:
            StorageError: the record could not be written.
        """
        write_atomically(self._address(url), _checked(name, IDENTIFIER).encode() + b"\n")

    def last_good_at(self, url: str) -> StoredBundle | None:
        """The last good bundle of the name recorded for ``url``."""
        try:
            name = self._address(url).read_text(encoding="ascii").strip()
            return self.last_good(_checked(name, IDENTIFIER))
        except (OSError, ValueError, BundleError):
            return None

    def _blob(self, name: str) -> Path:
        return self.blobs / _checked(name, _DIGEST)

    def _bundle(self, name: str, digest: str) -> Path:
        return self.folder / "bundles" / _checked(name, IDENTIFIER) / _checked(digest, _DIGEST)

    def _current(self, name: str) -> Path:
        return self.folder / "bundles" / _checked(name, IDENTIFIER) / "current"

    def _address(self, url: str) -> Path:
        return self.folder / "urls" / hashlib.sha256(base(url).encode()).hexdigest()


def _checked(name: str, pattern: re.Pattern[str]) -> str:
    """``name``, if it is safe as a part of a path. Raises BundleError otherwise."""
    if not pattern.fullmatch(name):
        raise BundleError(f"{name[:80]!r} cannot be the name of a bundle or a blob")
    return name


def _matches(path: Path, name: str) -> bool:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == name
    except FileNotFoundError:
        raise
    except OSError:  # an unreadable sector counts as a mismatch
        return False
