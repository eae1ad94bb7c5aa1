"""The self-test in a process of its own: ``python -P -m device_sdk.execution.self_test_process``.

Reads one line of JSON, a ``Request``, from standard input; writes ``Report`` lines to standard output. It ends when
standard input does, so it does not outlive its parent. The request comes from the parent alone; the bundle's signature
was verified there, and its digest is compared here.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Literal

import msgspec

from device_sdk.bundles.bundle import Bundle
from device_sdk.bundles.held_part import HeldPart
from device_sdk.errors import BlobError, PathweaveError
from device_sdk.execution.home_check import HomeReport, check_home
from device_sdk.execution.self_test import run_self_test
from device_sdk.execution.workspace import Workspace
from device_sdk.machine import mapped_bytes
from device_sdk.progress import Task
from device_sdk.runtimes.settings import RuntimeSettings
from device_sdk.supernet.home import Home
from device_sdk.supernet.plan import Edge


class Request(msgspec.Struct, frozen=True):
    """Self-test of the held ``exits`` and ``edges`` (None: all); with ``only``, of these exits alone, without blocks.

    ``home``: the check of this home instead (``home_check``); ``runtime`` are its settings.
    ``memory_limit_bytes``: of address space, beyond the loaded runtime; None for no limit.
    """

    folder: str
    blobs: str
    digest: str
    runtime: RuntimeSettings
    memory_cap_bytes: int | None = None
    memory_limit_bytes: int | None = None
    exits: tuple[str, ...] | None = None
    edges: tuple[Edge, ...] | None = None
    only: tuple[str, ...] | None = None
    home: Home | None = None


class Report(msgspec.Struct, frozen=True):
    """``ready``: the runtime is loaded, the bundle not yet; ``begun``, ``step``: of ``total`` steps; the outcome."""

    kind: Literal["ready", "begun", "step", "passed", "failed"]
    total: float = 0.0
    error: str = ""  # the name of the exception's class
    message: str = ""
    hint: str | None = None
    checked: HomeReport | None = None


def main() -> None:
    """Run one request."""
    reports = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what libraries print is no report
    request = msgspec.json.decode(sys.stdin.buffer.readline(), type=Request)
    settings = request.runtime
    runtime = settings.make() if request.home is None else None
    _send(reports, Report("ready"))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _limit(request.memory_limit_bytes)
    try:
        runtime = runtime or settings.make()  # a provider that crashes as it is loaded fails its check
        accepts = settings.accepts
        held = HeldPart(request.exits, None if request.edges is None else frozenset(request.edges))
        bundle = Bundle.open(
            request.folder, blobs=Path(request.blobs), accepts=accepts, part=lambda manifest, digest: held
        )
        if bundle.digest != request.digest:
            raise BlobError(f"{request.folder} was replaced before its self-test")
        workspace = Workspace(bundle, runtime, request.memory_cap_bytes)
        checked = None
        if request.home is None:
            run_self_test(workspace, exits=request.only, progress=_Steps(reports))
        else:
            checked = check_home(workspace, request.home, _Steps(reports))
    except PathweaveError as error:
        _send(reports, Report("failed", error=type(error).__name__, message=str(error), hint=error.hint))
    except Exception as error:  # also MemoryError: the parent judges
        _send(reports, Report("failed", error=type(error).__name__, message=str(error)[:300]))
    else:
        _send(reports, Report("passed", checked=checked))
    os._exit(0)  # runtimes may take long to tear down


def _send(reports: BinaryIO, report: Report) -> None:
    reports.write(msgspec.json.encode(report) + b"\n")


def _end_with_parent() -> None:
    while sys.stdin.buffer.read(1):
        pass
    os._exit(1)


class _Steps:
    """Progress as reports."""

    def __init__(self, reports: BinaryIO) -> None:
        self._reports = reports

    @contextlib.contextmanager
    def task(self, name: str, total: float, *, done: float = 0.0) -> Iterator[Task]:
        _send(self._reports, Report("begun", total=total))
        yield self

    def advance(self, amount: float = 1.0) -> None:
        _send(self._reports, Report("step", total=amount))

    def note(self, text: str) -> None:
        pass


def _limit(memory_limit_bytes: int | None) -> None:
    """Limit the address space where the system can; prefer this process where memory runs out; write no core dump."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    try:
        import resource
    except ImportError:  # Windows
        return
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if memory_limit_bytes is not None:
            limit = (mapped_bytes() or 0) + memory_limit_bytes
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


if __name__ == "__main__":
    main()
