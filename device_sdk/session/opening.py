"""Opening a bundle in a folder or at an address, tested before it is used."""

from __future__ import annotations

import contextlib
import logging
import time
import weakref
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from device_sdk.bundles.bundle import Bundle
from device_sdk.bundles.held_part import ChoosePart, HeldPart
from device_sdk.bundles.manifest import Manifest
from device_sdk.bundles.runnable import RenditionFilter
from device_sdk.errors import (
    BlobError,
    BudgetError,
    BundleError,
    CompositionError,
    PathweaveError,
    RuntimeFailedError,
    SelfTestError,
    StorageError,
    UsageError,
)
from device_sdk.execution.guarded_self_test import SelfTestAbortedError, run_guarded_self_test
from device_sdk.files.locks import if_possible
from device_sdk.progress import Progress, SilentProgress
from device_sdk.runtimes import runs_on
from device_sdk.runtimes.port import Runtime
from device_sdk.runtimes.settings import RuntimeSettings
from device_sdk.session.device_state import DeviceState, SelfTestAttempts, device_id, save_part
from device_sdk.session.exits import Origin
from device_sdk.session.wanted_part import WantedPart
from device_sdk.signing.trust import UNSTATED, Trust, Trustable, Unstated, load_trust
from device_sdk.supernet.plan import Plan

if TYPE_CHECKING:
    from device_sdk.delivery.download import Delivered
    from device_sdk.delivery.store import BundleStore, StoredBundle

STRIKES = 3  # failures that another attempt may not repeat: too slow, crashed, power lost
_UNFINISHED = "the process ended during the self-test"

_log = logging.getLogger(__name__)


def ensure_self_tested(state: DeviceState, test: Callable[[], None]) -> None:
    """Run ``test`` unless the bundle of ``state`` has passed; remember how it ended.

    An attempt is written down before it begins, so one that takes the process or the device with it counts. After
    ``STRIKES`` of them, or one result that differs from the golden outputs, the bundle is refused without a test.
    Of several that open the bundle at once, one runs the test, and the others wait for its result.

    Raises:
        SelfTestError: the bundle failed, now or before.
        PathweaveError: as ``test``.
    """
    if state.self_test_passed():
        return
    with if_possible(state.self_testing()):
        if not state.self_test_passed():
            _self_test(state, test)


def _self_test(state: DeviceState, test: Callable[[], None]) -> None:
    attempts = state.load_attempts()
    if attempts.strikes >= STRIKES:
        raise SelfTestError(
            f"the bundle failed its self-test here before: {attempts.failure}",
            hint="a new version, or another version of the runtime, is tested again",
        )
    begun = SelfTestAttempts(attempts.strikes + 1, _UNFINISHED)
    _keep(lambda: state.save_attempts(begun))
    try:
        test()
    except (SelfTestError, CompositionError, RuntimeFailedError) as error:
        failed = _failed(begun, error)
        _keep(lambda: state.save_attempts(failed))
        raise
    except BaseException:  # not the bundle's fault: a damaged blob, a memory cap, an interrupt
        _keep(lambda: state.save_attempts(attempts))
        raise
    _keep(state.remember_self_test)
    _keep(lambda: state.save_attempts(SelfTestAttempts()))  # a damaged memory of this means another test, no strike


def _failed(begun: SelfTestAttempts, error: PathweaveError) -> SelfTestAttempts:
    final = isinstance(error, SelfTestError) and not isinstance(error, SelfTestAbortedError)
    return msgspec.structs.replace(begun, strikes=STRIKES if final else begun.strikes, failure=str(error))


def _keep(write: Callable[[], None]) -> None:
    """On a full disk the bundle is used all the same, and tested again next time."""
    try:
        write()
    except StorageError as error:
        _log.warning("the result of the self-test cannot be kept: %s", error)


UPDATE_DEADLINE_S = 20.0  # for fetching where there is a last good bundle; what came by then is kept
_ON_USUAL = runs_on()


SelfTest = Callable[[Bundle], None]


def open_location(
    location: str | Path,
    *,
    trust: Trustable | Unstated = UNSTATED,
    token: str | None = None,
    allow_rollback: bool = False,
    tags: Mapping[str, str] | None = None,
    update_deadline_s: float = UPDATE_DEADLINE_S,
    runtime: Runtime,
    settings: RuntimeSettings,
    accepts: RenditionFilter,
    state_folder: Path,
    exits: Collection[str] | None = None,
    plan: Plan | Literal["whole"] | None = None,
    memory_cap_bytes: int | None = None,
    progress: Progress | None = None,
    self_test: SelfTest | None = None,
    wall_clock: Callable[[], float] = time.time,
) -> tuple[Bundle, Delivered | None]:
    """The bundle at ``location``, verified and self-tested here, and how it was delivered if it came from a server.

    Renditions that ``accepts`` refuses are neither fetched nor part of the opened bundle. Of the others it has the part
    that ``WantedPart`` chooses by ``plan`` and ``exits``. ``self_test``: by default
    ``run_guarded_self_test`` with a runtime of the same ``settings`` as ``runtime``. ``tags``: of this device, for
    servers that roll releases out. ``wall_clock``: seconds since 1970, for what expires.

    Raises:
        UsageError: ``trust`` is left out, and ``location`` is an address.
        BundleError, TransferError, RuntimeFailedError, BudgetError, StorageError: see ``AdaptiveModel.open``.
    """
    shown = progress or SilentProgress()

    def guarded(bundle: Bundle) -> None:
        run_guarded_self_test(bundle, runtime, settings, memory_cap_bytes=memory_cap_bytes, progress=shown)

    def ready(bundle: Bundle) -> Bundle:
        state = DeviceState(state_folder, bundle, runtime)
        state.remove_temporaries()
        ensure_self_tested(state, lambda: (self_test or guarded)(bundle))
        stored = wanted.stored(bundle.offered, bundle.digest)
        if plan is not None or stored.plan is not None:
            save_part(state_folder, bundle, stored)
        return bundle

    trusted = _stated_trust(location, trust)
    if not _is_address(location):
        wanted = WantedPart(state_folder, plan, exits)
        return ready(Bundle.open(location, trust=trusted, accepts=accepts, part=wanted)), None
    # most bundles are opened from a folder: what fetches them is imported when it is needed
    from device_sdk.delivery.download import UPDATE_DEADLINES, fetch_bundle
    from device_sdk.delivery.store import collect
    from device_sdk.transports import make_transport

    url, store = _base(str(location)), _store(state_folder)
    wanted = WantedPart(state_folder, plan, exits, previous=lambda: _last(store, url))
    opening = _Opening(url, store, trusted, allow_rollback, accepts, wanted, ready)

    def fetch() -> Delivered:
        with contextlib.closing(make_transport(url, token=token)) as transport:
            return fetch_bundle(
                url,
                store,
                transport,
                trust=trusted,
                allow_rollback=allow_rollback,
                accepts=accepts,
                part=wanted,
                device=device_id(state_folder),
                tags=tags,
                update_deadlines=replace(UPDATE_DEADLINES, total_s=update_deadline_s),
                progress=shown,
                wall_clock=wall_clock,
            )

    with if_possible(store.installing()):
        bundle, delivered = opening.open_fetched(fetch)
        lease = store.lease(bundle.manifest.name, bundle.digest)
    weakref.finalize(bundle, lease.close)  # until then no other process deletes its blobs
    if delivered.source != "kept":
        collect(store)
    return bundle, delivered


def bundle_at(
    location: str | Path,
    *,
    trust: Trustable | Unstated = UNSTATED,
    state_folder: Path,
    accepts: RenditionFilter | None = _ON_USUAL,
) -> Bundle:
    """The bundle at ``location`` as it is here, by default for ONNX Runtime: a folder, or what was fetched from there.

    Raises:
        BundleError: it cannot be used.
        UsageError: nothing was fetched from this address yet, or ``trust`` is left out with an address.
    """
    trusted = _stated_trust(location, trust)
    if not _is_address(location):
        return Bundle.open(location, trust=trusted, accepts=accepts)
    store, url = _store(state_folder), _base(str(location))
    stored = store.last_good_at(url)
    if stored is None:
        raise UsageError(f"nothing was fetched from {url} yet", hint="open it first, for example: pathweave run")
    return _open_stored(stored.folder, store, trusted, accepts, WantedPart(state_folder))


def manifest_at(
    location: str,
    *,
    trust: Trustable | Unstated = UNSTATED,
    token: str | None = None,
    tags: Mapping[str, str] | None = None,
    accepts: RenditionFilter,
    state_folder: Path,
) -> Bundle:
    """The bundle at an address with none of its blobs fetched, for choosing which are.

    Its manifest is verified and stored; it does not become the last good one. Raises as ``open_location``.
    """
    from device_sdk.delivery.download import fetch_bundle
    from device_sdk.transports import make_transport

    trusted, url, store = _stated_trust(location, trust), _base(location), _store(state_folder)

    def nothing(manifest: Manifest, digest: str) -> HeldPart:
        return HeldPart((), frozenset())

    with if_possible(store.installing()), contextlib.closing(make_transport(url, token=token)) as transport:
        device = device_id(state_folder)
        fetched = fetch_bundle(
            url, store, transport, trust=trusted, accepts=accepts, part=nothing, device=device, tags=tags
        )
        bundle = _open_stored(fetched.folder, store, trusted, accepts, nothing)
    return Bundle(
        bundle.folder,
        bundle.blobs,
        bundle.offered,
        bundle.digest,
        has_signature=bundle.has_signature,
        part=HeldPart(None, frozenset()),
    )


def _last(store: BundleStore, url: str) -> tuple[str, str] | None:
    stored = store.last_good_at(url)
    return None if stored is None else (stored.name, stored.digest)


def origin_of(location: str | Path, *, state_folder: Path, token: str | None = None) -> Origin | None:
    """The server that ``location`` is the address of; None for a folder."""
    if not _is_address(location):
        return None
    return Origin(_base(str(location)), _store(state_folder).folder, token)


def _stated_trust(location: str | Path, trust: Trustable | Unstated) -> Trust | None:
    """The caller's trust. With an address it has to be stated, even if it is None."""
    if not isinstance(trust, Unstated):
        return load_trust(trust)
    if not _is_address(location):
        return None
    raise UsageError(
        f"who signed the bundle at {_base(str(location))}? Give trust, a public key or a key list (--trust FILE)",
        hint="trust=None (--no-trust) takes a bundle whoever signed it",
    )


def _open_stored(
    folder: Path,
    store: BundleStore,
    trust: Trust | None,
    accepts: RenditionFilter | None,
    part: ChoosePart,
) -> Bundle:
    from device_sdk.delivery.key_lists import with_stored_lists

    trusted = with_stored_lists(trust, store)
    return Bundle.open(folder, trust=trusted, blobs=store.blobs, accepts=accepts, part=part)


def _is_address(location: str | Path) -> bool:
    return isinstance(location, str) and "://" in location


def _store(state_folder: Path) -> BundleStore:
    from device_sdk.delivery.store import BundleStore

    return BundleStore(state_folder / "store")


def _base(location: str) -> str:
    from device_sdk.transports.port import base

    return base(location)


@dataclass(frozen=True)
class _Opening:
    """Opens what was fetched, and makes it the last good bundle once it has shown that it works here."""

    url: str
    store: BundleStore
    trust: Trust | None
    allow_rollback: bool
    accepts: RenditionFilter
    part: ChoosePart
    ready: Callable[[Bundle], Bundle]

    def open_fetched(self, fetch: Callable[[], Delivered]) -> tuple[Bundle, Delivered]:
        delivered = fetch()
        try:
            return self._open(delivered)
        except BlobError:
            # a blob decayed on this disk since it was verified: fetch it again, once
            self.store.remove_altered(self._bundle(delivered.folder).blob_sizes())
            return self._open(fetch())

    def _open(self, delivered: Delivered) -> tuple[Bundle, Delivered]:
        try:
            bundle = self._bundle(delivered.folder)
            bundle.verify()  # disks decay: better now than when a search first needs a block
            self.ready(bundle)
        except (BundleError, RuntimeFailedError, BudgetError) as error:
            kept = self._other_good(delivered)
            if kept is None:
                raise
            return self._open_kept(kept, delivered, error)
        try:
            name, digest = bundle.manifest.name, bundle.digest
            self.store.remember_good(
                self.url, name, digest, allow_rollback=self.allow_rollback, rollback_from=delivered.rollback_from
            )
        except (BundleError, StorageError) as error:  # another process was faster with a newer one; a full disk
            kept = self._other_good(delivered)
            if kept is not None:
                return self._open_kept(kept, delivered, error)
            if self.store.last_good_at(self.url) is None:
                raise
            _log.warning("%s: %s", self.url, error)
        return bundle, delivered

    def _open_kept(self, kept: StoredBundle, delivered: Delivered, error: Exception) -> tuple[Bundle, Delivered]:
        from device_sdk.delivery.refusals import Offered

        offer = Offered(delivered.version, delivered.digest)
        _log.warning(
            "version %s is not used here, version %s stays: %s",
            delivered.version,
            kept.version,
            error,
        )
        bundle = self.ready(self._bundle(kept.folder))
        return bundle, replace(
            delivered,
            folder=kept.folder,
            name=kept.name,
            digest=kept.digest,
            version=kept.version,
            source="kept",
            failure=str(error),
            rollback_from=None,
            refused=offer.refused(error, kept_version=kept.version, kept_digest=kept.digest),
        )

    def _other_good(self, delivered: Delivered) -> StoredBundle | None:
        """The last good bundle, if it is not the one that was delivered."""
        kept = self.store.last_good_at(self.url, allow_rollback=self.allow_rollback)
        return None if kept is None or kept.digest == delivered.digest else kept

    def _bundle(self, folder: Path) -> Bundle:
        return _open_stored(folder, self.store, self.trust, self.accepts, self.part)
