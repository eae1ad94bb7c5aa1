"""The bundles in a folder as they are on disk; changes are seen at the next request."""

from __future__ import annotations

import errno
import logging
import os
import re
import secrets
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

from device_sdk.bundles.bundle import BLOBS, MANIFEST, SIGNATURE, Bundle
from device_sdk.errors import BundleError, ManifestError
from device_sdk.files.atomic import storage_errors
from device_sdk.signing.release import KEYS_MAX_BYTES, RELEASE, RELEASE_MAX_BYTES, list_name
from device_sdk.signing.rollback import ROLLBACK, ROLLBACK_MAX_BYTES
from server.errors import NotFoundError, PublishError
from server.state.catalogue import BrokenBundle, Listing, ServedBundle, place_of

_log = logging.getLogger(__name__)

_OPEN_TRIES = 3  # a bundle that is replaced more often while it is read counts as broken
_VERSION_TRIES = 1000  # maximum number of folder names that are tried
_TAKEN = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)

_Stamp = tuple[tuple[int, int, int] | None, ...]


class FolderBundles:
    """The bundles in the subfolders of ``folder``, or ``folder`` itself as a bundle. Hidden folders are ignored.

    Thread-safe. A bundle is read again when its files have changed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()  # Flask resolves relative paths against its own root
        self._lock = threading.Lock()
        self._known: dict[Path, tuple[_Stamp, ServedBundle | BrokenBundle]] = {}

    @property
    def name(self) -> str:
        """The folder, for people."""
        return str(self._folder)

    @property
    def takes_bundles(self) -> bool:
        """False if the folder is a single bundle."""
        return not (self._folder / MANIFEST).exists()

    def check(self) -> None:
        """Raise StorageError unless the folder can be read."""
        with storage_errors(self._folder):
            os.listdir(self._folder)

    def listing(self) -> Listing:
        """The current bundles."""
        with self._lock:
            self._known = {folder: self._read(folder) for folder in self._folders()}
            return Listing.of(entry for _, entry in self._known.values())

    def find(self, name: str) -> ServedBundle:
        """The bundle of this name in its highest version (NotFoundError if there is none)."""
        return self.listing().versions(name)[0]

    def find_blob(self, name: str, blob: str) -> Path:
        """The file of a blob in any version of the bundle ``name`` (NotFoundError if there is none)."""
        return self.listing().with_blob(name, blob).bundle.blobs / blob

    def signed_url(self, name: str, blob: str) -> str | None:
        """None: devices fetch blobs from the server."""
        return None

    def find_key_list(self, name: str, number: int) -> bytes:
        """A key list for the bundle ``name``: from a folder of its own, or from the one that all bundles are in.

        Raises:
            NotFoundError: there is none.
        """
        own = [served.bundle.folder for served in self.listing().versions(name)]
        for folder in (*own, self._folder):
            data = _read_small(folder / list_name(number), KEYS_MAX_BYTES)
            if data is not None:
                return data
        raise NotFoundError(f"there is no key list {number}")

    def key_lists(self) -> Path:
        """The folder with the key lists of all bundles in its subfolder."""
        return self._folder

    def next_version(self, name: str) -> int:
        """The next version above all that are served, and whose folder does not exist."""
        first = 1 + max((bundle.version for bundle in self.listing().bundles.get(name, ())), default=0)
        candidates = range(first, first + _VERSION_TRIES)
        free = (one for one in candidates if not place_of(name, one, folder=self._folder).exists())
        return next(free, first)

    def publish(self, out: Path, *, name: str, version: int) -> None:
        """Move the bundle in ``out`` atomically into the served folder.

        Raises:
            PublishError: this version exists already.
            StorageError: it could not be moved.
        """
        target = place_of(name, version, folder=self._folder)
        served = [bundle.version for bundle in self.listing().bundles.get(name, ())]
        taken = PublishError(f"version {version} of {name} exists already", hint="publish it again")
        if version in served or target.exists():
            raise taken
        with storage_errors(target):
            try:
                os.rename(out, target)
            except OSError as error:
                if error.errno in _TAKEN and target.exists():
                    raise taken from error
                if error.errno != errno.EXDEV:
                    raise
                _copy(out, target)

    def remove(self, name: str, version: int) -> None:
        """Stop serving a version and delete it.

        Raises:
            NotFoundError: there is none, or it is the folder itself. StorageError.
        """
        folders = [one.bundle.folder for one in self.listing().bundles.get(name, ()) if one.version == version]
        if not folders or not self.takes_bundles:
            raise NotFoundError(f"there is no version {version} of {name} to remove")
        for folder in folders:
            hidden = folder.with_name(f".{folder.name}.removing.{secrets.token_hex(8)}")
            with storage_errors(folder):
                os.rename(folder, hidden)
            shutil.rmtree(hidden, ignore_errors=True)

    def close(self) -> None:
        """Nothing is held."""

    def _folders(self) -> Iterator[Path]:
        if not self.takes_bundles:
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

    def stamp_of(path: str) -> tuple[int, int, int] | None:
        try:
            status = os.stat(path)
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size

    # Strings: joining paths would take longer than the system does, and every request looks here.
    return tuple(stamp_of(f"{folder}/{name}") for name in (MANIFEST, SIGNATURE, RELEASE, ROLLBACK, BLOBS))


def _open(folder: Path) -> ServedBundle:
    for attempt in range(_OPEN_TRIES):
        bundle = Bundle.open(folder)
        release = _read_small(folder / RELEASE, RELEASE_MAX_BYTES)
        rollback = _read_small(folder / ROLLBACK, ROLLBACK_MAX_BYTES)
        try:
            return ServedBundle.of(bundle, release=release, rollback=rollback, blob_sizes=bundle.blob_sizes())
        except ManifestError:
            if attempt + 1 == _OPEN_TRIES:
                raise
    raise AssertionError("unreachable")


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


def _copy(out: Path, target: Path) -> None:
    """Across file systems: copy to a hidden folder, then rename, so that publishing is atomic."""
    hidden = target.with_name(f".{target.name}.publishing.{secrets.token_hex(8)}")
    _remove_leftovers(target)
    try:
        shutil.copytree(out, hidden)
        os.rename(hidden, target)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def _remove_leftovers(target: Path) -> None:
    """Delete the remains of killed copies to ``target``; one server at a time publishes into a folder."""
    ours = re.compile(rf"\.{re.escape(target.name)}\.publishing\.[0-9a-f]{{16}}")
    for path in target.parent.iterdir():
        if ours.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)
