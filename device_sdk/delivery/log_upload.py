"""Upload of the adaptation log to a server."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec

from device_sdk.errors import ProtocolError, UsageError
from device_sdk.files.atomic import decode_json
from device_sdk.files.rotated_file import files_of, opened_files
from device_sdk.progress import Progress, SilentProgress
from device_sdk.transports.port import Deadlines, Transport, base, read_all, require_success

BODY_MAX_BYTES = 1_000_000  # the server's limit is four times as large
LINE_MAX_BYTES = 64_000
REPLY_MAX_BYTES = 64_000
DEADLINES = Deadlines(idle_s=10.0, total_s=60.0)  # of each body

_DEVICE = re.compile(r"[A-Za-z0-9_.-]{1,128}")


@dataclass(frozen=True)
class UploadResult:
    """``accepted``: lines new to the server; ``duplicates``: lines it had already."""

    accepted: int
    duplicates: int


def upload_log(
    path: Path,
    url: str,
    transport: Transport,
    *,
    device: str,
    deadlines: Deadlines = DEADLINES,
    progress: Progress | None = None,
) -> UploadResult:
    """Send the log at ``path``, oldest file first, to the server at ``url`` as the log of ``device``.

    An incomplete last line is left out. Idempotent: after an error, call it again.

    Raises:
        UsageError: no such log, a line over ``LINE_MAX_BYTES``, or an invalid device name.
        RefusedError: the server refused lines; the message names them. TransferError: they could not be sent.
    """
    if not _DEVICE.fullmatch(device):
        raise UsageError(
            f"{device[:80]!r} cannot be the name of a device",
            hint="1 to 128 letters, digits, dots, dashes, underscores",
        )
    address = f"{base(url)}/v1/logs"
    accepted = duplicates = 0
    with (progress or SilentProgress()).task("send the log", _size_of(path)) as task:
        for body in _bodies(path):
            stored = _send(
                body, address, transport, device, deadlines, what=f"{body.file}, from line {body.first_line}"
            )
            accepted += stored.accepted
            duplicates += stored.duplicates
            task.advance(len(body.data))
    return UploadResult(accepted, duplicates)


@dataclass(frozen=True)
class _Body:
    data: bytes
    file: str
    first_line: int  # in the file, from 1


def _send(body: _Body, address: str, transport: Transport, device: str, deadlines: Deadlines, *, what: str) -> _Stored:
    headers = {"Pathweave-Device": device, "Content-Type": "application/x-ndjson"}
    with transport.send(
        "POST", address, headers=headers, body=body.data, deadlines=deadlines, max_bytes=REPLY_MAX_BYTES
    ) as reply:
        require_success(reply, what=what)
        return _decode(read_all(reply))


def _bodies(path: Path) -> Iterator[_Body]:
    """The complete lines of the log in bodies of at most BODY_MAX_BYTES, each from one file."""
    try:
        with opened_files(path) as opened:
            for file_path, file in opened:
                yield from _bodies_of(file_path, file)
    except OSError as error:
        raise UsageError(f"cannot read the log {path}: {error.strerror}") from error


def _bodies_of(path: Path, file: BinaryIO) -> Iterator[_Body]:
    data, first_line = b"", 1
    for number, line in enumerate(_lines(path, file), start=1):
        if data and len(data) + len(line) > BODY_MAX_BYTES:
            yield _Body(data, path.name, first_line)
            data, first_line = b"", number
        data += line
    if data:
        yield _Body(data, path.name, first_line)


def _lines(path: Path, file: BinaryIO) -> Iterator[bytes]:
    for number, line in enumerate(iter(lambda: file.readline(LINE_MAX_BYTES + 1), b""), start=1):
        if len(line) > LINE_MAX_BYTES:
            raise UsageError(f"line {number} of {path} has more than {LINE_MAX_BYTES} bytes")
        if line.endswith(b"\n"):
            yield line


def _size_of(path: Path) -> int:
    try:
        size = path.stat().st_size
        for older in files_of(path)[:-1]:
            with contextlib.suppress(FileNotFoundError):
                size += older.stat().st_size
        return size
    except OSError as error:
        raise UsageError(f"cannot read the log {path}: {error.strerror}") from error


class _Stored(msgspec.Struct):
    accepted: Annotated[int, msgspec.Meta(ge=0)]
    duplicates: Annotated[int, msgspec.Meta(ge=0)]


def _decode(data: bytes) -> _Stored:
    try:
        return decode_json(data, _Stored)
    except ValueError as error:
        raise ProtocolError(f"the server's response to a log breaks the protocol: {error}") from error
