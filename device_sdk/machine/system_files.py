"""Reading of the small text files in which Linux states its figures."""

from __future__ import annotations

from pathlib import Path

from device_sdk.errors import MeasurementError

_MOST_BYTES = 64 * 1024  # of one of the system's files


def read_text(path: Path) -> str:
    """The beginning of one of the system's files.

    Raises:
        MeasurementError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES).decode(errors="replace")
    except OSError as error:
        raise MeasurementError(f"{path} cannot be read: {error.strerror}") from error


def number(text: str, path: Path) -> int:
    """A number of bytes or microseconds, not negative. ``path``: named in the error.

    Raises:
        MeasurementError: the text is none.
    """
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20):
        raise MeasurementError(f"{path} says {digits[:40]!r}, which is no number")
    return int(digits)


def field(path: Path, name: str) -> int | None:
    """The number behind ``name`` in a file of lines ``name value`` or ``name: value kB``, in bytes; None without it.

    Raises:
        MeasurementError: the file cannot be read, or the value is no number.
    """
    for line in read_text(path).splitlines():
        found, *values = line.split() or [""]
        if found.rstrip(":") == name:
            unit = 1024 if values[1:] == ["kB"] else 1
            return unit * number(values[0] if values else "", path)
    return None
