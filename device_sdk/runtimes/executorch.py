"""ExecuTorch behind the runtime port: programs (``.pte``) that run block by block, since they cannot be composed.

The optional package installs torch, which only this adapter needs, for tensors.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import numpy as np

from device_sdk.errors import RuntimeFailedError
from device_sdk.extras import require
from device_sdk.fragments.composition import Stretch
from device_sdk.runtimes.port import Array, StopSignal, require_one_home
from device_sdk.supernet.blocks import TensorSpec

EXECUTORCH = _EXTRA = "executorch"


class ExecutorchRuntime:
    """Runs ExecuTorch programs with a fixed number of threads; ``provider`` is the backend that they delegate to.

    ExecuTorch has one thread pool per process, whose size the first load sets. ``lean``,
    ``spin_us`` and ``cache_folder`` have no effect.

    Raises:
        MissingExtraError: executorch is not installed.
        RuntimeFailedError: it was built without this backend.
    """

    reads: ClassVar[str] = EXECUTORCH
    providers: ClassVar[tuple[str, ...]] = ("XnnpackBackend",)

    def __init__(
        self,
        *,
        threads: int = 1,
        provider: str = providers[0],
        lean: bool = False,
        spin_us: int = 0,
        cache_folder: Path | None = None,
    ) -> None:
        self._engine = require("executorch.runtime", extra=_EXTRA).Runtime.get()
        backends = self._engine.backend_registry.registered_backend_names
        if provider not in backends:
            raise RuntimeFailedError(f"ExecuTorch has no {provider} here", hint="it has " + ", ".join(sorted(backends)))
        self._threads = threads
        self._provider = provider

    @property
    def identity(self) -> str:
        """For example ``executorch-1.5.1-XnnpackBackend-1t``."""
        import importlib.metadata  # slow to import, and only needed here

        return f"executorch-{importlib.metadata.version(EXECUTORCH)}-{self._provider}-{self._threads}t"

    @property
    def concurrency(self) -> int:
        """See the port: all programs of a process share its thread pool."""
        return 1

    @property
    def waits_for_threads(self) -> bool:
        """See the port."""
        return self._threads > 1

    def taking_turns(self) -> ExecutorchRuntime:
        """See the port: a program's memory is planned ahead of time, so there is nothing to share."""
        return self

    def load(self, stretch: Stretch) -> ExecutorchStretch:
        """Load each block's program (see the port).

        Raises:
            RuntimeFailedError: also if this process already runs ExecuTorch with another number of threads.
        """
        if stretch.runtime != self.reads:
            raise RuntimeFailedError(
                f"ExecuTorch cannot run blocks for {stretch.runtime}",
                hint="open the bundle with the runtime that its blocks are for",
            )
        require_one_home(stretch)
        _POOL.claim(self._threads)
        programs: dict[bytes, Any] = {}  # one program may hold the methods of several blocks
        methods = []
        for data, entry_point in zip(stretch.fragments, stretch.entry_points, strict=True):
            try:
                if data not in programs:
                    programs[data] = self._engine.load_program(data)
                methods.append(programs[data].load_method(entry_point))
            except Exception as error:  # the binding raises RuntimeError, or KeyError for a missing method
                raise RuntimeFailedError(f"ExecuTorch refused the program: {_first_line(error)}") from error
        return ExecutorchStretch(methods, stretch.inputs, branch=stretch.branch)


class ExecutorchStretch:
    """Programs that run one after the other. A lock serialises calls, since a method has one set of buffers.

    A program states its largest batch; larger batches run in parts of that size.
    """

    def __init__(self, methods: Sequence[Any], inputs: tuple[TensorSpec, ...], *, branch: bool) -> None:
        self._methods: Sequence[Any] | None = methods
        self._inputs = inputs
        self._branch = branch
        self._at_once = min(int(method.metadata.input_tensor_meta(0).sizes()[0]) for method in methods)
        self._running = threading.Lock()
        self._torch = require("torch", extra=_EXTRA)

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """See the port."""
        outputs = self.run_until(inputs, StopSignal())
        assert outputs is not None
        return outputs

    def run_until(self, inputs: Sequence[Array], stop: StopSignal) -> list[Array] | None:
        """See the port: a program runs to its end."""
        self._check(inputs)
        parts = []
        for start in range(0, len(inputs[0]), self._at_once):
            part = [array[start : start + self._at_once] for array in inputs]
            with self._running:
                if self._methods is None:
                    raise RuntimeFailedError("the session was closed")
                try:
                    outputs = self._run_part(self._methods, part, stop)
                except Exception as error:
                    raise RuntimeFailedError(f"ExecuTorch failed: {_first_line(error)}") from error
            if outputs is None:
                return None
            parts.append(outputs)
        return parts[0] if len(parts) == 1 else [np.concatenate(outputs) for outputs in zip(*parts, strict=True)]

    def _run_part(self, methods: Sequence[Any], part: Sequence[Array], stop: StopSignal) -> list[Array] | None:
        # Outputs are copied, since the method reuses its output buffers.
        live = [self._torch.from_numpy(np.require(array, requirements=["C", "W"])) for array in part]
        chain, branch = (methods[:-1], methods[-1]) if self._branch else (methods, None)
        for method in chain:
            if stop.is_set:
                return None
            live = [output.clone() for output in method.execute(live)]
        if stop.is_set:
            return None
        if branch is not None:
            live += [output.clone() for output in branch.execute(live)]
        return [output.numpy() for output in live]

    def _check(self, inputs: Sequence[Array]) -> None:
        """Check number, types and shapes of the inputs: the programs would only check the number of elements."""
        if len(inputs) != len(self._inputs):
            _refuse(f"{len(inputs)} inputs instead of {len(self._inputs)}")
        for array, spec in zip(inputs, self._inputs, strict=True):
            if not isinstance(array, np.ndarray):
                _refuse(f"{spec.name} is no array")
            if array.dtype != spec.dtype or array.shape[1:] != spec.shape or array.ndim == 0:
                _refuse(f"{spec.name} is {array.dtype} {list(array.shape)}, not {spec.dtype} [batch, *{spec.shape}]")
            if not 0 < len(array) == len(inputs[0]):
                _refuse(f"{spec.name} has {len(array)} samples")

    def close(self) -> None:
        """See the port."""
        with self._running:
            self._methods = None


class _ThreadPool:
    """The process-wide thread pool, whose size is set once, before the first run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: int | None = None

    def claim(self, threads: int) -> None:
        with self._lock:
            if self._threads is None:
                require("executorch.extension.pybindings.portable_lib", extra=_EXTRA)._unsafe_reset_threadpool(threads)
                self._threads = threads
        if self._threads != threads:
            raise RuntimeFailedError(
                f"ExecuTorch runs with {self._threads} threads in this process, not with {threads}",
                hint=f"open the bundle with threads={self._threads}, or in another process",
            )


_POOL = _ThreadPool()


def _refuse(why: str) -> NoReturn:
    raise RuntimeFailedError(f"ExecuTorch was given wrong inputs: {why}")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
