"""Models that are ready to run: loaded when they are first asked for, the least used ones dropped."""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import Future

from device_sdk.bundle import Bundle
from device_sdk.runtimes.port import LoadedStretch, Runtime


class ModelCache:
    """The original paths of up to ``limit`` bundles, loaded. May be used from several threads at once."""

    def __init__(self, runtime: Runtime, *, limit: int) -> None:
        self._runtime = runtime
        self._limit = limit
        self._lock = threading.Lock()
        self._loaded: OrderedDict[str, Future[LoadedStretch]] = OrderedDict()  # by digest, the last used at the end

    def load(self, bundle: Bundle) -> LoadedStretch:
        """The original path of ``bundle``. Who asks while it is being loaded waits for that.

        Raises:
            BundleError: a blob does not verify, or the fragments do not make one model.
            RuntimeFailedError: the runtime refused the model. The next call tries again.
        """
        with self._lock:
            future = self._loaded.get(bundle.digest)
            ours = future is None
            if future is None:
                future = self._loaded[bundle.digest] = Future()
            self._loaded.move_to_end(bundle.digest)
            # Requests that still use a dropped model hold it; it is freed with the last of them.
            while len(self._loaded) > self._limit:
                self._loaded.popitem(last=False)
        if ours:
            self._fill(future, bundle)
        return future.result()

    def _fill(self, future: Future[LoadedStretch], bundle: Bundle) -> None:
        try:
            future.set_result(self._runtime.load(bundle.stretch(bundle.supernet.original.edges)))
        except BaseException as error:
            with self._lock:
                if self._loaded.get(bundle.digest) is future:
                    del self._loaded[bundle.digest]
            future.set_exception(error)
