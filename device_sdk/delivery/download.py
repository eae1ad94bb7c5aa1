"""Downloads a bundle to the store, or falls back to the last good one."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from device_sdk.bundles.bundle import MANIFEST, MANIFEST_MAX_BYTES, SIGNATURE
from device_sdk.bundles.held_part import ChoosePart, everything
from device_sdk.bundles.manifest import Manifest
from device_sdk.bundles.manifest_reading import decode_manifest
from device_sdk.bundles.runnable import RenditionFilter, part_with_exits, runnable_part
from device_sdk.delivery.assignment import (
    ASSIGNMENT,
    ASSIGNMENT_MAX_BYTES,
    VERSIONS,
    Assignment,
    asking_headers,
    decode_assignment,
)
from device_sdk.delivery.blobs import BlobFetcher, Tally, missing_blobs
from device_sdk.delivery.key_lists import fetch_lists
from device_sdk.delivery.refusals import Offered, Refusal
from device_sdk.delivery.rollbacks import require_rollback
from device_sdk.delivery.schedule import Schedule
from device_sdk.delivery.store import BundleStore, StoredBundle
from device_sdk.delivery.time_marks import raise_time_mark
from device_sdk.errors import (
    PathweaveError,
    ProtocolError,
    RefusedError,
    SignatureError,
    TransferError,
    UsageError,
)
from device_sdk.progress import Progress, SilentProgress
from device_sdk.signing import signatures
from device_sdk.signing.release import (
    RELEASE,
    RELEASE_MAX_BYTES,
    Release,
    require_same_manifest,
    require_same_name,
    require_unexpired,
)
from device_sdk.signing.trust import SignedParts, Trust, Trustable, TrustedKeys, load_trust
from device_sdk.transports.port import Clock, Deadlines, Transport, base, require_success

ATTEMPTS = 5
REPLACED_TRIES = 3  # restarts after the server has replaced the bundle during the download
SIGNATURE_MAX_BYTES = 1024  # a signature has 64; the rest is for error pages
DEADLINES = Deadlines(idle_s=10.0, total_s=600.0)  # of the first download
UPDATE_DEADLINES = Deadlines(idle_s=5.0, total_s=20.0)  # where the last good bundle can open instead

_RELEASE = "who publishes the bundle makes it: pathweave sign release sign"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Delivered:
    """A bundle in the store, ready for ``Bundle.open(folder, blobs=blobs, trust=…)``.

    ``source``: ``unchanged``: the server still has the last good bundle; ``kept``: fetching failed, so it is the last
    good bundle, and ``failure`` is the reason in one line. ``resumed``: number of resumed transfers. ``rollback_from``:
    of the signed rollback that permits this version, if one was needed. ``refused``: what was offered instead.
    """

    folder: Path
    blobs: Path
    name: str
    digest: str
    version: int
    source: Literal["downloaded", "unchanged", "kept"]
    blobs_fetched: int
    bytes_fetched: int
    resumed: int
    failure: str | None = None
    rollback_from: int | None = None
    refused: Refusal | None = None


def fetch_bundle(
    url: str,
    store: BundleStore,
    transport: Transport,
    *,
    trust: Trustable,
    allow_rollback: bool = False,
    accepts: RenditionFilter | None = None,
    part: ChoosePart = everything,
    device: str | None = None,
    tags: Mapping[str, str] | None = None,
    deadlines: Deadlines = DEADLINES,
    update_deadlines: Deadlines = UPDATE_DEADLINES,
    attempts: int = ATTEMPTS,
    progress: Progress | None = None,
    sleep: Callable[[float], None] = time.sleep,
    clock: Clock = time.monotonic,
    wall_clock: Callable[[], float] = time.time,
) -> Delivered:
    """Fetch the bundle at ``url`` to the ``store``; on failure, return the last good bundle of that URL.

    With a ``device``: 0. ask which version is this device's, with its ``tags`` (None: those of before); a server that
    rolls nothing out answers 404, and the highest version comes. 1. fetch manifest.json and manifest.sig; 2. verify the
    signature over the exact bytes, then parse them. With key lists instead: newer lists, release.json, and the manifest
    that it names, unless something has expired; 3. refuse another name than this URL had at first, a version below the
    high-water mark without a signed rollback to it, and other bytes under the version of the mark; 4. fetch the blobs
    that are not in the store, each verified before it is stored; 5. store manifest and signature.

    The result is not yet the last good bundle: call ``store.remember_good(url, name, digest)`` after its self-test
    passed, with its ``rollback_from``. ``accepts``, ``part``: only the blobs of the accepted renditions and of this
    part are fetched; open the bundle with the same. ``part`` is asked once the manifest is verified, before any blob is
    fetched.

    ``deadlines.idle_s`` is per request, ``total_s`` for the whole delivery; ``update_deadlines`` hold instead where
    there is a last good bundle. It fails after ``attempts`` consecutive attempts without a new byte, and below the
    minimum rate (``schedule``). If the server replaces the bundle during the transfer, the download restarts; verified
    blobs are kept. ``wall_clock``: seconds since 1970, for what expires.

    Raises:
        UsageError: ``url`` is not an address, or the tags cannot be sent.
        BundleError (refused), TransferError (not received), StorageError, RuntimeFailedError (``accepts`` refuses all
            renditions of an original block): and there is no last good bundle.
    """
    url = base(url)
    good = store.last_good_at(url, allow_rollback=allow_rollback)
    limits = deadlines if good is None else update_deadlines
    schedule = Schedule(limits.idle_s, clock() + limits.total_s, attempts, sleep, clock)
    shown = progress or SilentProgress()
    trusted = load_trust(trust)
    asks = None if device is None else asking_headers(device, tags)
    delivery = _Delivery(
        url,
        store,
        transport,
        trusted,
        allow_rollback,
        accepts,
        part,
        asks,
        schedule,
        wall_clock,
        shown,
        Tally(),
        Offered(),
    )
    try:
        return delivery.ask().run()
    except UsageError:
        raise
    except PathweaveError as error:
        good = store.last_good_at(url, allow_rollback=allow_rollback)
        if good is None:
            raise
        _log.warning("%s: %s; the last good version, %d, stays in use", url, error, good.version)
        return delivery.kept(good, error)


@dataclass(frozen=True)
class _Fetched:
    """A verified manifest."""

    manifest: Manifest
    data: bytes
    signature: bytes | None
    release: bytes | None = None

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


@dataclass(frozen=True)
class _Delivery:
    url: str
    store: BundleStore
    transport: Transport
    trust: Trust | None
    allow_rollback: bool
    accepts: RenditionFilter | None
    part: ChoosePart
    asks: Mapping[str, str] | None
    schedule: Schedule
    wall_clock: Callable[[], float]
    progress: Progress
    tally: Tally
    offer: Offered
    assigned: Assignment | None = None

    @property
    def place(self) -> str:
        """The address that files are fetched from; ``url`` stays what the bundle is known by."""
        return self.url if self.assigned is None else f"{self.url}/{VERSIONS}/{self.assigned.version}"

    def ask(self) -> _Delivery:
        """The delivery of the version that is assigned to this device, if the server assigns any."""
        if self.asks is None:
            return self
        try:
            data = self._fetch_small(ASSIGNMENT, ASSIGNMENT_MAX_BYTES, self.asks)
        except RefusedError as error:
            if error.status == 404:
                return self
            raise
        assigned = decode_assignment(data)
        self.offer.version = assigned.version
        return replace(self, assigned=assigned)

    def run(self) -> Delivered:
        """The steps of ``fetch_bundle``, restarted if the server replaced the bundle in between."""
        for turn in range(REPLACED_TRIES):
            fetched = self._fetch_signed()  # 1, 2
            rollback_from = self._refuse(fetched)  # 3
            try:
                self._fetch_blobs(fetched.manifest.name, self._wanted(fetched))  # 4
            except RefusedError as error:
                if error.status != 404 or turn == REPLACED_TRIES - 1:
                    raise
                self.schedule.pause(turn)
            else:
                return replace(self._keep(fetched), rollback_from=rollback_from)  # 5
        raise TransferError(f"{self.url} was replaced again and again while it was fetched")

    def kept(self, good: StoredBundle, error: PathweaveError) -> Delivered:
        """The last good bundle as the result, with the reason."""
        refused = self.offer.refused(error, kept_version=good.version, kept_digest=good.digest)
        return replace(self._delivered(good, "kept"), failure=str(error), refused=refused)

    def _fetch_signed(self) -> _Fetched:
        return self._fetch_released(self.trust) if isinstance(self.trust, TrustedKeys) else self._fetch_manifest()

    def _fetch_released(self, trust: TrustedKeys) -> _Fetched:
        """The manifest of the release, verified from the pinned key list on.

        The server may replace any of them between the requests, so what does not match is fetched again.
        """
        for turn in range(REPLACED_TRIES):
            try:
                trust = fetch_lists(trust, self.store, self._fetch_small)
                release_data, release = self._fetch_release(trust)
                data = self._fetch_small(MANIFEST, MANIFEST_MAX_BYTES)
                require_same_manifest(release, data)
            except SignatureError:
                if turn == REPLACED_TRIES - 1:
                    raise
                self.schedule.pause(turn)
            else:
                manifest = decode_manifest(data)
                require_same_name(release, manifest.name, manifest.version)
                return _Fetched(manifest, data, None, release_data)
        raise SignatureError(f"{self.url} has no manifest with a release of its own")

    def _fetch_release(self, trust: TrustedKeys) -> tuple[bytes, Release]:
        """A release that may be installed now; its time is remembered, whether it may or not."""
        try:
            data = self._fetch_small(RELEASE, RELEASE_MAX_BYTES)
        except RefusedError as error:
            if error.status == 404:
                raise SignatureError(f"{self.url} has no {RELEASE}, but a key list was given", hint=_RELEASE) from error
            raise
        release = trust.release(data)
        mark = raise_time_mark(self.store, release, trust.newest, allow_rollback=self.allow_rollback)
        require_unexpired(release, trust.newest, clock_s=self.wall_clock(), mark=mark)
        return data, release

    def _fetch_manifest(self) -> _Fetched:
        """A manifest with its signature.

        The server may replace both between the two requests, so a pair that does not verify is fetched again.
        """
        for turn in range(REPLACED_TRIES):
            data = self._fetch_small(MANIFEST, MANIFEST_MAX_BYTES)
            signature = self._fetch_signature()
            try:
                self._check_signature(data, signature)
            except SignatureError:
                if turn == REPLACED_TRIES - 1:
                    raise
                self.schedule.pause(turn)
            else:
                return _Fetched(decode_manifest(data), data, signature)
        raise SignatureError(f"{self.url} has no manifest with a signature of its own")

    def _fetch_signature(self) -> bytes | None:
        try:
            return self._fetch_small(SIGNATURE, SIGNATURE_MAX_BYTES)
        except RefusedError as error:
            if error.status == 404:
                return None
            raise

    def _check_signature(self, data: bytes, signature: bytes | None) -> None:
        if signature is not None and len(signature) != signatures.SIGNATURE_BYTES:
            raise SignatureError(f"{SIGNATURE} has {len(signature)} bytes instead of {signatures.SIGNATURE_BYTES}")
        if self.trust is not None:
            self.trust.verify(SignedParts(self.url, data, signature, None))

    def _fetch_small(self, name: str, max_bytes: int, headers: Mapping[str, str] | None = None) -> bytes:
        def request(deadlines: Deadlines) -> bytes:
            address = f"{self.place}/{name}"
            data = bytearray()
            with self.transport.send(
                "GET", address, headers=headers, deadlines=deadlines, max_bytes=max_bytes
            ) as reply:
                require_success(reply, what=address)
                for chunk in reply.chunks():
                    data += chunk
                    self.schedule.rate.received(len(chunk))
            return bytes(data)

        return self.schedule.retry(request)

    def _refuse(self, fetched: _Fetched) -> int | None:
        """Refuse what may not be installed. Returns the version that a signed rollback is from, if one was needed."""
        name, version, digest = fetched.manifest.name, fetched.manifest.version, fetched.digest
        self.offer.version, self.offer.digest = version, digest
        if self.assigned is not None and version != self.assigned.version:
            raise ProtocolError(f"{self.place} has version {version} of {name}")
        mark = self.store.highest(name)
        goes_back = mark is not None and version < mark.version and not mark.permits(version, digest)
        if mark is None or not goes_back or self.allow_rollback or self.assigned is None or not self.assigned.rollback:
            self.store.refuse(self.url, name, version, digest, allow_rollback=self.allow_rollback)
            return None
        rollback = require_rollback(
            self.store,
            self._fetch_small,
            self.trust,
            name=name,
            version=version,
            digest=digest,
            had=mark.version,
            clock_s=self.wall_clock(),
        )
        self.store.refuse(self.url, name, version, digest, allow_rollback=True)  # its name
        return rollback.from_version

    def _wanted(self, fetched: _Fetched) -> dict[str, int | None]:
        """The blobs of the part, with their sizes where they are stated."""
        manifest = fetched.manifest if self.accepts is None else runnable_part(fetched.manifest, self.accepts)
        part = self.part(manifest, fetched.digest)
        return part.blobs(manifest if part.exits is None else part_with_exits(manifest, part.exits))

    def _fetch_blobs(self, name: str, wanted: Mapping[str, int | None]) -> None:
        missing = missing_blobs(self.store, wanted)
        if not missing:
            return
        total_bytes = sum(size or 0 for size in missing.values())
        with self.progress.task(f"fetch {name}", total_bytes) as task:
            fetcher = BlobFetcher(self.place, self.store, self.transport, self.schedule, self.tally, task.advance)
            fetcher.fetch_all(missing)

    def _keep(self, fetched: _Fetched) -> Delivered:
        name, digest = fetched.manifest.name, fetched.digest
        folder = self.store.save_bundle(name, fetched.data, fetched.signature, fetched.release)
        good = self.store.last_good(name)
        same = good is not None and good.digest == digest and not self.tally.blobs
        bundle = StoredBundle(name, fetched.manifest.version, digest, folder)
        return self._delivered(bundle, "unchanged" if same else "downloaded")

    def _delivered(self, bundle: StoredBundle, source: Literal["downloaded", "unchanged", "kept"]) -> Delivered:
        return Delivered(
            folder=bundle.folder,
            blobs=self.store.blobs,
            name=bundle.name,
            digest=bundle.digest,
            version=bundle.version,
            source=source,
            blobs_fetched=self.tally.blobs,
            bytes_fetched=self.tally.size_bytes,
            resumed=self.tally.resumed,
        )
