"""Checks that a file is complete safetensors, by its header and length, without loading it.

The format: u64 length of the header, the header (JSON: dtype, shape and data offsets by name), the data, which the
tensors fill without gaps and overlaps.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import msgspec

from device_sdk.files.untrusted_json import decode_json
from server.errors import UnprocessableError

_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 8_000_000  # thousands of tensors need a tenth of it
_METADATA = "__metadata__"
_ITEM_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 8),
}

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class _Tensor(msgspec.Struct, frozen=True):
    dtype: str
    shape: Annotated[list[_Count], msgspec.Meta(max_length=16)]
    data_offsets: tuple[_Count, _Count]


def check_safetensors(path: Path) -> None:
    """Check that the file is complete safetensors with at least one tensor.

    Raises:
        UnprocessableError: it is invalid, truncated, or has trailing bytes.
    """
    size_bytes = path.stat().st_size
    with path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if size_bytes < _LENGTH_BYTES or header_bytes > size_bytes - _LENGTH_BYTES:
            raise _wrong("it is truncated, or has another format")
        if header_bytes > _MAX_HEADER_BYTES:
            raise _wrong(f"its header has more than {_MAX_HEADER_BYTES} bytes")
        header = file.read(header_bytes)
    check_header(header, data_bytes=size_bytes - _LENGTH_BYTES - header_bytes)


def check_header(header: bytes, *, data_bytes: int) -> None:
    """Check that the header's tensors fill exactly ``data_bytes``.

    Raises:
        UnprocessableError: they do not, or the header is invalid.
    """
    try:
        entries = decode_json(header, dict[str, msgspec.Raw])
        tensors = {name: decode_json(bytes(raw), _Tensor) for name, raw in entries.items() if name != _METADATA}
    except ValueError as error:
        raise _wrong(f"its header is invalid: {error}") from error
    if not tensors:
        raise _wrong("it holds no tensor")
    end = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].data_offsets):
        if tensor.dtype not in _ITEM_BYTES:
            raise _wrong(f"{name[:80]} is of the unknown type {tensor.dtype[:20]!r}")
        begin, end_before = tensor.data_offsets[0], end
        end = tensor.data_offsets[1]
        if begin != end_before or end - begin != math.prod(tensor.shape) * _ITEM_BYTES[tensor.dtype]:
            raise _wrong(f"the offsets of {name[:80]} do not fit its shape or its neighbours")
    if end != data_bytes:
        raise _wrong(f"it has {data_bytes} bytes of data, its header describes {end}")


def _wrong(reason: str) -> UnprocessableError:
    return UnprocessableError(
        f"the weights are no safetensors file: {reason}", hint="safetensors.torch.save_file(model.state_dict(), path)"
    )
