"""Exits on demand: fetches exits of an installed bundle, and requests the server's choice of exits worth keeping."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Annotated

import msgspec

from device_sdk.bundles.bundle import Bundle
from device_sdk.delivery.blobs import BlobFetcher, Tally, missing_blobs
from device_sdk.delivery.download import ATTEMPTS
from device_sdk.delivery.schedule import Schedule
from device_sdk.delivery.store import BundleStore
from device_sdk.errors import ProtocolError, UsageError
from device_sdk.files.untrusted_json import decode_json
from device_sdk.progress import Progress, SilentProgress
from device_sdk.transports.addresses import base
from device_sdk.transports.port import Clock, Deadlines, Transport
from device_sdk.transports.replies import read_all, require_success

DEADLINES = Deadlines(idle_s=5.0, total_s=60.0)
PLACEMENT_DEADLINES = Deadlines(idle_s=5.0, total_s=10.0)
REPLY_MAX_BYTES = 64_000

_BUNDLES = "/v1/bundles/"


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


class _Reply(msgspec.Struct, frozen=True):
    """The fields used of the server's reply to ``POST /v1/placements``."""

    digest: str
    exits: Annotated[tuple[str, ...], msgspec.Meta(max_length=10_000)]
    expectation: Annotated[float, msgspec.Meta(ge=0, le=1)]


@dataclass(frozen=True)
class RequestedExits:
    """The exits that the server chose, by position, and the accuracy it expects of an inference that is interrupted."""

    exits: tuple[str, ...]
    expectation: float


def request_placement(
    url: str,
    bundle: Bundle,
    transport: Transport,
    *,
    memory_bytes: int | None,
    deadlines: Deadlines = PLACEMENT_DEADLINES,
) -> RequestedExits:
    """Have the server of ``url`` choose the exits of ``bundle`` worth keeping in ``memory_bytes`` (None: no limit).

    Costs are MACs. The choice must be for this very bundle, of its exits, and at most one at a cut point; whether it
    fits the memory is for the caller to check.

    Raises:
        UsageError: ``url`` is not the address of a bundle at a server.
        TransferError: no answer; ProtocolError: one that does not hold.
    """
    server, found, name = base(url).rpartition(_BUNDLES)
    if not found:
        raise UsageError(f"{url} is not the address of a bundle at a server", hint="it ends in /v1/bundles/NAME")
    body = msgspec.json.encode({"bundle": name, "memory_bytes": memory_bytes})
    address = f"{server}/v1/placements"
    with transport.send(
        "POST",
        address,
        headers={"Content-Type": "application/json"},
        body=body,
        deadlines=deadlines,
        max_bytes=REPLY_MAX_BYTES,
    ) as reply:
        require_success(reply, what=address)
        data = read_all(reply)
    try:
        return _checked(decode_json(data, _Reply), bundle)
    except ValueError as error:
        raise ProtocolError(f"{address}: the placement cannot be used: {error}") from error


def _checked(reply: _Reply, bundle: Bundle) -> RequestedExits:
    """The exits and the expectation of ``reply``, checked against ``bundle``. Raises ValueError."""
    if reply.digest != bundle.digest:
        raise ValueError(f"it is for bundle {reply.digest[:12]}…, and {bundle.digest[:12]}… is open here")
    offered = {one.id: one for one in bundle.offered.exits}
    unknown = [name for name in reply.exits if name not in offered]
    if unknown:
        raise ValueError(f"the bundle has no exit {unknown[0][:80]}")
    chosen = [offered[name] for name in dict.fromkeys(reply.exits)]
    if len({one.position for one in chosen}) < len(chosen):
        raise ValueError("it has several exits at one cut point")
    return RequestedExits(tuple(one.id for one in chosen), reply.expectation)
