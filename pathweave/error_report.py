"""Report files of unexpected exceptions: traceback, versions and command, without what is private."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pathweave import __version__

FOLDER = "reports"  # in the state folder

_MESSAGE = 300  # characters
_LIBRARIES = ("numpy", "onnxruntime", "torch", "onnx", "pillow", "click", "flask", "msgspec")
_SECRET = re.compile(r"token|secret|password|passwd|code|auth", re.IGNORECASE)  # in the name of an option
_CREDENTIALS = re.compile(r"(\w+://)[^/@\s]+@")


def write_error_report(error: BaseException, command: Sequence[str]) -> Path | None:
    """Write the report on ``error`` to the state folder, else to the folder for temporary files; None if neither works.

    The same error of the same command has the same file, so that repeated failures do not fill the disk.
    """
    text = described(error, command)
    name = f"error-{hashlib.sha256(text.encode()).hexdigest()[:12]}.txt"
    for folder in _folders():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / name
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0), 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
        except OSError:
            continue
        return path
    return None


def described(error: BaseException, command: Sequence[str]) -> str:
    """The report: command, versions, traceback. Values of secret options, the home folder and long messages are left
    out, and so is everything that is no text.
    """
    versions = ", ".join(_versions())
    head = [f"pathweave {__version__}", f"command: {' '.join(_without_secrets(command))}"]
    system = f"{platform.system()} {platform.release()} {platform.machine()}, Python {platform.python_version()}"
    steps = traceback.TracebackException.from_exception(error, capture_locals=False)
    lines = [*head, system, versions, "", *_lines(steps)]
    home = str(Path.home())
    text = "\n".join(lines) + "\n"
    return _CREDENTIALS.sub(r"\1", text.replace(home, "~") if len(home) > 1 else text)


def shortened(message: str) -> str:
    """A message in one line of printable characters, at most 300 of them."""
    plain = "".join(character if character.isprintable() else " " for character in message)
    plain = " ".join(plain.split())
    return plain if len(plain) <= _MESSAGE else f"{plain[:_MESSAGE]}…"


def _folders() -> Iterator[Path]:
    from device_sdk.session.device_state import default_state_folder

    with contextlib.suppress(RuntimeError):  # no home folder
        yield default_state_folder() / FOLDER
    yield Path(tempfile.gettempdir())


def _lines(steps: traceback.TracebackException) -> Iterator[str]:
    """The traceback with its causes, outermost cause first; messages are shortened."""
    earlier = steps.__cause__ or (None if steps.__suppress_context__ else steps.__context__)
    if earlier is not None:
        yield from _lines(earlier)
        yield ""
    for line in steps.stack.format():
        yield from line.rstrip("\n").splitlines()
    yield shortened("".join(steps.format_exception_only()))


def _without_secrets(command: Sequence[str]) -> Iterator[str]:
    """The words of a command; values of options such as ``--token`` are replaced by ``…``."""
    hidden = False
    for word in command:
        name, separator, _ = word.partition("=")
        option = word.startswith("-")
        secret = option and bool(_SECRET.search(name))
        yield "…" if hidden and not option else f"{name}=…" if secret and separator else shortened(word)
        hidden = secret and not separator


def _versions() -> Iterator[str]:
    for name in _LIBRARIES:
        try:
            yield f"{name} {version(name)}"
        except PackageNotFoundError:
            continue
