"""ONNX Runtime: composed models as sessions, on the processor or another provider."""

from __future__ import annotations

import copy
import ctypes
import re
import threading
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from device_sdk.errors import RuntimeFailedError, UsageError
from device_sdk.fragments.composition import COMPOSED, Stretch, compose
from device_sdk.machine import usable_cores
from device_sdk.runtimes.kept_contexts import session_by_context
from device_sdk.runtimes.pinned import AFFINITIES, affinity_config, on_cores, pinned
from device_sdk.runtimes.port import Array, LoadedStretch, StopSignal, require_one_home
from device_sdk.runtimes.providers import (
    ProviderSettings,
    is_built_in,
    plugin_devices,
    provider_chain,
    provider_named,
    provider_version,
    require_available,
)

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


_CODE = re.compile(r"\[ONNXRuntimeError\] : \d+ : \w+ : ")
_PLACE = re.compile(r"^/\S+:\d+ .*?\) (?=.)")
_FRAME = re.compile(r"Check '|Exception from |--|Summary|While |FrontEnd |Model wasn't")
_ERRORS_ONLY = 3
_MOST_SPIN_US = 1_000_000
_CPU = "CPUExecutionProvider"


class OnnxRuntime:
    """Runs composed ONNX models with one provider and a fixed number of threads.

    ``lean``: hold no memory between runs that the next run could allocate again; for plans under a memory cap. The
    threads of this process then share one heap.
    ``spin_us``: microseconds that a thread of several waits on the processor for work before it sleeps, at most
    1,000,000. Before ONNX Runtime 1.26 any but 0 means as long as it likes (docs/guide/profiling.md).
    ``cache_folder``: where a provider that compiles, such as TensorRT or QNN, keeps what it made on this device.
    ``provider_options``: of the provider, before those that this SDK sets. ``cores``: to which all threads of a session
    are pinned, and callers while they run; none for wherever the system puts them.

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
        provider_options: Mapping[str, str] | None = None,
        cores: Sequence[int] = (),
    ) -> None:
        import onnxruntime

        if not 0 <= spin_us <= _MOST_SPIN_US:
            raise UsageError(f"spin_us is {spin_us}", hint=f"give 0 to {_MOST_SPIN_US:,} microseconds")
        onnxruntime.disable_telemetry_events()  # on Windows, where it does not look at the environment
        require_available(provider)
        _, self._described = provider_named(provider)
        self._onnxruntime = onnxruntime
        self._threads = threads
        self._provider = self._described.name
        self._settings = ProviderSettings(threads, cache_folder, provider_options)
        self._cores = tuple(cores)
        self._lean = lean
        self._spin_us = spin_us if threads > 1 else 0  # a single thread waits for none
        self._shares_arena = False
        if lean:
            keep_one_heap()
        onnxruntime.set_default_logger_severity(_ERRORS_ONLY)

    @property
    def identity(self) -> str:
        """For example ``onnxruntime-1.31.1-CPUExecutionProvider-2t``, with ``-spin50us`` and ``-lean`` where set."""
        settings = (f"-spin{self._spin_us}us" if self._spin_us else "") + ("-lean" if self._lean else "")
        version = provider_version(self._provider)
        provider = f"{self._provider}-{version}" if version else self._provider
        return f"onnxruntime-{self._onnxruntime.__version__}-{provider}-{self._threads}t{settings}"

    @property
    def concurrency(self) -> int:
        """See the port: on the processor the cores over the threads of a session."""
        alone = self._lean or self._provider != _CPU
        return 1 if alone else max(1, usable_cores() // self._threads)

    @property
    def waits_for_threads(self) -> bool:
        """See the port: other providers run on threads, or devices, of their own."""
        return self._threads > 1 or self._provider != _CPU

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

    def load(self, stretch: Stretch) -> LoadedStretch:
        """Compose and create a session (see the port)."""
        if stretch.runtime != self.reads:
            raise RuntimeFailedError(f"ONNX Runtime cannot run blocks for {stretch.runtime}", hint=_OTHER_RUNTIME)
        require_one_home(stretch)
        with on_cores(self._cores) if self._cores else nullcontext():
            session = self.load_model(compose(stretch))
        if len(stretch.fragments) > 1:
            self._require_used(session)
        return pinned(session, self._cores) if self._cores else session

    def _require_used(self, session: OnnxSession) -> None:
        """Raise if the provider runs no node of a composed model, since the CPU would run it silently."""
        nodes = session.nodes_by_provider
        if self._provider != _CPU and nodes and not session.assigned:
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
        assigned = {} if self._provider == _CPU else _operators_by_provider(session)
        used = (self._provider, *self._described.stand_ins)
        kind = OneSampleSession if self._described.one_sample else OnnxSession
        return kind(session, large=large, operators=assigned, used=used)

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
        if self._described.one_sample:
            options.add_free_dimension_override_by_name("batch", 1)
        if self._cores and self._threads > 1:
            options.add_session_config_entry(AFFINITIES, affinity_config(self._cores, self._threads))
        if self._shares_arena:
            options.add_session_config_entry("session.use_env_allocators", "1")
        for pool in ("intra_op", "inter_op"):
            options.add_session_config_entry(f"session.{pool}.allow_spinning", "1" if self._spin_us else "0")
            if self._spin_us:
                options.add_session_config_entry(f"session.{pool}.spin_duration_us", str(self._spin_us))
        return options

    def _create(self, model: bytes) -> Any:
        described, settings = self._described, self._settings
        try:
            chosen = {**described.options(model, settings), **(settings.given or {})}
            if is_built_in(self._provider):
                providers = provider_chain(described, chosen)
                return self._onnxruntime.InferenceSession(model, self.session_options(), providers=providers)
            create = partial(self._create_by_plugin, chosen)
            if not described.keeps_context:
                return create(model, {})
            folder, identity = settings.cache_folder, self.identity
            return session_by_context(create, model, folder=folder, identity=identity, options=chosen)
        except Exception as error:  # the binding raises many unrelated types
            raise RuntimeFailedError(f"ONNX Runtime refused the model: {_first_line(error)}") from error

    def _create_by_plugin(self, chosen: Mapping[str, str], model: bytes | str, entries: Mapping[str, str]) -> Any:
        options = self.session_options()
        for name, value in entries.items():
            options.add_session_config_entry(name, value)
        options.add_provider_for_devices(plugin_devices(self._provider)[:1], dict(chosen))
        return self._onnxruntime.InferenceSession(model, options)


def _operators_by_provider(session: Any) -> dict[str, Counter[str]]:
    """Number of nodes by provider and operator; empty before ONNX Runtime 1.24, which does not report it."""
    if not hasattr(session, "get_provider_graph_assignment_info"):
        return {}
    operators: dict[str, Counter[str]] = {}
    for subgraph in session.get_provider_graph_assignment_info():
        operators.setdefault(subgraph.ep_name, Counter()).update(node.op_type for node in subgraph.get_nodes())
    return operators


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


class OnnxSession:
    """One ONNX Runtime session.

    ``operators``: number of nodes by provider and operator; empty for the CPU provider or where unknown. ``used``: the
    providers that were wanted.
    """

    def __init__(
        self,
        session: Any,
        *,
        large: bool = False,
        operators: Mapping[str, Mapping[str, int]] | None = None,
        used: Collection[str] = (),
    ) -> None:
        self._operators, self._used = dict(operators or {}), used
        from onnxruntime import RunOptions

        self._session, self._new_options = session, RunOptions
        self._large = large
        self._inputs = [value.name for value in session.get_inputs()]
        self._outputs = [value.name for value in session.get_outputs()]

    @property
    def nodes_by_provider(self) -> dict[str, int]:
        """Number of nodes per provider; empty for the CPU provider or where unknown."""
        return {name: sum(operators.values()) for name, operators in self._operators.items()}

    @property
    def assigned(self) -> int:
        """Number of nodes that the wanted providers run."""
        return sum(nodes for name, nodes in self.nodes_by_provider.items() if name in self._used)

    @property
    def refused(self) -> dict[str, int]:
        """Number of nodes by operator that other providers run."""
        left: Counter[str] = Counter()
        for name, operators in self._operators.items():
            if name not in self._used:
                left.update(operators)
        return dict(left)

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


class OneSampleSession(OnnxSession):
    """A session that takes one sample: the samples of a batch run one after the other."""

    def _run(self, inputs: Sequence[Array], options: Any) -> list[Array]:
        samples = [[one[at : at + 1] for one in inputs] for at in range(len(inputs[0]))]
        runs = [super(OneSampleSession, self)._run(sample, options) for sample in samples]
        return runs[0] if len(runs) == 1 else [np.concatenate(outputs) for outputs in zip(*runs, strict=True)]


def _first_line(error: Exception) -> str:
    """The first line of a message that tells something, without codes and places in source files before it."""
    lines = [_PLACE.sub("", _CODE.split(line)[-1]) for line in str(error).splitlines()]
    told = next((line for line in lines if line and not _FRAME.match(line)), None)
    return (told or next(filter(None, lines), type(error).__name__))[:300]
