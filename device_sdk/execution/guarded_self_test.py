"""The self-test of a bundle that has not run here yet, in a child process with deadlines and a memory limit.

A model that never ends, crashes the runtime or takes all memory then fails its self-test instead of the application.
The child is an interpreter of its own (``self_test_process``): a fork would inherit the locks of running threads.
Where no interpreter can be started (one that is embedded or frozen), the self-test runs in this process, without these
limits. ``multiprocessing.set_executable`` names an interpreter to applications that embed Python.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing.spawn
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec

from device_sdk.bundles.bundle import Bundle
from device_sdk.errors import (
    BlobError,
    BudgetError,
    CompositionError,
    ManifestError,
    PathweaveError,
    RuntimeFailedError,
    SelfTestError,
)
from device_sdk.execution.home_check import HomeReport
from device_sdk.execution.self_test import run_self_test
from device_sdk.execution.self_test_process import Report, Request
from device_sdk.execution.workspace import Workspace
from device_sdk.machine import memory_bytes
from device_sdk.progress import Progress, SilentProgress, Task
from device_sdk.runtimes.port import Runtime
from device_sdk.runtimes.settings import RuntimeSettings
from device_sdk.supernet.home import Home

_STOPPED = "the self-test was stopped"
_MODULE = "device_sdk.execution.self_test_process"
_LEAST_LIMIT_BYTES = 1 << 30
_BYTES_PER_BLOB_BYTE = 8  # a fragment is read, composed, parsed and optimised
_BYTES_PER_THREAD = 128 << 20  # stacks and heaps that are reserved, not used
_KNOWN: dict[str, type[PathweaveError]] = {
    one.__name__: one
    for one in (BlobError, BudgetError, CompositionError, ManifestError, RuntimeFailedError, SelfTestError)
}

_log = logging.getLogger(__name__)


class SelfTestAbortedError(SelfTestError):
    """The self-test did not end by itself: too slow, too large, or it crashed its process."""


@dataclass(frozen=True)
class SelfTestLimits:
    """``start_s``: until the child is ready; ``step_s``: for one block or path; ``total_s``: for all of them."""

    start_s: float = 60.0
    step_s: float = 20.0
    total_s: float = 300.0


PROCESSOR_LIMITS = SelfTestLimits()
DEVICE_LIMITS = SelfTestLimits(step_s=900.0, total_s=7200.0)  # TensorRT compiles an engine for each block
HOME_LIMITS = SelfTestLimits(step_s=300.0, total_s=3600.0)


def run_guarded_self_test(
    bundle: Bundle,
    runtime: Runtime,
    settings: RuntimeSettings,
    *,
    exits: Collection[str] | None = None,
    memory_cap_bytes: int | None = None,
    limits: SelfTestLimits | None = None,
    interpreter: str | None = None,
    progress: Progress | None = None,
) -> None:
    """``run_self_test`` in a child process with a runtime of the same ``settings``; in this one if that is impossible.

    ``exits``: only these are tested. ``limits``: by default ``PROCESSOR_LIMITS`` or ``DEVICE_LIMITS``.
    ``interpreter``: by default this process's own.

    Raises:
        SelfTestError: as ``run_self_test``; SelfTestAbortedError: it did not end by itself.
        BlobError, CompositionError, RuntimeFailedError, BudgetError: as ``run_self_test``.
    """
    shown = progress or SilentProgress()
    limits = limits or (PROCESSOR_LIMITS if settings.on_processor else DEVICE_LIMITS)
    command = interpreter or _interpreter()
    reason = "there is no interpreter to start" if command is None else ""
    if command is not None:
        request = _request(bundle, settings, memory_cap_bytes=memory_cap_bytes, only=exits)
        try:
            _in_child(command, request, limits, shown)
            return
        except _NotStartedError as error:
            reason = str(error)
    _log.warning("the self-test runs in this process, without limits: %s", reason)
    try:
        run_self_test(Workspace(bundle, runtime, memory_cap_bytes), exits=exits, progress=shown)
    except MemoryError as error:
        raise _aborted("it needs more memory than there is") from error


def run_guarded_home_check(
    bundle: Bundle,
    settings: RuntimeSettings,
    home: Home,
    *,
    limits: SelfTestLimits = HOME_LIMITS,
    interpreter: str | None = None,
    progress: Progress | None = None,
) -> HomeReport:
    """``check_home`` in a child process with a runtime of the same ``settings`` at ``home`` alone.

    Never raises for what is wrong with the home: a child that crashes, hangs or cannot be started is the report's
    failure. Its ``runtime`` is then ``home``'s name.
    """
    command = interpreter or _interpreter()
    if command is None:
        return HomeReport(str(home), str(home), failure="there is no interpreter to check it in")
    request = _request(bundle, settings.at(home), home=home)
    try:
        report = _in_child(command, request, limits, progress or SilentProgress())
    except (PathweaveError, _NotStartedError) as error:
        return HomeReport(str(home), str(home), failure=str(error).removeprefix(f"{_STOPPED}: "))
    assert report.checked is not None
    return report.checked


def _request(
    bundle: Bundle,
    settings: RuntimeSettings,
    *,
    memory_cap_bytes: int | None = None,
    only: Collection[str] | None = None,
    home: Home | None = None,
) -> Request:
    return Request(
        folder=str(bundle.folder.resolve()),
        blobs=str(bundle.blobs.resolve()),
        digest=bundle.digest,
        runtime=settings,
        memory_cap_bytes=memory_cap_bytes,
        memory_limit_bytes=_memory_limit_bytes(bundle, settings),
        exits=bundle.exits,
        edges=None if bundle.part.edges is None else tuple(bundle.part.edges),
        only=None if only is None else tuple(only),
        home=home,
    )


class _NotStartedError(Exception):
    """The child ended, or did not answer, before it had read the bundle."""


def _in_child(command: str, request: Request, limits: SelfTestLimits, progress: Progress) -> Report:
    """The report of a child that passed; raises its error otherwise."""
    with _child(command) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            child.stdin.write(msgspec.json.encode(request) + b"\n")
            child.stdin.flush()
        except OSError as error:
            raise _NotStartedError(f"{command} ended at once") from error
        reports = _Reports(child.stdout)
        if reports.next(limits.start_s) is None:
            raise _NotStartedError(f"{command} does not run {_MODULE}")
        ends_s = time.monotonic() + limits.total_s
        with contextlib.ExitStack() as stack:
            task: Task | None = None
            while True:
                left_s = min(limits.step_s, ends_s - time.monotonic())
                report = reports.next(left_s)
                if report is None:
                    raise _aborted(_why(child, left_s))
                if report.kind == "begun":
                    task = stack.enter_context(progress.task("self-test", report.total))
                elif report.kind == "step" and task is not None:
                    task.advance(report.total)
                elif report.kind == "passed":
                    return report
                elif report.kind == "failed":
                    raise _error(report)


@contextlib.contextmanager
def _child(command: str) -> Iterator[subprocess.Popen[bytes]]:
    folder = Path(__file__).resolve().parents[2]
    paths = dict.fromkeys([str(folder), *(path for path in sys.path if os.path.isabs(path))])
    try:
        child = subprocess.Popen(
            [command, "-P", "-m", _MODULE],  # -P: the working directory is not searched for modules
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
    except OSError as error:
        raise _NotStartedError(f"{command} cannot be started: {error.strerror}") from error
    try:
        yield child
    finally:
        child.kill()
        child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


class _Reports:
    """The reports of a child, read in a thread, so that waiting for one can end."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._lines: queue.Queue[bytes | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True, name="self-test").start()

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            for line in self._stream:
                self._lines.put(line)
        self._lines.put(None)

    def next(self, wait_s: float) -> Report | None:
        """The next report; None if there is none within ``wait_s``, or the child ended."""
        try:
            line = self._lines.get(timeout=max(0.0, wait_s))
            return None if line is None else msgspec.json.decode(line, type=Report)
        except (queue.Empty, msgspec.DecodeError):
            return None


def _why(child: subprocess.Popen[bytes], waited_s: float) -> str:
    with contextlib.suppress(subprocess.TimeoutExpired):
        status = child.wait(timeout=0.2)
        return f"it crashed its process with signal {-status}" if status < 0 else "it ended its process"
    return f"it did not go on for {waited_s:.0f} s"


def _error(report: Report) -> PathweaveError:
    known = _KNOWN.get(report.error)
    if known is not None:
        return known(report.message, hint=report.hint)
    if report.error == "MemoryError":
        return _aborted("it needs too much memory")
    return _aborted(f"{report.error}: {report.message}")


def _aborted(reason: str) -> SelfTestAbortedError:
    return SelfTestAbortedError(
        f"{_STOPPED}: {reason}", hint="the bundle does not work on this device; package it again"
    )


def _memory_limit_bytes(bundle: Bundle, settings: RuntimeSettings) -> int | None:
    """Enough for what a bundle of this size needs, at most half of the device's memory; None beside an accelerator."""
    if not settings.on_processor:
        return None
    wanted = max(_LEAST_LIMIT_BYTES, _BYTES_PER_BLOB_BYTE * sum(map(bundle.loaded_size, bundle.blob_sizes())))
    half = (memory_bytes() or 0) // 2
    return (min(wanted, half) if half else wanted) + _BYTES_PER_THREAD * settings.threads


def _interpreter() -> str | None:
    """The interpreter of child processes; None where this process is no plain interpreter."""
    executable = multiprocessing.spawn.get_executable()
    if isinstance(executable, bytes):
        executable = os.fsdecode(executable)
    if not executable or getattr(sys, "frozen", False):
        return None
    return executable if Path(executable).name.lower().startswith(("python", "pypy")) else None
