"""An LRU cache of loaded models."""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import Future

from device_sdk.bundles.bundle import Bundle
from device_sdk.runtimes.port import LoadedStretch, Runtime
from device_sdk.supernet.plan import Edge

_Key = tuple[str, tuple[Edge, ...]]  # digest of the bundle, edges


class ModelCache:
    """A thread-safe LRU cache of up to ``limit`` loaded stretches of bundles: whole paths and tails."""

    def __init__(self, runtime: Runtime, *, limit: int) -> None:
        self.runtime = runtime
        self._limit = limit
        self._lock = threading.Lock()
        self._loaded: OrderedDict[_Key, Future[LoadedStretch]] = OrderedDict()  # the last used at the end

    def load(self, bundle: Bundle, edges: tuple[Edge, ...]) -> LoadedStretch:
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
                future.set_result(self.runtime.load(bundle.stretch(edges)))
            except BaseException as error:
                with self._lock:
                    if self._loaded.get(key) is future:
                        del self._loaded[key]
                future.set_exception(error)
        return future.result()
