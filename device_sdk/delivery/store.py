"""The store of fetched bundles: leases, and collecting what is not used."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from device_sdk.bundles.bundle import MANIFEST, SIGNATURE
from device_sdk.bundles.manifest_reading import decode_manifest
from device_sdk.delivery.blob_writer import BlobWriter, orphans
from device_sdk.delivery.marks import ADDRESSES_MAX, Mark, decode_mark, encode_mark, refuse_other_name, refuse_rollback
from device_sdk.errors import BundleError
from device_sdk.files.atomic import remove_temporaries, storage_errors, write_if_changed
from device_sdk.files.locks import Lease, exclusive, shared, try_exclusive
from device_sdk.signing.release import KEYS, RELEASE
from device_sdk.supernet.blocks import IDENTIFIER
from device_sdk.transports.port import base

_DIGEST = re.compile(r"[0-9a-f]{64}")  # what a store names its blobs and bundles by; anything else is not its own

_log = logging.getLogger(__name__)


def collect(store: BundleStore) -> int:
    """Delete what no bundle needs, unless another process fetches or tests one now; returns the bytes of its blobs.

    A bundle stays that a record refers to (current, previous, mark), and one that a process has open (a lease). If the
    manifest of one of these cannot be read, all blobs stay. Errors of the disk are ignored: the next call tries again.
    """
    if not store.bundles.is_dir():
        return 0
    with try_exclusive(store.folder / "installing") as alone:
        if not alone:
            return 0
        for path in list(orphans(store.partial)):
            _delete(path)
        remove_temporaries(store.folder / KEYS)
        kept = [folder for name in store.names() for folder in _kept_bundles(store, name)]
        return _collect_blobs(store, kept)


def _kept_bundles(store: BundleStore, name: str) -> list[Path]:
    """The folders that stay; deletes the others."""
    parent, needed = store.bundles / name, store.digests_of(name)
    remove_temporaries(parent)
    kept = []
    for folder in [path for path in parent.iterdir() if path.is_dir() and _DIGEST.fullmatch(path.name)]:
        with try_exclusive(folder) as unused:
            if folder.name in needed or not unused:
                remove_temporaries(folder)
                kept.append(folder)
            else:
                shutil.rmtree(folder, ignore_errors=True)
    return kept


def _collect_blobs(store: BundleStore, bundles: list[Path]) -> int:
    needed: set[str] = set()
    for folder in bundles:
        try:
            needed.update(decode_manifest((folder / MANIFEST).read_bytes()).blobs())
        except (OSError, BundleError) as error:
            _log.warning("blobs stay, since %s cannot be read: %s", folder / MANIFEST, error)
            return 0
    freed_bytes = 0
    with contextlib.suppress(OSError):
        for path in list(store.blobs.iterdir()):
            if path.name not in needed and _DIGEST.fullmatch(path.name):
                freed_bytes += _delete(path)
    return freed_bytes


def _delete(path: Path) -> int:
    """Delete a file; returns its size, or 0 if that failed."""
    try:
        size = path.stat().st_size
        path.unlink()
    except OSError:
        return 0
    return size


CURRENT, PREVIOUS, MARKS = "current", "previous", ("mark.copy", "mark")


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
        self.bundles = folder / "bundles"
        self.partial = folder / "partial"

    # Blobs

    def has_blob(self, name: str, size: int | None) -> bool:
        """True if blob ``name`` is stored, with ``size`` bytes if given. Its digest was verified when it was stored."""
        try:
            actual = self._blob(name).stat().st_size
        except OSError:
            return False
        return size is None or actual == size

    def writer(self, name: str, *, max_bytes: int) -> BlobWriter:
        """A writer for blob ``name`` of at most ``max_bytes``."""
        return BlobWriter(self.partial, name, self._blob(name), max_bytes=max_bytes)

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

    # Bundles

    def save_bundle(self, name: str, manifest: bytes, signature: bytes | None, release: bytes | None = None) -> Path:
        """Store a verified manifest with its signature; returns their folder. It does not become the last good one.

        ``release``: release.json, if it was verified by that.

        Raises:
            StorageError: they could not be written.
        """
        folder = self._bundle(name, hashlib.sha256(manifest).hexdigest())
        for file, data in ((SIGNATURE, signature), (RELEASE, release)):
            if data is not None:
                write_if_changed(folder / file, data)
        write_if_changed(folder / MANIFEST, manifest)
        return folder

    def remember_good(
        self, url: str, name: str, digest: str, *, allow_rollback: bool = False, rollback_from: int | None = None
    ) -> None:
        """Make the bundle with this digest the last good one of ``url``, the fallback of later downloads.

        Nothing is written that is there already. ``allow_rollback`` lowers the mark. ``rollback_from``: a signed
        rollback permits it to devices that have had this version at most; the mark stays where it is.

        Raises:
            BundleError: it is not in the store, or ``url`` has another name.
            RollbackError: a newer version has become the last good one; not if ``allow_rollback``.
            StorageError: the record could not be written.
        """
        stored = self._load(name, digest)
        if stored is None:
            raise BundleError(f"the store has no bundle {name} with digest {digest[:12]}…")
        with self.writing():
            had = self.highest(name)
            rolled_back = rollback_from is not None and had is not None and had.version <= rollback_from
            self.refuse(url, name, stored.version, digest, allow_rollback=allow_rollback or rolled_back)
            replaced = self._read_digest(name, CURRENT)
            if replaced not in (None, digest):
                write_if_changed(self.folder_of(name) / PREVIOUS, f"{replaced}\n".encode())
            write_if_changed(self.folder_of(name) / CURRENT, f"{digest}\n".encode())
            marks = [mark for mark in (had, self._mark(name)) if mark is not None]
            mark = max(marks, key=lambda one: one.version, default=None)
            data = encode_mark(self._raised(mark, url, stored, lower=allow_rollback, rolled_back=rolled_back))
            for copy in MARKS:  # last: until then a mark is too low, never too high
                write_if_changed(self.folder_of(name) / copy, data)

    def refuse(self, url: str, name: str, version: int, digest: str, *, allow_rollback: bool = False) -> None:
        """Refuse a bundle that may not be installed from ``url``: by its name, or, unless allowed, by the mark.

        Raises:
            BundleError, RollbackError: refused (see ``marks``).
        """
        source = base(url)
        refuse_other_name(self._pinned(url), name=name, source=source)
        if not allow_rollback:
            refuse_rollback(self.highest(name), name=name, version=version, digest=digest, source=source)

    def highest(self, name: str) -> Mark | None:
        """The mark of bundle ``name``, or the current bundle where that is newer: it is written first."""
        mark = self._mark(name)
        digest = self._read_digest(name, CURRENT)
        if digest is None or (mark is not None and digest == mark.digest):
            return mark
        current = self._load(name, digest)
        if current is not None and (mark is None or current.version > mark.version):
            known = () if mark is None else mark.addresses
            return Mark(name, current.version, current.digest, known)
        return mark

    def last_good(self, name: str, *, allow_rollback: bool = False) -> StoredBundle | None:
        """The last good bundle ``name``; None if there is none or it cannot be read.

        The first that is whole: the current one, the one of the mark, the previous one. None that is below the mark,
        unless ``allow_rollback``.
        """
        mark = self._mark(name)
        digests = [self._read_digest(name, CURRENT), mark.digest if mark else None, self._read_digest(name, PREVIOUS)]
        for digest in dict.fromkeys(one for one in digests if one is not None):
            stored = self._load(name, digest)
            if stored is None:
                continue
            below = mark is not None and stored.version < mark.version and digest != mark.rolled_back_to
            if mark is not None and below and not allow_rollback:
                _log.warning("version %d of %s is here, but this device has had %d", stored.version, name, mark.version)
                continue
            return stored
        return None

    def last_good_at(self, url: str, *, allow_rollback: bool = False) -> StoredBundle | None:
        """The last good bundle of the name that ``url`` had at first."""
        name = self._pinned(url)
        return None if name is None else self.last_good(name, allow_rollback=allow_rollback)

    # Locks

    def installing(self) -> AbstractContextManager[None]:
        """Held while a bundle is fetched and tested: no process deletes blobs or bundles until it is released.

        Raises:
            StorageError: another process deletes what no bundle needs, and does not end.
        """
        return shared(self.folder / "installing")

    def lease(self, name: str, digest: str) -> Lease:
        """Until it is closed, no process deletes this bundle or its blobs."""
        return Lease(self._bundle(name, digest))

    def writing(self) -> AbstractContextManager[None]:
        """Held while records are compared and written."""
        return exclusive(self.folder / "lock")

    # Records

    def names(self) -> Iterator[str]:
        """The names of all bundles."""
        with contextlib.suppress(OSError):
            for path in sorted(self.bundles.iterdir()):
                if IDENTIFIER.fullmatch(path.name):
                    yield path.name

    def digests_of(self, name: str) -> set[str]:
        """The digests that the records of bundle ``name`` refer to."""
        mark = self._mark(name)
        found = {self._read_digest(name, CURRENT), self._read_digest(name, PREVIOUS), mark.digest if mark else None}
        return {digest for digest in found if digest is not None}

    def _raised(self, mark: Mark | None, url: str, stored: StoredBundle, *, lower: bool, rolled_back: bool) -> Mark:
        """The mark with ``stored``. Where there are no locks, another process may have raised it since the check."""
        known = () if mark is None else mark.addresses
        addresses = tuple(dict.fromkeys((*known, _address(url))))[-ADDRESSES_MAX:]
        if mark is not None and mark.version > stored.version and not lower:
            back = stored.digest if rolled_back else mark.rolled_back_to
            return Mark(mark.name, mark.version, mark.digest, addresses, back)
        return Mark(stored.name, stored.version, stored.digest, addresses)

    def _pinned(self, url: str) -> str | None:
        """The name of the bundle that was installed from ``url``; None if there was none."""
        address = _address(url)
        for name in self.names():
            mark = self._mark(name)
            if mark is not None and address in mark.addresses:
                return name
        return self._name_in_old_record(address)

    def _name_in_old_record(self, address: str) -> str | None:
        """From a store of Pathweave before marks: ``urls/<sha256 of the address>`` has the name."""
        try:
            name = (self.folder / "urls" / address).read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            return None
        return name if IDENTIFIER.fullmatch(name) and self._read_digest(name, CURRENT) is not None else None

    def _mark(self, name: str) -> Mark | None:
        """The higher of the two copies that can be read; None if neither can."""
        marks = []
        for copy in MARKS:
            path = self.folder_of(name) / copy
            try:
                mark = decode_mark(path.read_bytes())
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                _log.warning("%s is damaged: %s", path, error)
                continue
            if mark.name == name:
                marks.append(mark)
        return max(marks, key=lambda mark: mark.version, default=None)

    def _read_digest(self, name: str, record: str) -> str | None:
        path = self.folder_of(name) / record
        try:
            digest = path.read_text(encoding="ascii").strip()
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            digest = ""
        if _DIGEST.fullmatch(digest):
            return digest
        _log.warning("%s is damaged", path)
        return None

    def _load(self, name: str, digest: str) -> StoredBundle | None:
        """A stored bundle whose manifest is whole, else None."""
        folder = self._bundle(name, digest)
        try:
            manifest = (folder / MANIFEST).read_bytes()
            if hashlib.sha256(manifest).hexdigest() != digest:
                raise BundleError("its manifest does not match its digest")
            return StoredBundle(name, decode_manifest(manifest).version, digest, folder)
        except (OSError, BundleError) as error:
            _log.warning("bundle %s %s… in %s cannot be used: %s", name, digest[:12], self.folder, error)
            return None

    def _blob(self, name: str) -> Path:
        return self.blobs / _checked(name, _DIGEST)

    def _bundle(self, name: str, digest: str) -> Path:
        return self.folder_of(name) / _checked(digest, _DIGEST)

    def folder_of(self, name: str) -> Path:
        """The folder of bundle ``name`` and its records."""
        return self.bundles / _checked(name, IDENTIFIER)


def _address(url: str) -> str:
    return hashlib.sha256(base(url).encode()).hexdigest()


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
