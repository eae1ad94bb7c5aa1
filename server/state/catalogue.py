"""The bundles in a folder as they are on disk; changes are seen at the next request."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from device_sdk.bundles.bundle import BLOBS, MANIFEST, SIGNATURE, Bundle
from device_sdk.errors import BundleError, ManifestError
from device_sdk.signing.release import KEYS_MAX_BYTES, RELEASE, RELEASE_MAX_BYTES, list_name
from device_sdk.supernet.paths import architecture_count
from server.errors import NotFoundError

_log = logging.getLogger(__name__)

_OPEN_TRIES = 3  # a bundle that is replaced more often while it is read counts as broken

_Stamp = tuple[tuple[int, int, int] | None, ...]


@dataclass(frozen=True, eq=False)
class ServedBundle:
    """A bundle with the bytes of its manifest, signature and release, read together so that versions are never mixed.

    A release may be renewed at any time; it is verified by devices only.
    """

    bundle: Bundle
    manifest: bytes
    signature: bytes | None
    release: bytes | None
    blob_sizes: Mapping[str, int]
    architectures: int

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
    """A folder with a manifest that is not served, with the reason."""

    folder: str
    reason: str


@dataclass(frozen=True)
class Listing:
    """A snapshot of the folder. ``bundles``: by name, the highest version of each first."""

    bundles: Mapping[str, tuple[ServedBundle, ...]]
    broken: tuple[BrokenBundle, ...]

    @property
    def served(self) -> tuple[ServedBundle, ...]:
        """The highest version of each bundle, by name."""
        return tuple(versions[0] for _, versions in sorted(self.bundles.items()))


class Catalogue:
    """The bundles in the subfolders of ``folder``, or ``folder`` itself as a bundle. Hidden folders are ignored.

    Thread-safe. A bundle is read again when its files have changed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()  # Flask resolves relative paths against its own root
        self._lock = threading.Lock()
        self._known: dict[Path, tuple[_Stamp, ServedBundle | BrokenBundle]] = {}

    def listing(self) -> Listing:
        """The current bundles."""
        with self._lock:
            self._known = {folder: self._read(folder) for folder in self._folders()}
            entries = [entry for _, entry in self._known.values()]
        bundles: dict[str, list[ServedBundle]] = {}
        for entry in entries:
            if isinstance(entry, ServedBundle):
                bundles.setdefault(entry.name, []).append(entry)
        # Stable: of two folders with the same version, the last by name is always used.
        ordered = {
            name: tuple(sorted(reversed(versions), key=lambda entry: entry.version, reverse=True))
            for name, versions in bundles.items()
        }
        return Listing(ordered, tuple(entry for entry in entries if isinstance(entry, BrokenBundle)))

    def find(self, name: str) -> ServedBundle:
        """The bundle of this name in its highest version (NotFoundError if there is none)."""
        return self._versions(name)[0]

    def find_blob(self, name: str, blob: str) -> Path:
        """The file of a blob in any version of the bundle ``name``, so downloads of older versions can complete.

        Raises:
            NotFoundError: no such bundle, or no manifest of it names this blob.
        """
        for served in self._versions(name):
            if blob in served.blob_sizes:
                return served.bundle.blobs / blob
        raise NotFoundError(f"the bundle {name} has no such blob")

    def find_key_list(self, name: str, number: int) -> bytes:
        """A key list for the bundle ``name``: from its own folder, or from the one that all bundles are in.

        Raises:
            NotFoundError: there is none.
        """
        for folder in (self.find(name).bundle.folder, self._folder):
            data = _read_small(folder / list_name(number), KEYS_MAX_BYTES)
            if data is not None:
                return data
        raise NotFoundError(f"there is no key list {number}")

    def _versions(self, name: str) -> tuple[ServedBundle, ...]:
        try:
            return self.listing().bundles[name]
        except KeyError:
            raise NotFoundError("there is no such bundle", hint="GET /v1/bundles lists them") from None

    def _folders(self) -> Iterator[Path]:
        if (self._folder / MANIFEST).exists():
            yield self._folder
            return
        try:
            children = sorted(self._folder.iterdir())
        except OSError as error:
            _log.warning("cannot read %s: %s", self._folder, error.strerror)
            return
        yield from (child for child in children if not child.name.startswith(".") and (child / MANIFEST).exists())

    def _read(self, folder: Path) -> tuple[_Stamp, ServedBundle | BrokenBundle]:
        stamp = _stamp(folder)
        cached = self._known.get(folder)
        if cached is not None and cached[0] == stamp:
            return cached
        try:
            return stamp, _open(folder)
        except (BundleError, OSError) as error:
            reason = str(error).replace(str(self._folder), self._folder.name)
            _log.warning("%s is not served: %s", folder.name, error)
            return stamp, BrokenBundle(folder.name, reason)


def _stamp(folder: Path) -> _Stamp:
    """A value that changes whenever a file of the bundle is replaced, added or removed."""

    def stamp_of(path: Path) -> tuple[int, int, int] | None:
        try:
            status = path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size

    return tuple(stamp_of(folder / name) for name in (MANIFEST, SIGNATURE, RELEASE, BLOBS))


def _open(folder: Path) -> ServedBundle:
    for _ in range(_OPEN_TRIES):
        bundle = Bundle.open(folder)
        manifest = (folder / MANIFEST).read_bytes()
        signature = (folder / SIGNATURE).read_bytes() if bundle.has_signature else None
        release = _read_small(folder / RELEASE, RELEASE_MAX_BYTES)
        if hashlib.sha256(manifest).hexdigest() == bundle.digest:
            sizes, architectures = bundle.blob_sizes(), architecture_count(bundle.supernet)
            return ServedBundle(bundle, manifest, signature, release, sizes, architectures)
    raise ManifestError(f"{MANIFEST} was replaced repeatedly while it was read")


def _read_small(path: Path, max_bytes: int) -> bytes | None:
    """The contents; None if there is no such file, or if it has more bytes than devices would take."""
    try:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        if not isinstance(error, FileNotFoundError):
            _log.warning("cannot read %s: %s", path, error.strerror)
        return None
    if len(data) > max_bytes:
        _log.warning("%s is not served: it has more than %d bytes", path, max_bytes)
        return None
    return data
