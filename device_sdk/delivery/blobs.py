"""Blobs from a server: missing ones fetched, resumed, verified and written."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Literal

from device_sdk.bundles.bundle import BLOBS
from device_sdk.delivery.blob_writer import BlobWriter
from device_sdk.delivery.schedule import Schedule, transient
from device_sdk.delivery.store import BundleStore
from device_sdk.errors import BlobError, ProtocolError, TransferError
from device_sdk.transports.port import Reply, Transport, require_success

NextStep = Literal["append", "replace", "complete", "again"]

_CONTENT_RANGE = re.compile(r"bytes (?:([0-9]{1,18})-([0-9]{1,18})|\*)/(?:([0-9]{1,18})|\*)")


def request_headers(offset: int, etag: str | None) -> dict[str, str]:
    """Headers that request the bytes from ``offset`` on, on condition that the entity tag is still ``etag``.

    Without an etag the range is unconditional; the digest check detects a mismatch.
    """
    headers = {"Accept-Encoding": "identity"}  # ranges count encoded bytes
    if offset:
        headers["Range"] = f"bytes={offset}-"
        if etag is not None:
            headers["If-Range"] = etag
    return headers


def strong_etag(headers: Mapping[str, str]) -> str | None:
    """The etag of a reply, if it is a strong one, else None."""
    etag = headers.get("etag", "")
    return etag if len(etag) > 2 and etag[0] == etag[-1] == '"' else None


def next_step(status: int, headers: Mapping[str, str], *, offset: int) -> NextStep:
    """Handling of the response, of status 200, 206 or 416, to a request from ``offset`` on.

    ``append``: append the body; ``replace``: discard the bytes received so far and store the body; ``complete``: all
    bytes were received before; ``again``: discard them and request the whole blob.
    """
    if status == 200:
        return "replace" if offset else "append"
    match = _CONTENT_RANGE.fullmatch(headers.get("content-range", "").strip())
    if match is None:
        return "again"
    start, _, total = match.groups()
    if status == 206 and start is not None and int(start) == offset:
        return "append"
    if status == 416 and start is None and total is not None and int(total) == offset > 0:
        return "complete"
    return "again"


def address_elsewhere(reply: Reply, url: str) -> str | None:
    """The address in an object store that the server sends a request for ``url`` to; None if it answers itself.

    The transport sends the server's token to no other origin.

    Raises:
        ProtocolError: no address, or one that leaves https.
    """
    if reply.status != 307:
        return None
    address = reply.headers.get("location", "")
    scheme = address.partition("://")[0].lower()
    if scheme not in ("http", "https") or (url.startswith("https:") and scheme != "https"):
        raise ProtocolError(f"the server redirects a blob to {address[:40]!r}")
    return address


CONNECTIONS = 4
TAKES, SIGNED_URL = "Pathweave-Takes", "signed-url"  # a header: the client follows an address in an object store
UNSIZED_MAX_BYTES = 2**31  # limit of a blob whose size the manifest does not state; protobuf has the same limit
REQUESTS_PER_BLOB = 100  # regardless of progress
ALTERED_TRIES = 2  # the first may have resumed from a damaged orphan


def missing_blobs(store: BundleStore, wanted: Mapping[str, int | None]) -> dict[str, int | None]:
    """The blobs of ``wanted`` that the store lacks, with their sizes (None where not stated)."""
    return {name: size for name, size in wanted.items() if not store.has_blob(name, size)}


@dataclass
class Tally:
    """Transfer counters. Thread-safe."""

    blobs: int = 0
    size_bytes: int = 0
    resumed: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, *, blobs: int = 0, size_bytes: int = 0, resumed: int = 0) -> None:
        """Increment the counters."""
        with self._lock:
            self.blobs += blobs
            self.size_bytes += size_bytes
            self.resumed += resumed


@dataclass(frozen=True)
class BlobFetcher:
    """Fetches blobs of the bundle at ``url``. ``on_bytes`` is called per chunk, from one thread at a time."""

    url: str
    store: BundleStore
    transport: Transport
    schedule: Schedule
    tally: Tally
    on_bytes: Callable[[int], None]
    _stop: threading.Event = field(default_factory=threading.Event)
    _reporting: threading.Lock = field(default_factory=threading.Lock)

    def fetch_all(self, blobs: Mapping[str, int | None]) -> None:
        """Fetch blobs, given with their sizes where known, over ``CONNECTIONS`` connections.

        Raises:
            BlobError: a digest does not match.
            TransferError: a blob could not be fetched.
            StorageError: a blob could not be written.
        """
        with ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="fetch") as pool:
            futures: list[Future[None]] = [pool.submit(self._fetch, name, size) for name, size in blobs.items()]
            try:
                for future in as_completed(futures):
                    future.result()
            except BaseException:
                self._stop.set()  # stops the other transfers
                for future in futures:
                    future.cancel()
                raise

    def _fetch(self, name: str, size: int | None) -> None:
        if self.store.has_blob(name, size):  # fetched by another process since the check
            return
        with self.store.writer(name, max_bytes=UNSIZED_MAX_BYTES if size is None else size) as writer:
            _Transfer(self, name, size, writer).run()
        self.tally.add(blobs=1)

    def received(self, count: int) -> None:
        """Count and report ``count`` received bytes. Raises TooSlowError."""
        self.tally.add(size_bytes=count)
        self.schedule.rate.received(count)
        with self._reporting:
            self.on_bytes(count)

    def check_not_stopped(self) -> None:
        """Raise TransferError if another blob has failed."""
        if self._stop.is_set():
            raise TransferError("stopped because another blob could not be fetched")


class _Transfer:
    """The transfer of one blob in a bounded number of requests."""

    def __init__(self, fetcher: BlobFetcher, name: str, size: int | None, writer: BlobWriter) -> None:
        self._fetcher = fetcher
        self._name = name
        self._size = size
        self._writer = writer
        self._etag: str | None = None
        self._failures = 0  # consecutive, without a new byte
        self._altered = 0
        self._takes_urls = True  # of a store, until one of them fails

    def run(self) -> None:
        """Run until the blob is in the store."""
        for _ in range(REQUESTS_PER_BLOB):
            before = self._writer.size
            try:
                self._request()
                self._writer.commit()
                return
            except BlobError as error:
                self._start_over(error)
            except TransferError as error:
                self._count_failure(error, progress=self._writer.size > before)
            self._fetcher.schedule.pause(self._failures)
        raise TransferError(f"{self._what} did not come whole in {REQUESTS_PER_BLOB} requests")

    @property
    def _what(self) -> str:
        return f"blob {self._name[:12]}…"

    def _start_over(self, error: BlobError) -> None:
        self._writer.restart()
        self._altered += 1
        if self._altered == ALTERED_TRIES:
            raise error

    def _count_failure(self, error: TransferError, *, progress: bool) -> None:
        self._fetcher.check_not_stopped()
        self._failures = 0 if progress else self._failures + 1
        if not transient(error) or self._failures >= self._fetcher.schedule.attempts:
            raise error

    def _request(self) -> None:
        offset = self._writer.size
        if offset and offset == self._size:
            return
        url = f"{self._fetcher.url}/{BLOBS}/{self._name}"
        offer = {TAKES: SIGNED_URL} if self._takes_urls else {}
        with self._send(url, request_headers(offset, self._etag) | offer) as reply:
            elsewhere = address_elsewhere(reply, url) if self._takes_urls else None
            if elsewhere is None:
                self._accept(reply, offset)
        if elsewhere is not None:
            self._fetch_from_store(elsewhere, offset)
        if self._size is not None and self._writer.size < self._size:
            raise TransferError(f"{self._what} ended after {self._writer.size} of {self._size} bytes")

    def _fetch_from_store(self, address: str, offset: int) -> None:
        """Fetch from the address that the server signed; if that fails, all further requests go to the server."""
        try:
            with self._send(address, request_headers(offset, None)) as reply:  # the store has etags of its own
                self._accept(reply, offset)
        except TransferError as error:
            self._takes_urls = False
            raise TransferError(f"{self._what} did not come from the server's store: {error}") from error
        finally:
            self._etag = None

    def _send(self, url: str, headers: Mapping[str, str]) -> AbstractContextManager[Reply]:
        return self._fetcher.transport.send(
            "GET",
            url,
            headers=headers,
            deadlines=self._fetcher.schedule.left(),
            max_bytes=UNSIZED_MAX_BYTES if self._size is None else self._size,
        )

    def _accept(self, reply: Reply, offset: int) -> None:
        if not (reply.status == 416 and offset):
            require_success(reply, what=self._what)
        self._take(reply, offset)

    def _take(self, reply: Reply, offset: int) -> None:
        step = next_step(reply.status, reply.headers, offset=offset)
        if step == "complete":
            return
        if step == "again":
            self._writer.restart()
            raise TransferError(f"the server cannot resume {self._what}")
        if step == "replace":
            self._writer.restart()
        elif offset:
            self._fetcher.tally.add(resumed=1)
        self._etag = strong_etag(reply.headers)
        for chunk in reply.chunks():
            self._writer.append(chunk)
            self._fetcher.received(len(chunk))
            self._fetcher.check_not_stopped()
