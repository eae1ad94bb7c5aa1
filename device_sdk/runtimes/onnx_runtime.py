"""ONNX Runtime: composed models as sessions, on the processor or another provider."""

from __future__ import annotations

import copy
import ctypes
import hashlib
import threading
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar

from device_sdk.errors import RuntimeFailedError, UsageError
from device_sdk.fragments.composition import COMPOSED, Stretch, compose
from device_sdk.machine import usable_cores
from device_sdk.runtimes.port import Array, StopSignal

WORTHWHILE_BYTES = 256 * 1024  # of weights: smaller blocks are soon reused

_M_ARENA_MAX = -8  # a parameter of mallopt


def give_back_freed_memory() -> None:
    """Return freed memory to the system; usually under a millisecond. A no-op without glibc."""
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@cache
def keep_one_heap() -> None:
    """Have the threads of this process share one heap from now on. It cannot be undone; a no-op without glibc.

    Otherwise each thread keeps what it freed (measured with two threads whose pages are loaded again and again under a
    cap of 5.5 MB: 11.6 MB resident beyond the runtime, with one heap 8.2 MB).
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt  # glibc
    except (AttributeError, OSError, TypeError):
        return
    mallopt(_M_ARENA_MAX, 1)


@cache
def keeps_spin_us() -> bool:
    """True if ONNX Runtime's threads spin no longer than ``spin_us``, as from 1.26 on."""
    import onnxruntime

    major, minor = onnxruntime.__version__.split(".")[:2]
    return (int(major), int(minor)) >= (1, 26)


@cache
def _malloc_trim() -> Any:
    try:
        return ctypes.CDLL(None).malloc_trim  # glibc
    except (AttributeError, OSError, TypeError):
        return None


_ERRORS_ONLY = 3
_MOST_SPIN_US = 1_000_000
_CPU, _CUDA, _TENSORRT = "CPUExecutionProvider", "CUDAExecutionProvider", "TensorrtExecutionProvider"


class OnnxRuntime:
    """Runs composed ONNX models with one provider and a fixed number of threads.

    ``lean``: hold no memory between runs that the next run could allocate again; for plans under a memory cap. The
    threads of this process then share one heap.
    ``spin_us``: microseconds that a thread of several waits on the processor for work before it sleeps, at most
    1,000,000. Before ONNX Runtime 1.26 any but 0 means as long as it likes (docs/guide/profiling.md).
    ``cache_folder``: where TensorRT, as the provider, stores the engines that it builds on this device.

    Raises:
        RuntimeFailedError: the provider is not available.
        UsageError: ``spin_us`` is out of its range.
    """

    reads: ClassVar[str] = COMPOSED
    providers: ClassVar[tuple[str, ...]] = (_CPU,)

    def __init__(
        self,
        *,
        threads: int = 1,
        provider: str = _CPU,
        lean: bool = False,
        spin_us: int = 0,
        cache_folder: Path | None = None,
    ) -> None:
        import onnxruntime

        if not 0 <= spin_us <= _MOST_SPIN_US:
            raise UsageError(f"spin_us is {spin_us}", hint=f"give 0 to {_MOST_SPIN_US:,} microseconds")
        onnxruntime.disable_telemetry_events()  # on Windows, where it does not look at the environment
        if provider not in onnxruntime.get_available_providers():
            raise RuntimeFailedError(
                f"ONNX Runtime has no {provider} here",
                hint="it has " + ", ".join(onnxruntime.get_available_providers()),
            )
        self._onnxruntime = onnxruntime
        self._threads = threads
        self._provider = provider
        self._lean = lean
        self._spin_us = spin_us if threads > 1 else 0  # a single thread waits for none
        self._cache_folder = cache_folder
        self._shares_arena = False
        if lean:
            keep_one_heap()
        onnxruntime.set_default_logger_severity(_ERRORS_ONLY)

    @property
    def identity(self) -> str:
        """For example ``onnxruntime-1.31.1-CPUExecutionProvider-2t``, with ``-spin50us`` and ``-lean`` where set."""
        settings = (f"-spin{self._spin_us}us" if self._spin_us else "") + ("-lean" if self._lean else "")
        return f"onnxruntime-{self._onnxruntime.__version__}-{self._provider}-{self._threads}t{settings}"

    @property
    def concurrency(self) -> int:
        """See the port: on the processor the cores over the threads of a session."""
        alone = self._lean or self._provider != _CPU
        return 1 if alone else max(1, usable_cores() // self._threads)

    def taking_turns(self) -> OnnxRuntime:
        """See the port.

        Otherwise each session has its own arena, which keeps the size of its largest run (measured: 40 blocks of
        112×112 features at batch 8 take 2.2 GB with separate arenas and 0.1 GB with a shared one).
        """
        if self._lean or self._provider != _CPU:
            return self
        _register_shared_arena(self._onnxruntime)
        other = copy.copy(self)
        other._shares_arena = True
        return other

    def load(self, stretch: Stretch) -> OnnxSession:
        """Compose and create a session (see the port)."""
        if stretch.runtime != self.reads:
            raise RuntimeFailedError(f"ONNX Runtime cannot run blocks for {stretch.runtime}", hint=_OTHER_RUNTIME)
        session = self.load_model(compose(stretch))
        if len(stretch.fragments) > 1:
            self._require_used(session)
        return session

    def _require_used(self, session: OnnxSession) -> None:
        """Raise if the provider runs no node of a composed model, since the CPU would run it silently."""
        nodes = session.nodes_by_provider
        used = self._provider if self._provider != _TENSORRT or nodes.get(_TENSORRT) else _CUDA
        if self._provider != _CPU and nodes and not nodes.get(used):
            session.close()
            raise RuntimeFailedError(
                f"{self._provider} runs none of the {sum(nodes.values())} nodes of the model",
                hint=f"open it with {_CPU}, or install what the provider needs",
            )

    def load_model(self, model: bytes) -> OnnxSession:
        """Create a session of a serialized model; also for comparison with a model exported as a whole."""
        session = self._create(model)
        session._model_bytes = None  # drops the Python session's second copy of all weights
        if session.get_providers()[0] != self._provider:
            raise RuntimeFailedError(f"ONNX Runtime fell back to {session.get_providers()[0]}")
        large = len(model) >= WORTHWHILE_BYTES
        del model
        if large:
            give_back_freed_memory()
        nodes = {} if self._provider == _CPU else _nodes_by_provider(session)
        return OnnxSession(session, large=large, nodes_by_provider=nodes)

    def session_options(self) -> Any:
        """The ``onnxruntime.SessionOptions`` of every session."""
        options = self._onnxruntime.SessionOptions()
        options.intra_op_num_threads = self._threads
        options.inter_op_num_threads = 1
        options.log_severity_level = _ERRORS_ONLY
        # all levels: lower ones keep the quantise/dequantise pairs between int8 blocks
        options.graph_optimization_level = self._onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.enable_cpu_mem_arena = not self._lean
        if self._provider != _CPU:
            options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        if self._shares_arena:
            options.add_session_config_entry("session.use_env_allocators", "1")
        for pool in ("intra_op", "inter_op"):
            options.add_session_config_entry(f"session.{pool}.allow_spinning", "1" if self._spin_us else "0")
            if self._spin_us:
                options.add_session_config_entry(f"session.{pool}.spin_duration_us", str(self._spin_us))
        return options

    def _create(self, model: bytes) -> Any:
        providers = provider_chain(self._provider, model, cache_folder=self._cache_folder)
        try:
            return self._onnxruntime.InferenceSession(model, self.session_options(), providers=providers)
        except Exception as error:  # the binding raises many unrelated types
            raise RuntimeFailedError(f"ONNX Runtime refused the model: {_first_line(error)}") from error


def _nodes_by_provider(session: Any) -> dict[str, int]:
    """Number of nodes per provider; empty before ONNX Runtime 1.24, which does not report it."""
    if not hasattr(session, "get_provider_graph_assignment_info"):
        return {}
    nodes: dict[str, int] = {}
    for subgraph in session.get_provider_graph_assignment_info():
        nodes[subgraph.ep_name] = nodes.get(subgraph.ep_name, 0) + len(subgraph.get_nodes())
    return nodes


_registering = threading.Lock()


def _register_shared_arena(onnxruntime: Any) -> None:
    """Register the process-wide shared arena, once. It grows by the requested size, not in powers of 2."""
    with _registering:
        _registered(onnxruntime)


@cache
def _registered(onnxruntime: Any) -> None:
    kinds, where = onnxruntime.OrtAllocatorType, onnxruntime.OrtMemType.DEFAULT
    info = onnxruntime.OrtMemoryInfo("Cpu", kinds.ORT_ARENA_ALLOCATOR, 0, where)
    onnxruntime.create_and_register_allocator(info, onnxruntime.OrtArenaCfg({"arena_extend_strategy": 1}))


_OTHER_RUNTIME = "open the bundle with the runtime that its blocks are for"


def provider_chain(provider: str, model: bytes, *, cache_folder: Path | None) -> list[str | tuple[str, dict[str, str]]]:
    """``provider`` with its options, and the fallbacks for operators that it lacks.

    TensorRT names engines after the model's file, inputs and outputs, not its weights. The model's digest as prefix
    keeps engines of different models apart.
    """
    if provider != _TENSORRT:
        return [provider] if provider == _CPU else [provider, _CPU]
    if cache_folder is None:
        return [_TENSORRT, _CUDA, _CPU]
    cache_folder.mkdir(parents=True, exist_ok=True)
    options = {
        "trt_engine_cache_enable": "True",
        "trt_engine_cache_path": str(cache_folder),
        "trt_engine_cache_prefix": hashlib.sha256(model).hexdigest(),
        "trt_timing_cache_enable": "True",
        "trt_timing_cache_path": str(cache_folder),
    }
    return [(_TENSORRT, options), _CUDA, _CPU]


class OnnxSession:
    """One ONNX Runtime session.

    ``nodes_by_provider``: number of nodes per provider; empty for the CPU provider or where unknown.
    """

    def __init__(
        self, session: Any, *, large: bool = False, nodes_by_provider: Mapping[str, int] | None = None
    ) -> None:
        self.nodes_by_provider = dict(nodes_by_provider or {})
        from onnxruntime import RunOptions

        self._session, self._new_options = session, RunOptions
        self._large = large
        self._inputs = [value.name for value in session.get_inputs()]
        self._outputs = [value.name for value in session.get_outputs()]

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """See the port."""
        return self._run(inputs, None)

    def run_until(self, inputs: Sequence[Array], stop: StopSignal) -> list[Array] | None:
        """See the port: ONNX Runtime looks at the terminate flag of a run between two operators."""
        options = self._new_options()
        with stop.ending_by(partial(setattr, options, "terminate", True)):
            if stop.is_set:
                return None
            try:
                return self._run(inputs, options)
            except RuntimeFailedError:
                if stop.is_set:
                    return None
                raise

    def _run(self, inputs: Sequence[Array], options: Any) -> list[Array]:
        session = self._session
        if session is None:
            raise RuntimeFailedError("the session was closed")
        try:
            return session.run(self._outputs, dict(zip(self._inputs, inputs, strict=True)), options)
        except Exception as error:
            raise RuntimeFailedError(f"ONNX Runtime failed: {_first_line(error)}") from error

    def close(self) -> None:
        """See the port."""
        if self._session is None:
            return
        self._session = None
        if self._large:
            give_back_freed_memory()


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
