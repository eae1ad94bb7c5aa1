"""Where a bundle comes from: a folder here, or a server, with the last good one in reserve."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from device_sdk.bundles.bundle import Bundle
from device_sdk.bundles.runnable import RenditionFilter
from device_sdk.errors import BlobError, BudgetError, BundleError, RuntimeFailedError, UsageError
from device_sdk.execution.self_test import run_self_test
from device_sdk.execution.workspace import Workspace
from device_sdk.progress import Progress, SilentProgress
from device_sdk.runtimes import runs_on
from device_sdk.runtimes.port import Runtime
from device_sdk.session.device_state import DeviceState

if TYPE_CHECKING:
    from device_sdk.delivery.download import Delivered
    from device_sdk.delivery.store import BundleStore

_USUAL = "onnxruntime"

_log = logging.getLogger(__name__)


def open_location(
    location: str | Path,
    *,
    trust: str | Path | None,
    token: str | None,
    allow_rollback: bool = False,
    runtime: Runtime,
    accepts: RenditionFilter,
    state_folder: Path,
    memory_cap_bytes: int | None = None,
    progress: Progress | None,
) -> tuple[Bundle, Delivered | None]:
    """The bundle at ``location``, verified and self-tested here, and how it was delivered if it came from a server.

    Renditions that ``accepts`` refuses are neither fetched nor part of the opened bundle.

    Raises:
        BundleError, TransferError, RuntimeFailedError, BudgetError, StorageError: see ``AdaptiveModel.open``.
    """
    shown = progress or SilentProgress()

    def ready(bundle: Bundle) -> Bundle:
        state = DeviceState(state_folder, bundle, runtime)
        if not state.self_test_passed():
            run_self_test(Workspace(bundle, runtime, memory_cap_bytes), progress=shown)
            state.remember_self_test()
        return bundle

    key = Path(trust) if trust is not None else None
    if not _is_address(location):
        return ready(Bundle.open(location, trust=key, accepts=accepts)), None
    # most bundles are opened from a folder: what fetches them is imported when it is needed
    from device_sdk.delivery.download import fetch_bundle
    from device_sdk.transports import make_transport

    url, store = _base(str(location)), _store(state_folder)

    def fetch() -> Delivered:
        with contextlib.closing(make_transport(url, token=token)) as transport:
            return fetch_bundle(
                url, store, transport, trust=key, allow_rollback=allow_rollback, accepts=accepts, progress=shown
            )

    delivered = fetch()
    try:
        return _open_delivered(url, delivered, store, trust=key, accepts=accepts, ready=ready)
    except BlobError:
        # a blob decayed on this disk since it was verified: fetch it again, once
        store.remove_altered(
            Bundle.open(delivered.folder, trust=key, blobs=store.blobs, accepts=accepts).manifest.blobs()
        )
        return _open_delivered(url, fetch(), store, trust=key, accepts=accepts, ready=ready)


def bundle_at(location: str | Path, *, trust: Path | None, state_folder: Path) -> Bundle:
    """The bundle at ``location`` as it is here, for ONNX Runtime: a folder, or what was fetched from there last.

    Raises:
        BundleError: it cannot be used.
        UsageError: nothing was fetched from this address yet.
    """
    if not _is_address(location):
        return Bundle.open(location, trust=trust, accepts=runs_on(_USUAL))
    store = _store(state_folder)
    stored = store.last_good_at(_base(str(location)))
    if stored is None:
        raise UsageError(f"nothing was fetched from {location} yet", hint="open it first, for example: pathweave run")
    return Bundle.open(stored.folder, trust=trust, blobs=store.blobs, accepts=runs_on(_USUAL))


def _is_address(location: str | Path) -> bool:
    return isinstance(location, str) and "://" in location


def _store(state_folder: Path) -> BundleStore:
    from device_sdk.delivery.store import BundleStore

    return BundleStore(state_folder / "store")


def _base(location: str) -> str:
    from device_sdk.transports.addresses import base

    return base(location)


def _open_delivered(
    url: str,
    delivered: Delivered,
    store: BundleStore,
    *,
    trust: Path | None,
    accepts: RenditionFilter,
    ready: Callable[[Bundle], Bundle],
) -> tuple[Bundle, Delivered]:
    """Make what was delivered the last good bundle once it has shown that it works here; else fall back."""
    try:
        bundle = Bundle.open(delivered.folder, trust=trust, blobs=delivered.blobs, accepts=accepts)
        bundle.verify()  # disks decay: better now than when a search first needs a block
        ready(bundle)
    except (BundleError, RuntimeFailedError, BudgetError) as error:
        kept = store.last_good_at(url)
        if kept is None or kept.digest == delivered.digest:
            raise
        _log.warning("version %s does not work here, version %s stays: %s", delivered.version, kept.version, error)
        delivered = replace(
            delivered, folder=kept.folder, digest=kept.digest, version=kept.version, source="kept", failure=str(error)
        )
        return ready(Bundle.open(kept.folder, trust=trust, blobs=store.blobs, accepts=accepts)), delivered
    store.remember_good(bundle.manifest.name, bundle.digest)
    return bundle, delivered
