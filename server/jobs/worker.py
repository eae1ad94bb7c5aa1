"""The worker of a job: the packager's command as a subprocess, and the interpretation of its exit.

The server never imports the packager; its only interface is the command line.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from device_sdk.commands.command_line import PROGRESS_FILE
from device_sdk.files.atomic import decode_json
from server.jobs import launch
from server.jobs.job_user import JobUser
from server.jobs.store import Job
from server.jobs.workplace import Workplace

# What a worker inherits: where programs, libraries and caches are, the language, threads and devices. Everything else,
# such as tokens, cloud credentials and proxies with passwords, stays with the server.
_INHERITED = frozenset(
    {
        *("PATH", "HOME", "USER", "TMPDIR", "TEMP", "TMP", "TZ", "LANG", "LANGUAGE"),
        *("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT"),
        *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TORCH_HOME", "HF_HOME", "XDG_CACHE_HOME"),
        *("CUDA_VISIBLE_DEVICES", "CUDA_HOME", "NVIDIA_VISIBLE_DEVICES", "COVERAGE_PROCESS_START"),
    }
)
_INHERITED_PREFIX = "LC_"
_MAX_RESULT_BYTES = 1_000_000
_PACKAGERS_MODULES = ("torch", "onnx", "onnxscript", "safetensors")
PACKAGER_HINT = "pip install 'pathweave[packager]'"


def missing_modules() -> list[str]:
    """Modules of the packager that are not installed here."""
    return [module for module in _PACKAGERS_MODULES if not is_installed(module)]


def is_installed(module: str) -> bool:
    """True if a module can be imported; it is not imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


@dataclass(frozen=True)
class Failure:
    """The reason for a failed job in one line, and a hint."""

    error: str
    hint: str | None = None

    def without_paths(self, names: Mapping[str, str]) -> Failure:
        """The failure with paths of this machine replaced by ``names``, so they are not revealed to clients."""
        return Failure(without_paths(self.error, names), self.hint and without_paths(self.hint, names))


def without_paths(text: str, names: Mapping[str, str]) -> str:
    """``text`` with paths replaced by names, the longest paths first."""
    for path in sorted(names, key=len, reverse=True):
        text = text.replace(path, names[path])
    return text


def arguments_of(job: Job, workplace: Workplace, *, training: str, validation: str) -> list[str]:
    """The arguments of ``pathweave package`` for a job. ``training``, ``validation``: references of its data."""
    arguments = ["--model", job.request.model, "--data", training, "--val", validation]
    arguments += ["--out", str(workplace.out), "--name", job.request.name, "--version", str(job.version)]
    arguments += ["--recipe", str(workplace.recipe), "--json"]
    if job.weights_sha256 is not None:
        arguments += ["--weights", str(workplace.weights)]
    return arguments


def start_worker(command: Sequence[str], workplace: Workplace, user: JobUser | None = None) -> subprocess.Popen[bytes]:
    """Start ``command`` in its own session, with its output in the log and its result in a file, as ``user`` if given.

    It inherits the working directory and of the environment what ``_INHERITED`` lists.

    Raises:
        OSError: the files cannot be created, or the program does not exist.
        StorageError: the folder cannot be given to the user.
    """
    environment = {
        name: value for name, value in os.environ.items() if name in _INHERITED or name.startswith(_INHERITED_PREFIX)
    }
    environment[PROGRESS_FILE] = str(workplace.progress)
    workplace.progress.unlink(missing_ok=True)
    ids = [launch.OWN_USER] * 2
    if user is not None:
        environment |= {"HOME": str(workplace.folder), "USER": user.name, "TMPDIR": str(workplace.folder)}
        ids = [str(user.uid), str(user.gid)]
    launcher = [sys.executable, "-I", str(Path(launch.__file__)), str(os.getpid()), *ids]
    with workplace.open_to_append(workplace.log) as log, workplace.open_to_write(workplace.result) as result:
        if user is not None:
            user.give(workplace.folder)
        return subprocess.Popen(
            [*launcher, *command],
            stdin=subprocess.DEVNULL,
            stdout=result,
            stderr=log,
            env=environment,
            start_new_session=True,
        )


class _Error(msgspec.Struct, frozen=True):
    message: str
    hint: str | None = None


class _Result(msgspec.Struct, frozen=True):
    error: _Error | None = None


def failure_of(status: int, workplace: Workplace) -> Failure | None:
    """The failure of a worker that ended with ``status``; None if it succeeded."""
    result = _read_result(workplace)
    if result is not None and result.error is not None:
        return Failure(result.error.message, result.error.hint)
    if status == 0:
        return None
    if status < 0:
        reason = f"the worker was killed by {_signal_name(-status)}"
        return Failure(reason, "possibly out of memory; see its log")
    return Failure(f"the worker ended with status {status}", "see its log")


def _read_result(workplace: Workplace) -> _Result | None:
    try:
        with workplace.open_to_read(workplace.result) as file:
            lines = file.read(_MAX_RESULT_BYTES).splitlines()
        return decode_json(lines[-1], _Result) if lines else None
    except (OSError, ValueError):
        return None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
