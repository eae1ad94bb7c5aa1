"""Shared by all subcommands: --json, one result on stdout, progress and logs on stderr."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import TextIO, TypeVar

import click

from device_sdk.progress import FileProgress, Progress, Task, TerminalProgress

Command = TypeVar("Command", bound=Callable[..., object])

_results: ContextVar[TextIO | None] = ContextVar("results", default=None)


def json_option(command: Command) -> Command:
    """Add the flag ``--json`` to a command, as argument ``as_json``."""
    purpose = "Print one JSON object on standard output, everything else on standard error."
    return click.option("--json", "as_json", is_flag=True, help=purpose)(command)


def emit(result: Mapping[str, object], *, as_json: bool, text: Callable[[], None] | str) -> None:
    """Print a command's result: one line of JSON, or ``text`` (a string, or a function that prints it).

    JSON escapes what the output's encoding lacks, text replaces it.

    Raises:
        TypeError: ``result`` has a value that JSON cannot represent.
    """
    if as_json:
        stream = _results.get() or sys.stdout
        click.echo(_encodable(to_json(result), stream), file=stream)
    elif callable(text):
        text()
    else:
        click.echo(text)


def replace_unprintable(stream: TextIO) -> None:
    """Have ``stream`` replace characters that its encoding lacks, instead of raising UnicodeEncodeError."""
    if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
        stream.reconfigure(errors="replace")


def _encodable(line: str, stream: TextIO) -> str:
    """A line of JSON, with escapes for characters that the stream's encoding lacks."""
    try:
        line.encode(stream.encoding or "utf-8")
    except UnicodeEncodeError:
        return json.dumps(json.loads(line))
    return line


@contextlib.contextmanager
def only_results_on_stdout() -> Iterator[None]:
    """Redirect standard output to standard error, so that only ``emit`` writes to standard output."""
    token = _results.set(sys.stdout)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        _results.reset(token)


def to_json(value: object, *, indent: int | None = None) -> str:
    """``value`` as strictly valid JSON.

    Numpy values become lists and numbers, paths become strings; NaN and infinity become null.

    Raises:
        TypeError: ``value`` has a part that JSON cannot represent.
    """
    return json.dumps(_plain(value), ensure_ascii=False, allow_nan=False, indent=indent)


def _plain(value: object) -> object:
    if hasattr(value, "tolist"):  # numpy arrays and scalars, without importing numpy
        value = value.tolist()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def log_to_stderr(*, verbose: bool) -> None:
    """Log to standard error: warnings, and with ``verbose`` everything from INFO on."""
    level = logging.INFO if verbose else logging.WARNING
    logging.basicConfig(stream=sys.stderr, level=level, format="%(levelname)s %(name)s: %(message)s", force=True)


PROGRESS_FILE = (
    "PATHWEAVE_PROGRESS_FILE"  # environment variable: a file that receives the progress, for the parent process
)


def progress(as_json: bool = False) -> Progress:
    """Progress bars on a terminal; else a line at intervals, for log files and CI.

    If the environment variable ``PATHWEAVE_PROGRESS_FILE`` names a file, it is updated too (see FileProgress).
    """
    at_terminal = sys.stderr.isatty() and not as_json and not os.environ.get("CI")
    shown: Progress = TerminalProgress() if at_terminal else LineProgress()
    file = os.environ.get(PROGRESS_FILE)
    return FileProgress(Path(file), shown) if file else shown


def _write_to_stderr(line: str) -> None:
    click.echo(line, err=True)


class LineProgress:
    """One line per task and ``interval_s``; a task that ends sooner prints nothing."""

    def __init__(
        self,
        *,
        interval_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
        write: Callable[[str], None] = _write_to_stderr,
    ) -> None:
        self._interval_s = interval_s
        self._clock = clock
        self._write = write

    @contextlib.contextmanager
    def task(self, name: str, total: float, *, done: float = 0.0) -> Iterator[Task]:
        """Start a task of ``total`` units."""
        yield _LineTask(name, total, done, interval_s=self._interval_s, clock=self._clock, write=self._write)


class _LineTask:
    def __init__(
        self,
        name: str,
        total: float,
        done: float,
        *,
        interval_s: float,
        clock: Callable[[], float],
        write: Callable[[str], None],
    ) -> None:
        self._name, self._total, self._remark = name, total, ""
        self._earlier = self._done = done
        self._interval_s, self._clock, self._write = interval_s, clock, write
        self._started_s = self._written_s = clock()

    def note(self, text: str) -> None:
        self._remark = f" ({text})"

    def advance(self, amount: float = 1.0) -> None:
        self._done += amount
        now_s = self._clock()
        if now_s - self._written_s >= self._interval_s:
            self._written_s = now_s
            self._write(self._line(now_s - self._started_s))

    def _line(self, elapsed_s: float) -> str:
        now_done = self._done - self._earlier
        if now_done <= 0 or not 0 < self._done <= self._total:
            return f"{self._name}: {_clock_time(elapsed_s)}{self._remark}"
        share = self._done / self._total
        left = _clock_time(elapsed_s * (self._total - self._done) / now_done)
        return f"{self._name}: {share:.0%} after {_clock_time(elapsed_s)}, {left} left{self._remark}"


def _clock_time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d} min"
