"""On-disk cache of the frozen originals' features, for batches that repeat."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from device_sdk.files.atomic import storage_errors


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
