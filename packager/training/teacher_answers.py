"""Cache of the full model's logits for training batches, which survives interruptions.

An append-only file of records: a header (edition, batch, samples, checksum) and the logits in float32. An incomplete
record at the end is dropped on reading.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

_HEADER = struct.Struct("<4I")

Key = tuple[int, int, int]
"""Edition of the data set, number of the batch in it, samples of it."""


class TeacherAnswers:
    """Logits by batch, in memory and in the file at ``path``; in memory only if the disk is full.

    ``shape``: of the logits of one sample. Once ``limit_bytes`` are stored, further batches are not.
    """

    def __init__(self, path: Path | None, *, shape: Sequence[int], limit_bytes: int) -> None:
        self._path = path
        self._shape = tuple(shape)
        self._limit_bytes = limit_bytes
        self._known: dict[Key, torch.Tensor] = {}
        self._bytes = 0
        if path is not None and path.exists():
            self._read(path)

    def get(self, key: Key) -> torch.Tensor | None:
        """The answers [samples, *shape] to a batch, float32 on the CPU, or None."""
        return self._known.get(key)

    def put(self, key: Key, answers: torch.Tensor) -> None:
        """Store the answers [samples, *shape] to a batch, unless the limit is reached."""
        kept = answers.detach().to("cpu", torch.float32).contiguous()
        if key in self._known or self._bytes + kept.nbytes > self._limit_bytes:
            return
        self._known[key] = kept
        self._bytes += kept.nbytes
        if self._path is None:
            return
        content = kept.numpy().tobytes()
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab") as file:
                file.write(_HEADER.pack(*key, _checksum(key, content)) + content)
        except OSError:  # disk full: memory only from now on; the incomplete record is dropped on reading
            self._path = None

    def _read(self, path: Path) -> None:
        try:
            content = path.read_bytes()
            end = 0
            for key, answers, record_end in self._records(content):
                end = record_end
                if self._bytes + answers.nbytes <= self._limit_bytes:
                    self._known[key] = answers
                    self._bytes += answers.nbytes
            if end < len(content):
                with path.open("r+b") as file:
                    file.truncate(end)
        except OSError:
            self._path = None

    def _records(self, content: bytes) -> Iterator[tuple[Key, torch.Tensor, int]]:
        """Key, answers and end of every record up to the first damaged one."""
        file = io.BytesIO(content)
        sample_bytes = 4 * int(np.prod(self._shape))
        while len(header := file.read(_HEADER.size)) == _HEADER.size:
            *numbers, checksum = _HEADER.unpack(header)
            key = (numbers[0], numbers[1], numbers[2])
            answers = file.read(key[2] * sample_bytes)
            if len(answers) != key[2] * sample_bytes or _checksum(key, answers) != checksum:
                return
            array = np.frombuffer(answers, np.float32).reshape(key[2], *self._shape)
            yield key, torch.from_numpy(array.copy()), file.tell()


def _checksum(key: Key, content: bytes) -> int:
    return zlib.crc32(content, zlib.crc32(_HEADER.pack(*key, 0)))
