"""Exits on demand: fetches exits of an installed bundle."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from device_sdk.bundles.bundle import Bundle
from device_sdk.delivery.blobs import BlobFetcher, Tally, missing_blobs
from device_sdk.delivery.download import ATTEMPTS
from device_sdk.delivery.schedule import Schedule
from device_sdk.delivery.store import BundleStore
from device_sdk.progress import Progress, SilentProgress
from device_sdk.transports.port import Clock, Deadlines, Transport, base

DEADLINES = Deadlines(idle_s=5.0, total_s=60.0)


def fetch_exits(
    url: str,
    bundle: Bundle,
    exits: Collection[str],
    store: BundleStore,
    transport: Transport,
    *,
    deadlines: Deadlines = DEADLINES,
    progress: Progress | None = None,
    sleep: Callable[[float], None] = time.sleep,
    clock: Clock = time.monotonic,
) -> Tally:
    """Fetch the missing blobs of ``exits``, each verified before it is stored; returns the transfer counters.

    The manifest of ``bundle`` was verified when it was installed, so the digests of these blobs are trusted. A server
    that has replaced the bundle may no longer have them: then nothing changes here.

    Raises:
        UsageError: the bundle has no such exit, or not the blocks before it.
        TransferError, BlobError, StorageError: a blob could not be fetched, verified or written.
    """
    missing = missing_blobs(store, bundle.part.blobs(bundle.manifest_with(exits)))
    tally = Tally()
    if not missing:
        return tally
    schedule = Schedule(deadlines.idle_s, clock() + deadlines.total_s, ATTEMPTS, sleep, clock)
    total_bytes = sum(size or 0 for size in missing.values())
    with (progress or SilentProgress()).task("fetch exits", total_bytes) as task:
        BlobFetcher(base(url), store, transport, schedule, tally, task.advance).fetch_all(missing)
    return tally
