"""An LRU cache of loaded models, each for all cores and for one."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from device_sdk.bundles.bundle import Bundle
from device_sdk.runtimes.port import Array, LoadedStretch, Runtime
from device_sdk.supernet.plan import Edge

_Key = tuple[str, tuple[Edge, ...]]  # digest of the bundle, edges


class ServedModel:
    """Edges of a bundle, loaded for all cores, and for one core when batches first run beside each other.

    ``load_beside``: None if there is one kind of place. Weights are then in memory twice.
    """

    def __init__(self, stretch: LoadedStretch, load_beside: Callable[[], LoadedStretch] | None = None) -> None:
        self._stretch, self._load_beside = stretch, load_beside
        self._beside = stretch if load_beside is None else None
        self._lock = threading.Lock()

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Run on all cores. Raises as ``LoadedStretch.run``."""
        return self._stretch.run(inputs)

    def run_beside(self, inputs: Sequence[Array]) -> list[Array]:
        """Run on one core, beside other batches. Raises as ``Runtime.load`` and ``LoadedStretch.run``."""
        with self._lock:
            if self._beside is None:
                assert self._load_beside is not None
                self._beside = self._load_beside()
        return self._beside.run(inputs)


class ModelCache:
    """A thread-safe LRU cache of up to ``limit`` models: whole paths and tails of bundles.

    ``beside``: the runtime of batches that run beside others; None: ``runtime`` runs those too.
    """

    def __init__(self, runtime: Runtime, *, limit: int, beside: Runtime | None = None) -> None:
        self.runtime, self._runtime_beside = runtime, beside
        self._limit = limit
        self._lock = threading.Lock()
        self._loaded: OrderedDict[_Key, Future[ServedModel]] = OrderedDict()  # the last used at the end

    def load(self, bundle: Bundle, edges: tuple[Edge, ...]) -> ServedModel:
        """Consecutive ``edges`` of ``bundle`` as one model. Concurrent calls wait for a load in progress.

        Raises:
            BundleError: a blob does not verify, or the fragments do not make one model.
            RuntimeFailedError: the runtime refused the model. The next call tries again.
        """
        key = (bundle.digest, edges)
        with self._lock:
            future = self._loaded.get(key)
            must_load = future is None
            if future is None:
                future = self._loaded[key] = Future()
            self._loaded.move_to_end(key)
            # Requests that still use an evicted model keep a reference; it is freed with the last of them.
            while len(self._loaded) > self._limit:
                self._loaded.popitem(last=False)
        if must_load:
            try:
                future.set_result(self._load(bundle, edges))
            except BaseException as error:
                with self._lock:
                    if self._loaded.get(key) is future:
                        del self._loaded[key]
                future.set_exception(error)
        return future.result()

    def _load(self, bundle: Bundle, edges: tuple[Edge, ...]) -> ServedModel:
        beside = self._runtime_beside
        load_beside = None if beside is None else lambda: beside.load(bundle.stretch(edges))
        return ServedModel(self.runtime.load(bundle.stretch(edges)), load_beside)
