"""What a device keeps of the bundles that it fetched.

```
blobs/<sha256>                            shared by all bundles and versions; verified before they get this name
bundles/<name>/<sha256>/manifest.json     a bundle by the digest of its manifest, with manifest.sig if it is signed
bundles/<name>/current                    the digest of the last good one
urls/<sha256 of the address>              the name of the bundle that the address led to
partial/                                  blobs on their way (see blob_writer)
```

Every file appears whole, by a rename. There are no locks: several processes may use one store at once.
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
    """The store in ``folder``, which is made when it is first written to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.blobs = folder / "blobs"
        self._partial = folder / "partial"

    def has_blob(self, name: str, size: int | None) -> bool:
        """Whether blob ``name`` is here, with ``size`` bytes where that is known. It was verified when it came."""
        try:
            actual = self._blob(name).stat().st_size
        except OSError:
            return False
        return size is None or actual == size

    def writer(self, name: str, *, max_bytes: int) -> BlobWriter:
        """Opens blob ``name`` for writing, of at most ``max_bytes``."""
        return BlobWriter(self._partial, name, self._blob(name), max_bytes=max_bytes)

    def remove_altered(self, names: Iterable[str]) -> tuple[str, ...]:
        """Read blobs and remove those that no longer match their digest (a broken disk): they are fetched again.

        Raises:
            StorageError: one could not be removed.
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
        """Remove what dead writers left of blobs that are here by now."""
        for path in list(orphans(self._partial)):
            if self.has_blob(path.name[:64], None):
                with contextlib.suppress(OSError):
                    path.unlink()

    def save_bundle(self, name: str, manifest: bytes, signature: bytes | None) -> Path:
        """Keep a verified manifest with its signature; returns their folder. Does not make it the last good one.

        Raises:
            StorageError: they could not be written.
        """
        folder = self._bundle(name, hashlib.sha256(manifest).hexdigest())
        if signature is not None:
            write_atomically(folder / SIGNATURE, signature)
        write_atomically(folder / MANIFEST, manifest)
        return folder

    def remember_good(self, name: str, digest: str) -> None:
        """The bundle with this digest works on this device: from now on it is what is fallen back to.

        Raises:
            BundleError: it is not in the store.
            StorageError: that could not be written.
        """
        if not (self._bundle(name, digest) / MANIFEST).is_file():
            raise BundleError(f"the store has no bundle {name} with digest {digest[:12]}…")
        write_atomically(self._current(name), digest.encode() + b"\n")

    def last_good(self, name: str) -> StoredBundle | None:
        """The bundle ``name`` that worked last, if there is one that can still be read."""
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
        """``url`` led to bundle ``name``.

        Raises:
            StorageError: that could not be written.
        """
        write_atomically(self._address(url), _checked(name, IDENTIFIER).encode() + b"\n")

    def last_good_at(self, url: str) -> StoredBundle | None:
        """The last good bundle of the name that ``url`` led to."""
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
    """``name``, now that it can be a part of a path."""
    if not pattern.fullmatch(name):
        raise BundleError(f"{name[:80]!r} cannot be the name of a bundle or a blob")
    return name


def _matches(path: Path, name: str) -> bool:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == name
    except FileNotFoundError:
        raise
    except OSError:  # a broken sector is as good as another byte
        return False
