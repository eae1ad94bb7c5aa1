"""Tries a promise in a process of its own, so that a crash, a hang or a leak is its own and is seen."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkContext, ForkServerContext
from pathlib import Path
from typing import Literal

from benchmarks.faults.promise import LOG, Findings, Promise, Trial
from benchmarks.faults.small_bundle import SmallBundle
from device_sdk.errors import UsageError

PATIENCE = 3.0  # times its share, and then
NICE = -10  # where that is permitted
GRACE_S = 60.0  # a promise that takes longer hangs
_ENDING_S = 0.5
_PRELOADED = ("benchmarks.faults.promises.registry",)


@dataclass(frozen=True)
class Tried:
    """Findings of a promise's trial, and its duration."""

    promise: Promise
    findings: Findings
    seconds: float


def require_linux() -> None:
    """Raise UsageError elsewhere: trials fork, and read the memory of processes from /proc."""
    if sys.platform != "linux":
        raise UsageError("promises are tried on Linux only: trials fork, and read /proc", hint="run it in a container")


def try_promise(
    promise: Promise,
    folder: Path,
    *,
    seconds: float,
    seed: int = 0,
    grace_s: float = GRACE_S,
    start: Literal["forkserver", "fork"] = "forkserver",
) -> Tried:
    """Try ``promise`` in a new process; a trial that dies, hangs or raises is not kept, and says how.

    ``start``: start method of the process. ``fork`` takes any callable, but inherits locks that threads hold.
    """
    context: ForkContext | ForkServerContext
    if start == "fork":
        context = multiprocessing.get_context("fork")
    else:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(_PRELOADED))  # imported once, and no thread is started there
    began_s = time.monotonic()
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(sender, promise, folder, seconds, seed))
    process.start()
    sender.close()
    findings = _received(receiver, PATIENCE * seconds + grace_s)
    if findings is None:
        findings = Findings()
        process.join(_ENDING_S)  # a process that dies closes its pipe before it can be waited for
        if process.is_alive():
            findings.case(False, f"no end after {time.monotonic() - began_s:.0f} s", "hung")
        else:
            findings.case(False, f"its process ended with {process.exitcode}", "crashed")
    _end(process)
    return Tried(promise, findings, time.monotonic() - began_s)


def _received(receiver: Connection, patience_s: float) -> Findings | None:
    with contextlib.suppress(EOFError):
        if receiver.poll(patience_s):
            found = receiver.recv()
            assert isinstance(found, Findings)
            return found
    return None


def _end(process: multiprocessing.process.BaseProcess) -> None:
    process.join(5)
    if process.is_alive() and process.pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what it has started, too
        process.join()


def _work(sender: Connection, promise: Promise, folder: Path, seconds: float, seed: int) -> None:
    os.setpgid(0, 0)
    folder.mkdir(parents=True)
    _log_to(folder / LOG)
    with contextlib.suppress(OSError):  # servers, clients and probes alike: what else this machine does is not meant
        os.nice(NICE)
    findings = Findings()
    trial = Trial(folder / "trial", SmallBundle.make(folder / "bundle"), seconds, seed)
    trial.folder.mkdir()
    try:
        promise.check(trial, findings)
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        what = f"{type(error).__name__}: {str(error)[:300]} ({Path(where.filename).name}:{where.lineno})"
        findings.case(False, what, "crashed")
        traceback.print_exc()
    sender.send(findings)


def _log_to(path: Path) -> None:
    """Redirect the output and the logs of this process and its libraries to a file, which is searched for secrets."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for standard in (1, 2):
        os.dup2(handle, standard)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, force=True)
