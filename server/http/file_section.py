"""A section of a file, as a file."""

from __future__ import annotations

import io
import os
from typing import BinaryIO


class FileSection(io.RawIOBase):
    """The bytes ``start`` to ``stop`` of ``file``, read-only; closing it closes ``file``."""

    def __init__(self, file: BinaryIO, start: int, stop: int) -> None:
        super().__init__()
        self._file = file
        self._start = start
        self._size = stop - start
        self.seek(0)

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to ``offset``, relative to the section."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self.tell(), os.SEEK_END: self._size}[whence]
        return self._file.seek(self._start + max(0, base + offset)) - self._start

    def tell(self) -> int:
        """The position in the section."""
        return self._file.tell() - self._start

    def read(self, size: int = -1) -> bytes:
        """Up to ``size`` bytes, all that are left if it is negative."""
        left = max(0, self._size - self.tell())
        return self._file.read(left if size < 0 else min(size, left))

    def close(self) -> None:
        """Close the file too."""
        self._file.close()
        super().close()
