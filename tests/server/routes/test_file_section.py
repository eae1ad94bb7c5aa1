from __future__ import annotations

import contextlib
import io
import os

from server.routes.bundles import FileSection


def section():
    return FileSection(io.BytesIO(b"0123456789"), 2, 7)


def test_it_reads_no_further_than_its_end():
    with contextlib.closing(section()) as file:
        assert (file.read(2), file.read(100), file.read(1)) == (b"23", b"456", b"")
        file.seek(0)
        assert file.read() == b"23456"


def test_positions_are_relative_to_its_start():
    with contextlib.closing(section()) as file:
        assert file.seek(0, os.SEEK_END) == file.tell() == 5
        assert file.read() == b""
        assert file.seek(-2, os.SEEK_CUR) == 3
        assert file.read(1) == b"5"
        assert file.seek(-100) == 0


def test_closing_it_closes_the_file():
    inner = io.BytesIO(b"0123")
    FileSection(inner, 0, 2).close()
    assert inner.closed
