"""Bundles in an object store that any number of servers share.

``blobs/SHA256`` holds blobs, manifests and signatures and is only ever created. ``bundles/NAME/VERSION.json`` is
created last and decides who has a version; ``latest/NAME.json`` points to the highest one and is moved by
compare-and-swap. So nothing is locked, and a publisher that dies leaves nothing that is served.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from device_sdk.bundles.bundle import MANIFEST, SIGNATURE, Bundle
from device_sdk.bundles.releasing import list_numbers
from device_sdk.errors import BlobError, BundleError, PathweaveError, StorageError
from device_sdk.files.atomic import write_if_changed
from device_sdk.signing.release import KEYS, KEYS_MAX_BYTES, RELEASE, RELEASE_MAX_BYTES, list_name
from device_sdk.signing.rollback import ROLLBACK, ROLLBACK_MAX_BYTES
from device_sdk.signing.signatures import SIGNATURE_BYTES
from server.errors import NotFoundError, PublishError
from server.state import version_record as records
from server.state.blob_cache import BlobCache
from server.state.catalogue import BrokenBundle, Listing, ServedBundle
from server.state.object_store import Entry, ObjectError, ObjectStore, Stored
from server.state.version_record import Pointer, VersionRecord

_log = logging.getLogger(__name__)

_REFRESH_S = 2.0
_RANGE_BYTES = 16 * 2**20
_SWAP_TRIES = 50
_URL_VALID_S = 900.0
_END_S = 1.0


@dataclass
class _Name:
    """A name as it was read last. ``tag``: of its pointer; ``tags``: of the objects of each version."""

    tag: str
    entries: dict[int, ServedBundle | BrokenBundle] = field(default_factory=dict)
    tags: dict[int, tuple[str, ...]] = field(default_factory=dict)


class ObjectBundles:
    """The bundles in ``store``, as they were at most two seconds ago. ``cache``: this server's folder.

    Thread-safe. A thread looks for changes; requests never wait for the store but for blobs that are not here yet.
    While the store is away, what is known is served.

    Raises:
        StorageError: the store cannot be read now.
    """

    takes_bundles = True

    def __init__(self, store: ObjectStore, cache: Path, *, cache_bytes: int, signed_urls: bool = False) -> None:
        self._store, self._signed_urls = store, signed_urls
        self._cache = cache.absolute()
        self._blobs = BlobCache(self._cache / "blobs", limit_bytes=cache_bytes)
        self._refreshing = threading.Lock()  # guards all that follows
        self._names: dict[str, _Name] = {}
        self._sizes: dict[str, int] = {}
        self._key_lists: dict[str, Stored] = {}
        self._listing, self._changed = Listing({}, ()), True
        self._closed = threading.Event()
        self.refresh()
        self._thread = threading.Thread(target=self._run, name="bundles", daemon=True)
        self._thread.start()

    @property
    def name(self) -> str:
        """The URL of the store."""
        return self._store.name

    def check(self) -> None:
        """Raise StorageError unless the store answers."""
        self._store.size(f"{records.POINTERS}/-")

    def close(self) -> None:
        """Stop looking for changes. Idempotent."""
        self._closed.set()
        self._thread.join(_END_S)  # it may be waiting for a store that is away

    def listing(self) -> Listing:
        """The bundles that are served, as they were read last."""
        return self._listing

    def find(self, name: str) -> ServedBundle:
        """The bundle of this name in its highest version (NotFoundError if there is none)."""
        return self._listing.versions(name)[0]

    def find_blob(self, name: str, blob: str) -> Path:
        """A verified file with a blob, fetched if it is not here.

        Raises:
            NotFoundError: no such bundle or blob. StorageError, BlobError.
        """
        self._listing.with_blob(name, blob)
        return self._fetched(blob)

    def signed_url(self, name: str, blob: str) -> str | None:
        """An address of a blob in the store, for a quarter of an hour; None unless the setting allows it."""
        self._listing.with_blob(name, blob)
        return self._store.signed_url(records.blob_key(blob), _URL_VALID_S) if self._signed_urls else None

    def find_key_list(self, name: str, number: int) -> bytes:
        """A key list for the bundle ``name``: its own, or the one of all bundles (NotFoundError if there is none)."""
        self.find(name)
        for key in (f"{records.records_of(name)}/{list_name(number)}", list_name(number)):
            if key in self._key_lists:
                return self._key_lists[key].data
        raise NotFoundError(f"there is no key list {number}")

    def key_lists(self) -> Path:
        """A folder with the key lists of all bundles, as they are in the store now."""
        for entry in self._store.list(KEYS):
            number = records.version_of(entry.key, ".json")
            found = None if number is None else self._store.read(list_name(number), max_bytes=KEYS_MAX_BYTES)
            if number is not None and found is not None:
                write_if_changed(self._cache / list_name(number), found.data)
        return self._cache

    def add_key_lists(self, folder: Path) -> list[str]:
        """Store the key lists of a served folder; those that are there stay. Returns the keys of the new ones.

        Raises:
            PublishError: the store has another list of that number.
        """
        return self._add_key_lists(folder, "")

    def next_version(self, name: str) -> int:
        """The next version above all that the store has."""
        return 1 + max(self._versions(name), default=0)

    def publish(self, out: Path, *, name: str, version: int) -> None:
        """Serve the bundle in ``out``. Repeatable: what is there is not sent again, a release is renewed.

        1. blobs, manifest, signature; 2. the record, which takes the version; 3. release and key lists; 4. the pointer.

        Raises:
            PublishError: another bundle has this version, or ``out`` another name or version. BundleError: it is
            damaged.
        """
        bundle = Bundle.open(out)
        if (bundle.manifest.name, bundle.manifest.version) != (name, version):
            raise PublishError(f"the bundle is {bundle.manifest.name} {bundle.manifest.version}, not {name} {version}")
        for blob, size in bundle.blob_sizes().items():
            self._send_blob(bundle, blob, size)
        digests = {file: self._send(path.read_bytes()) for file, path in records.files_of(bundle).items()}
        record = records.record_of(bundle, signature=digests.get(SIGNATURE))
        key, data = records.record_key(name, version), msgspec.json.encode(record)
        if not self._store.create(key, data):
            present = self._store.read(key, max_bytes=records.RECORD_MAX_BYTES)
            if present is None or present.data != data:
                raise PublishError(f"version {version} of {name} exists already", hint="publish it as another version")
        for file, key_of in ((RELEASE, records.release_key), (ROLLBACK, records.rollback_key)):
            if (out / file).exists():
                self._replace(key_of(name, version), (out / file).read_bytes())
        self._add_key_lists(out, f"{records.records_of(name)}/")
        self._move_pointer(name)
        self.refresh()

    def remove(self, name: str, version: int) -> None:
        """Stop serving a version. Its blobs stay: other bundles may have them.

        Raises:
            NotFoundError: there is none.
        """
        if version not in self._versions(name):
            raise NotFoundError(f"there is no version {version} of {name} to remove")
        self._store.delete(records.record_key(name, version))
        self._store.delete(records.release_key(name, version))
        self._store.delete(records.rollback_key(name, version))
        self._move_pointer(name)
        self.refresh()

    def verify(self, name: str, version: int) -> int:
        """Read a version back from the store and check all digests; returns its bytes.

        Raises:
            StorageError: something is missing. BlobError: something is altered.
        """
        record = self._record(name, version)
        sizes = {**record.blobs, record.manifest: record.manifest_bytes}
        if record.signature is not None:
            sizes[record.signature] = SIGNATURE_BYTES
        for blob, size in sizes.items():
            digest = hashlib.sha256()
            for part in self._read(blob, size):
                digest.update(part)
            if digest.hexdigest() != blob:
                raise StorageError(f"{blob[:12]}… in {self.name} does not match its digest")
        return sum(sizes.values())

    def refresh(self) -> None:
        """Read what has changed in the store."""
        with self._refreshing:
            pointers = [(records.named_by(entry.key), entry) for entry in self._store.list(records.POINTERS)]
            present = {name: entry for name, entry in pointers if name is not None}
            self._changed = self._changed or self._names.keys() != present.keys()
            self._names = {name: known for name, known in self._names.items() if name in present}
            for name, entry in present.items():
                if name not in self._names or self._names[name].tag != entry.tag:
                    self._refresh_name(name)
                    self._changed = True
            self._refresh_key_lists("", self._store.list(KEYS))
            if self._changed:
                self._listing = Listing.of(
                    entry for _, known in sorted(self._names.items()) for _, entry in sorted(known.entries.items())
                )
                self._sizes = {blob: size for one in self._served() for blob, size in one.blob_sizes.items()}
                self._changed = False

    def _served(self) -> Iterator[ServedBundle]:
        for versions in self._listing.bundles.values():
            yield from versions

    def _refresh_name(self, name: str) -> None:
        found = self._store.read(records.pointer_key(name), max_bytes=records.POINTER_MAX_BYTES)
        if found is None:
            self._names.pop(name, None)
            return
        entries = list(self._store.list(records.records_of(name)))
        self._refresh_key_lists(f"{records.records_of(name)}/", entries)
        known, tags, fresh = self._names.get(name), _versions_of(name, entries), _Name(found.tag)
        try:
            latest = records.decoded(found.data, Pointer, records.pointer_key(name)).version
        except ObjectError as error:
            latest, fresh.entries[0] = 0, _broken(name, str(error))
        for version in (one for one in tags if one <= latest):
            fresh.tags[version] = tags[version]
            if known is not None and known.tags.get(version) == tags[version]:
                fresh.entries[version] = known.entries[version]
            else:
                fresh.entries[version] = self._open(name, version)
        self._names[name] = fresh

    def _open(self, name: str, version: int) -> ServedBundle | BrokenBundle:
        try:
            return self._opened(name, version)
        except (BundleError, PublishError, ObjectError) as error:
            return _broken(f"{name} {version}", str(error).replace(str(self._cache), ""))

    def _opened(self, name: str, version: int) -> ServedBundle:
        """A version whose manifest and signature are here, verified."""
        record = self._record(name, version)
        folder = self._cache / "versions" / hashlib.sha256(msgspec.json.encode(record)).hexdigest()
        write_if_changed(folder / MANIFEST, self._small(record.manifest, record.manifest_bytes))
        if record.signature is not None:
            write_if_changed(folder / SIGNATURE, self._small(record.signature, SIGNATURE_BYTES))
        release = self._store.read(records.release_key(name, version), max_bytes=RELEASE_MAX_BYTES)
        rollback = self._store.read(records.rollback_key(name, version), max_bytes=ROLLBACK_MAX_BYTES)
        self._sizes |= record.blobs
        bundle = Bundle.open(folder, blobs=self._blobs.folder, fetch=self._fetched)
        if (bundle.manifest.name, bundle.manifest.version) != (name, version):
            raise PublishError(f"its manifest says {bundle.manifest.name} {bundle.manifest.version}")
        return ServedBundle.of(
            bundle,
            release=None if release is None else release.data,
            rollback=None if rollback is None else rollback.data,
            blob_sizes=record.blobs,
        )

    def _record(self, name: str, version: int) -> VersionRecord:
        key = records.record_key(name, version)
        found = self._store.read(key, max_bytes=records.RECORD_MAX_BYTES)
        if found is None:
            raise ObjectError(f"{key} is missing from {self.name}")
        return records.decoded(found.data, VersionRecord, key)

    def _small(self, digest: str, size: int) -> bytes:
        """The verified bytes of a manifest or a signature."""
        data = b"".join(self._read(digest, size))
        if hashlib.sha256(data).hexdigest() != digest:
            raise BundleError(f"{digest[:12]}… in {self.name} does not match its digest")
        return data

    def _refresh_key_lists(self, folder: str, entries: Iterable[Entry]) -> None:
        """Read the key lists of a folder that are new; they never change."""
        for entry in entries:
            number = records.version_of(entry.key, ".json")
            if number is None or entry.key != folder + list_name(number) or entry.key in self._key_lists:
                continue
            found = self._store.read(entry.key, max_bytes=KEYS_MAX_BYTES) if entry.size <= KEYS_MAX_BYTES else None
            if found is not None:
                self._key_lists[entry.key] = found

    def _versions(self, name: str) -> dict[int, tuple[str, ...]]:
        """The versions of a name that have a record, with the tags of record, release and rollback."""
        return _versions_of(name, self._store.list(records.records_of(name)))

    def _fetched(self, blob: str) -> Path:
        """The verified file of a blob, from the store if it is not here."""
        present = self._blobs.path(blob)
        if present is not None:
            return present
        with self._blobs.turn(blob):
            size = self._sizes.get(blob)
            if size is None:
                raise BlobError(f"blob {blob[:12]}… is no longer in {self.name}")
            return self._blobs.path(blob) or self._blobs.add(blob, self._read(blob, size))

    def _read(self, digest: str, size: int) -> Iterator[bytes]:
        """An object of known size, in parts; not verified yet."""
        for start in range(0, size, _RANGE_BYTES):
            yield self._store.read_range(records.blob_key(digest), start, min(size, start + _RANGE_BYTES))

    def _send_blob(self, bundle: Bundle, blob: str, size: int) -> None:
        """Send a blob unless it is there: none that has its digest could be another."""
        key = records.blob_key(blob)
        stored = self._store.size(key)
        if stored is None and not self._store.create(key, bundle.read_blob(blob)):
            stored = self._store.size(key)
        if stored not in (None, size):
            raise StorageError(f"{key} in {self.name} has {stored} bytes instead of {size}", hint="delete that object")

    def _send(self, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        self._store.create(records.blob_key(digest), data)
        return digest

    def _replace(self, key: str, data: bytes) -> None:
        for _ in range(_SWAP_TRIES):
            present = self._store.read(key, max_bytes=records.RECORD_MAX_BYTES)
            if present is not None and present.data == data:
                return
            if self._store.swap(key, data, tag=None if present is None else present.tag):
                return
        raise StorageError(f"{key} in {self.name} is changed all the time")

    def _move_pointer(self, name: str) -> None:
        """Point to the highest version. What was published or removed since the pointer was read makes it try again."""
        key = records.pointer_key(name)
        for _ in range(_SWAP_TRIES):
            present = self._store.read(key, max_bytes=records.POINTER_MAX_BYTES)
            revision = 0 if present is None else records.decoded(present.data, Pointer, key).revision
            pointer = Pointer(version=max(self._versions(name), default=0), revision=revision + 1)
            if self._store.swap(key, msgspec.json.encode(pointer), tag=None if present is None else present.tag):
                return
        raise StorageError(f"{key} in {self.name} is changed all the time")

    def _add_key_lists(self, folder: Path, prefix: str) -> list[str]:
        added = []
        for number in list_numbers(folder / KEYS, "json"):
            key, data = prefix + list_name(number), (folder / list_name(number)).read_bytes()
            if self._store.create(key, data):
                added.append(key)
                continue
            present = self._store.read(key, max_bytes=KEYS_MAX_BYTES)
            if present is None or present.data != data:
                raise PublishError(f"{self.name} has another key list {number}")
        return added

    def _run(self) -> None:
        away = False
        while not self._closed.wait(_REFRESH_S):
            try:
                self.refresh()
                away = False
            except PathweaveError as error:
                if not away:
                    _log.warning("looking for new bundles failed: %s", error)
                away = True
            except Exception:
                _log.exception("looking for new bundles failed")


def _broken(what: str, reason: str) -> BrokenBundle:
    _log.warning("%s is not served: %s", what, reason)
    return BrokenBundle(what, reason)


def _versions_of(name: str, entries: Iterable[Entry]) -> dict[int, tuple[str, ...]]:
    tags = {entry.key: entry.tag for entry in entries}
    found = {}
    for key, tag in tags.items():
        version = records.version_of(key, ".json")
        if version is not None and key == records.record_key(name, version):
            renewed = (records.release_key(name, version), records.rollback_key(name, version))
            found[version] = tag, *(tags.get(one, "") for one in renewed)
    return found
