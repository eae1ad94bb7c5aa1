"""A section of a file, as a file."""

from __future__ import annotations

import os
from typing import BinaryIO


class FileSection:
    """The bytes ``start`` to ``stop`` of ``file``: what waitress asks of a file. Closing it closes ``file``."""

    def __init__(self, file: BinaryIO, start: int, stop: int) -> None:
        self._file, self._start, self._size = file, start, stop - start
        self.seek(0)

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
        """Close the file."""
        self._file.close()
