from __future__ import annotations

import json
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.errors import UnprocessableError
from server.jobs.intake import check_safetensors

library = pytest.importorskip("safetensors.numpy", reason="needs the extra: pip install 'pathweave[packager]'")

TWO = {"a": ("F32", [2, 3], b"\0" * 24), "b": ("I64", [], b"\0" * 8)}


@pytest.fixture
def check(tmp_path):
    def run(data):
        (tmp_path / "w").write_bytes(data)
        check_safetensors(tmp_path / "w")

    return run


def test_whole_files_pass(check, safetensors_bytes):
    check(safetensors_bytes(TWO))
    check(safetensors_bytes({**TWO, "empty": ("F16", [0, 5], b"")}))
    check(safetensors_bytes(TWO, __metadata__={"format": "pt"}))


def test_what_the_library_writes_passes(check, tmp_path):
    arrays = {"w": np.ones((3, 4), np.float32), "n": np.array(3), "h": np.ones(7, np.float16), "b": np.ones(3, bool)}
    check(library.save(arrays, metadata={"x": "y"}))


def test_a_file_cut_anywhere_is_refused(check, safetensors_bytes):
    data = safetensors_bytes(TWO)
    for length in range(len(data)):
        with pytest.raises(UnprocessableError, match="no safetensors file"):
            check(data[:length])


def test_bytes_after_it_are_refused(check, safetensors_bytes):
    with pytest.raises(UnprocessableError, match="no safetensors file"):
        check(safetensors_bytes(TWO) + b"x")


def header(**tensors):
    return json.dumps(
        {
            name: {"dtype": dtype, "shape": shape, "data_offsets": offsets}
            for name, (dtype, shape, offsets) in tensors.items()
        }
    ).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"{}",
        b'{"__metadata__": {}}',
        b"[]",
        b"{",
        b"\x80\x02}q\x00.",
        b"{" * 50_000,
        b'{"a": {}}',
        header(a=("F32", [2], [0, 4])),
        header(a=("F32", [2], [4, 12])),
        header(a=("F32", [-2], [0, 8])),
        header(a=("F32", [2], [8, 0])),
        header(a=("F99", [2], [0, 8])),
        header(a=("F32", [1], [0, 4]), b=("F32", [1], [0, 4]), c=("F32", [1], [4, 8])),
        header(a=("F32", [2**40, 2**40], [0, 8])),
    ],
)
def test_headers_that_do_not_describe_the_data_are_refused(check, data):
    with pytest.raises(UnprocessableError):
        check(struct.pack("<Q", len(data)) + data + bytes(8))


def test_a_header_that_says_it_is_huge_is_not_read(check):
    with pytest.raises(UnprocessableError):
        check(struct.pack("<Q", 2**63) + b"{}")


def test_other_files_are_refused(check):
    for data in (b"", b"PK\x03\x04" + b"\0" * 100, b"\x80\x02}q\x00(" + b"\0" * 100, b"\0" * 8):
        with pytest.raises(UnprocessableError):
            check(data)


def test_no_header_breaks_it(tmp_path):
    @settings(max_examples=200)
    @given(st.binary(max_size=300), st.integers(0, 300))
    def tried(data, size):
        (tmp_path / "w").write_bytes(struct.pack("<Q", len(data)) + data + bytes(size))
        with pytest.raises(UnprocessableError):
            check_safetensors(tmp_path / "w")

    tried()
