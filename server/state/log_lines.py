"""Validation of adaptation log lines from devices. Pure."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from device_sdk.files.untrusted_json import decode_json
from device_sdk.logs.adaptation_log import SCHEMA_VERSION, LogLine
from server.errors import MalformedError, UnprocessableError

_DEVICE = re.compile(r"[A-Za-z0-9_.-]{1,128}")


@dataclass(frozen=True)
class CheckedLine:
    """A valid line. ``digest``: sha256 of it as received; ``time``: its timestamp in UTC."""

    digest: bytes
    time: str
    line: LogLine

    @property
    def event(self) -> str:
        """The kind of its event."""
        return str(self.line.event.__struct_config__.tag)

    def encoded(self) -> bytes:
        """The line without fields that are not in the schema."""
        return msgspec.json.encode(self.line)


def is_device(name: str) -> bool:
    """True if ``name`` can be the name of a device."""
    return _DEVICE.fullmatch(name) is not None


def check_device(name: str | None) -> str:
    """The name of the sending device (MalformedError if it is invalid)."""
    if name is None or not is_device(name):
        raise MalformedError(
            "the header Pathweave-Device does not name a device",
            hint="1 to 128 letters, digits, dots, dashes and underscores",
        )
    return name


def check_lines(body: bytes, *, max_line_bytes: int) -> list[CheckedLine]:
    """The lines of ``body``, if all are valid.

    Raises:
        UnprocessableError: a line is too long or violates the schema; names line and reason.
    """
    lines = body.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return [_check(line, f"line {number}", max_line_bytes) for number, line in enumerate(lines, start=1)]


def _check(data: bytes, which: str, max_line_bytes: int) -> CheckedLine:
    if len(data) > max_line_bytes:
        raise UnprocessableError(f"{which}: it has {len(data)} bytes; {max_line_bytes} are the limit")
    try:
        line = decode_json(data, LogLine)
        time = datetime.fromisoformat(line.time)
        in_utc = (time if time.tzinfo else time.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise UnprocessableError(f"{which}: {error}") from error
    if line.schema != SCHEMA_VERSION:
        raise UnprocessableError(f"{which}: schema {line.schema} is not supported; {SCHEMA_VERSION} is")
    return CheckedLine(hashlib.sha256(data).digest(), in_utc.isoformat(timespec="milliseconds"), line)
