"""Compiling models for a chip's NPU in a child process, which may crash or hang without harm."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from device_sdk.errors import MissingExtraError
from device_sdk.extras import require
from device_sdk.files.atomic import storage_errors
from device_sdk.supernet.blocks import CompiledFor, RefusedNodes
from packager.npu import child
from packager.npu.chips import Chip

EXTRA, PACKAGE, _MODULE = "qnn", "onnxruntime-qnn", "onnxruntime_qnn"
DEADLINE_S = 120.0  # for one model, and then for each sample in the emulator
_MOST_REFUSED, _LONGEST = 64, 400  # of a record, as the manifest has it
_COMMAND = (sys.executable, "-P", str(Path(child.__file__)))

Array = npt.NDArray[Any]


def compiler_version() -> str:
    """Name and version of the compiler, for example ``onnxruntime-qnn 2.7.0``.

    Raises:
        MissingExtraError: it is not installed.
    """
    require(_MODULE, extra=EXTRA)
    installed = installed_compiler()
    if installed is None:
        raise MissingExtraError(_MODULE, extra=EXTRA)
    return installed


def installed_compiler() -> str | None:
    """As ``compiler_version``; None if it is not installed."""
    try:
        return f"{PACKAGE} {metadata.version(PACKAGE)}"
    except metadata.PackageNotFoundError:
        return None


@dataclass(frozen=True)
class Outcome:
    """Result of compiling a model for a chip. ``failure``: the reason if it cannot run there, else empty.

    ``seconds``: of compiling; ``context_bytes``: of the compiled model, 0 where it was run instead of stored.
    ``answers`` [count, …]: of the emulator, where there were inputs.
    """

    record: CompiledFor
    failure: str = ""
    seconds: float = 0.0
    context_bytes: int = 0
    answers: Array | None = None


class Compiler:
    """Compiles models one by one, and runs them in the emulator.

    ``deadline_s``: of one model, and of each sample in the emulator. ``command`` starts the child process; by default
    ``child.py``.

    Raises:
        MissingExtraError: the compiler is not installed.
    """

    def __init__(self, *, deadline_s: float = DEADLINE_S, command: Sequence[str] = _COMMAND) -> None:
        self._version = compiler_version()
        self._deadline_s, self._command = deadline_s, tuple(command)
        self._child: _Child | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="npu-")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the child process and delete its files."""
        self._end()
        self._folder.cleanup()

    def compiled(self, model: bytes, chip: Chip, inputs: Array | None = None) -> Outcome:
        """Compile ``model``, of one input, for ``chip`` at batch 1, and run it on ``inputs`` [count, …] if given.

        A crash, or a reply that comes too late, is the failure of this model alone.

        Raises:
            StorageError: there is no space for temporary files.
        """
        folder = Path(self._folder.name)
        with storage_errors(folder):
            (folder / "model.onnx").write_bytes(model)
            if inputs is not None:
                np.save(folder / "inputs.npy", inputs)
        request = {
            "folder": str(folder),
            "model": str(folder / "model.onnx"),
            "inputs": None if inputs is None else str(folder / "inputs.npy"),
            "answers": str(folder / "answers.npy"),
            "htp_arch": chip.htp_arch,
            "soc_model": chip.soc_model,
        }
        reply = self._reply(request)
        outcome = self._outcome(reply, chip)
        if inputs is None or outcome.failure:
            return outcome
        answers = np.load(folder / "answers.npy", allow_pickle=False)
        return Outcome(outcome.record, seconds=outcome.seconds, answers=answers)

    def _outcome(self, reply: dict[str, Any], chip: Chip) -> Outcome:
        refused = tuple(
            RefusedNodes(operator[:128], count, reason[:_LONGEST]) for operator, count, reason in reply["refused"]
        )
        nodes = reply.get("nodes", 0)
        record = CompiledFor(chip.name, child.PROVIDER, self._version, nodes, refused[:_MOST_REFUSED])
        failure = reply.get("failure", "" if nodes else "it takes none of the nodes")
        return Outcome(record, failure, reply.get("seconds", 0.0), reply.get("context_bytes", 0))

    def _reply(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._child is None:
            self._child = _Child(self._command)
        self._child.ask(request)
        while True:
            reply = self._child.reply(self._deadline_s)
            if reply is None:
                failure = self._end()
                return {"failure": failure, "refused": []}
            if "ran" not in reply:
                return reply

    def _end(self) -> str:
        """End the child process. Returns how it ended."""
        if self._child is None:
            return ""
        ended, self._child = self._child.end(), None
        return ended if ended else f"the compiler took more than {self._deadline_s:g} s"


class _Child:
    """The child process; a thread reads its replies."""

    def __init__(self, command: Sequence[str]) -> None:
        environment = os.environ | {"ORT_DISABLE_TELEMETRY": "1"}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            text=True,
            encoding="utf-8",
        )
        self._replies: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._replies.put(line)
        self._replies.put("")  # it ended

    def ask(self, request: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, as its replies will say
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()

    def reply(self, timeout_s: float) -> dict[str, Any] | None:
        """The next reply; None if the process ended, or in ``timeout_s`` seconds none came."""
        try:
            line = self._replies.get(timeout=timeout_s)
        except queue.Empty:
            return None
        return json.loads(line) if line else None

    def end(self) -> str:
        """End the process. Returns how it had ended by itself, empty if it was running."""
        alive = self._reader.is_alive()  # the process closed its replies: it is about to end
        if alive:
            self._process.kill()
        status = self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                _close(pipe)
        return "" if alive else f"the compiler crashed ({_status(status)})"


def _close(pipe: Any) -> None:
    with contextlib.suppress(BrokenPipeError):  # what was written last was never read
        pipe.close()


def _status(status: int) -> str:
    return signal.Signals(-status).name if status < 0 else f"status {status}"
