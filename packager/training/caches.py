"""Caches for batches that repeat: the frozen originals' features on disk, and the full model's logits."""

from __future__ import annotations

import io
import os
import shutil
import struct
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from device_sdk.files.atomic import storage_errors

_HEADER = struct.Struct("<4I")
Key = tuple[int, int, int]
"""Edition of the data set, number of the batch in it, samples of it."""


class FeatureCache:
    """Tensors of batches as 16-bit floats, by batch number, in one file per name.

    All batches have the same shapes. A batch that overflows float16 is not stored. ``put`` returns exactly what
    ``get`` will, so results do not depend on cache hits: a resumed run starts with an empty cache.

    Raises:
        StorageError: the disk has no room for the files.
    """

    def __init__(self, folder: Path, *, batches: int, shapes: Mapping[int, Sequence[int]]) -> None:
        self._files: dict[int, np.memmap] = {}
        self._kept: set[int] = set()
        with storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._folder = Path(tempfile.mkdtemp(dir=folder, prefix="features."))
            try:
                for name, shape in shapes.items():
                    self._files[name] = _claimed(self._folder / f"{name}.f16", (batches, *shape))
            except OSError:
                self.close()
                raise

    @staticmethod
    def size_bytes(*, batches: int, shapes: Mapping[int, Sequence[int]]) -> int:
        """Size of the files of such a cache."""
        return sum(2 * batches * int(np.prod(shape)) for shape in shapes.values())

    def get(self, number: int) -> dict[int, torch.Tensor] | None:
        """The tensors of a batch in float32, or None."""
        if number not in self._kept:
            return None
        return {name: _laid_out(torch.from_numpy(file[number])) for name, file in self._files.items()}

    def put(self, number: int, tensors: Mapping[int, torch.Tensor]) -> dict[int, torch.Tensor]:
        """Store the tensors of a batch. Returns them rounded to float16, or unchanged if they overflow it."""
        halves = {name: tensors[name].to("cpu", torch.float16) for name in self._files}
        if not all(bool(half.isfinite().all()) for half in halves.values()):
            return {name: tensors[name] for name in self._files}
        for name, file in self._files.items():
            file[number] = halves[name].numpy()
        self._kept.add(number)
        return {name: _laid_out(half) for name, half in halves.items()}

    def close(self) -> None:
        """Delete the files."""
        self._files.clear()
        self._kept.clear()
        shutil.rmtree(self._folder, ignore_errors=True)


def _laid_out(half: torch.Tensor) -> torch.Tensor:
    """In float32 and in one fixed memory layout, since the order of summation depends on the layout."""
    return half.float().contiguous(memory_format=torch.channels_last if half.dim() == 4 else torch.contiguous_format)


def _claimed(path: Path, shape: tuple[int, ...]) -> np.memmap:
    """A new memory-mapped file with its disk space allocated, so later writes cannot fail."""
    with path.open("wb") as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, 2 * int(np.prod(shape)))
    return np.memmap(path, np.float16, "r+", shape=shape)


class TeacherAnswers:
    """Logits by batch, in memory and in the file at ``path``; in memory only if the disk is full.

    The file survives interruptions: records of a header (edition, batch, samples, checksum) and float32 logits. An
    incomplete one at the end is dropped on reading.

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
