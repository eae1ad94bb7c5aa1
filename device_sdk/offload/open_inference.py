"""Encoding and decoding of inference requests and replies of the Open Inference Protocol. Pure; shared with the server.

A message is JSON. A tensor's values are in the JSON (``data``, row-major, flat or nested by shape) or follow it as
bytes (``parameters.binary_data_size``; little-endian, row-major, in the order of the tensors; a BOOL is one byte, 0 or
1). The header ``Inference-Header-Content-Length`` then states the length of the JSON.

BYTES, one axis of byte strings, travels as bytes, each string behind its length, 4 bytes little-endian. In the JSON of
a request it may be text instead, which counts as UTF-8.

Refused: BF16, shared memory, classification, and JSON values out of range of their type (NaN, infinity, 300 as INT8).
Sources: KServe's "Open Inference Protocol" and Triton's "Binary Tensor Data Extension".
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import GenericAlias, MappingProxyType
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np

from device_sdk.errors import ProtocolError
from device_sdk.files.atomic import decode_json
from device_sdk.runtimes.port import Array

HEADER_LENGTH = "Inference-Header-Content-Length"
MAX_RANK = 16
BYTES = "BYTES"
_LENGTH = struct.Struct("<I")  # of a byte string

DATATYPES: Mapping[str, np.dtype[Any]] = MappingProxyType(
    {
        "BOOL": np.dtype("?"),
        **{f"INT{8 * size}": np.dtype(f"<i{size}") for size in (1, 2, 4, 8)},
        **{f"UINT{8 * size}": np.dtype(f"<u{size}") for size in (1, 2, 4, 8)},
        **{f"FP{8 * size}": np.dtype(f"<f{size}") for size in (2, 4, 8)},
    }
)
_NAMES = {(dtype.kind, dtype.itemsize): name for name, dtype in DATATYPES.items()}
_NESTED = re.compile(rb"\s*\[\s*\[")
_JSON_KINDS: dict[str, Any] = {"b": bool, "i": int, "u": int, "f": float}  # numpy's kind -> what JSON must hold


@dataclass(frozen=True, eq=False)
class NamedTensor:
    """A tensor of a message; its datatype is the array's."""

    name: str
    data: Array

    @property
    def datatype(self) -> str:
        """The protocol's name of the array's type. Raises ProtocolError if there is none."""
        dtype = self.data.dtype
        if dtype.kind == "O" and self.data.ndim == 1 and all(isinstance(value, bytes) for value in self.data):
            return BYTES
        if (dtype.kind, dtype.itemsize) not in _NAMES:
            raise ProtocolError(f"{_shown(self.name)}: arrays of type {dtype} cannot be sent")
        return _NAMES[dtype.kind, dtype.itemsize]

    @property
    def size_bytes(self) -> int:
        """Bytes of the values where they travel as bytes."""
        if self.data.dtype.kind == "O":
            return sum(_LENGTH.size + len(value) for value in self.data)
        return self.data.nbytes


@dataclass(frozen=True)
class RequestedOutput:
    """A requested output, as bytes or as JSON."""

    name: str
    binary: bool


@dataclass(frozen=True)
class InferRequest:
    """A request. Without ``outputs`` all outputs are returned, as bytes if ``binary_output``."""

    inputs: tuple[NamedTensor, ...]
    outputs: tuple[RequestedOutput, ...] = ()
    id: str | None = None
    binary_output: bool = False


@dataclass(frozen=True)
class InferResponse:
    """The reply to one request; ``id`` is the request's."""

    model_name: str
    outputs: tuple[NamedTensor, ...]
    model_version: str | None = None
    id: str | None = None


# JSON schema

_Size = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
_Rank = msgspec.Meta(max_length=MAX_RANK)


class _TensorParameters(msgspec.Struct):
    binary_data_size: _Size | None = None
    shared_memory_region: object = None


class _Tensor(msgspec.Struct):
    name: str
    datatype: str
    shape: Annotated[tuple[_Size, ...], _Rank]
    parameters: _TensorParameters | None = None
    data: msgspec.Raw = msgspec.Raw()  # decoded once the datatype is known


class _OutputParameters(msgspec.Struct):
    binary_data: bool | None = None
    classification: int | None = None
    shared_memory_region: object = None


class _Output(msgspec.Struct):
    name: str
    parameters: _OutputParameters | None = None


class _RequestParameters(msgspec.Struct):
    binary_data_output: bool = False


class _Request(msgspec.Struct):
    inputs: list[_Tensor]
    outputs: list[_Output] | None = None
    id: str | None = None
    parameters: _RequestParameters | None = None


class _Response(msgspec.Struct):
    model_name: str
    outputs: list[_Tensor]
    model_version: str | None = None
    id: str | None = None


_Message = TypeVar("_Message", _Request, _Response)


def encode_request(request: InferRequest, *, binary: bool = True) -> tuple[bytes, dict[str, str]]:
    """The body and its headers; the inputs are sent as bytes, or in the JSON if not ``binary``.

    Raises:
        ProtocolError: an array's type cannot be sent, or has values that JSON cannot represent.
    """
    named = {tensor.name for tensor in request.inputs} if binary else set()
    inputs, tail = _encode_tensors(request.inputs, binary=named)
    message: dict[str, Any] = {} if request.id is None else {"id": request.id}
    if request.binary_output:
        message["parameters"] = {"binary_data_output": True}
    message["inputs"] = inputs
    if request.outputs:
        message["outputs"] = [
            {"name": output.name, "parameters": {"binary_data": output.binary}} for output in request.outputs
        ]
    return _joined(message, tail)


def decode_request(body: bytes, *, header_length: int | None) -> InferRequest:
    """Decode the request in ``body``; ``header_length``: the header's value, None if it was missing.

    Raises:
        ProtocolError: anything is wrong: not JSON, fields missing, cut short, trailing bytes, a datatype, shape or
            count of values that does not fit, or something that is not supported.
    """
    message, tail = _split(body, header_length, _Request)
    if not message.inputs:
        raise ProtocolError("the message has no inputs")
    inputs = _decode_tensors(message.inputs, tail)
    binary = message.parameters is not None and message.parameters.binary_data_output
    outputs = tuple(_requested(output, binary) for output in message.outputs or ())
    _check_unique(output.name for output in outputs)
    return InferRequest(inputs, outputs, message.id, binary)


def encode_response(response: InferResponse, *, binary: Collection[str] = ()) -> tuple[bytes, dict[str, str]]:
    """The body and its headers; the outputs named in ``binary`` are sent as bytes, the others in the JSON.

    Raises:
        ProtocolError: an array's type does not travel, or holds values that JSON cannot.
    """
    outputs, tail = _encode_tensors(response.outputs, binary=binary)
    message: dict[str, Any] = {"model_name": response.model_name}
    if response.model_version is not None:
        message["model_version"] = response.model_version
    if response.id is not None:
        message["id"] = response.id
    return _joined({**message, "outputs": outputs}, tail)


def decode_response(body: bytes, *, header_length: int | None) -> InferResponse:
    """Decode the reply in ``body``; ``header_length``: the header's value, None if it was missing.

    Raises:
        ProtocolError: as for ``decode_request``.
    """
    message, tail = _split(body, header_length, _Response)
    outputs = _decode_tensors(message.outputs, tail)
    return InferResponse(message.model_name, outputs, message.model_version, message.id)


def _joined(message: dict[str, Any], tail: list[bytes]) -> tuple[bytes, dict[str, str]]:
    head = msgspec.json.encode(message)
    if not tail:
        return head, {"Content-Type": "application/json"}
    headers = {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(len(head))}
    return b"".join([head, *tail]), headers


def _split(body: bytes, header_length: int | None, kind: type[_Message]) -> tuple[_Message, memoryview]:
    """The JSON as a ``kind``, and the bytes that follow it."""
    length = len(body) if header_length is None else header_length
    if not 0 <= length <= len(body):
        raise ProtocolError(f"{HEADER_LENGTH} is {length}, the body has {len(body)} bytes")
    try:
        return decode_json(body[:length], kind), memoryview(body)[length:]
    except ValueError as error:
        raise ProtocolError(f"the message breaks the protocol: {error}") from error


def _encode_tensors(
    tensors: Sequence[NamedTensor], *, binary: Collection[str]
) -> tuple[list[dict[str, Any]], list[bytes]]:
    described, tail = [], []
    for tensor in tensors:
        one: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.data.shape)}
        if tensor.name in binary:
            tail.append(_as_bytes(tensor))
            one["parameters"] = {"binary_data_size": len(tail[-1])}
        else:
            if tensor.datatype == BYTES:
                raise ProtocolError(f"{_shown(tensor.name)}: BYTES in JSON are not supported")
            if tensor.data.dtype.kind == "f" and not np.isfinite(tensor.data).all():
                raise ProtocolError(f"{_shown(tensor.name)} holds NaN or infinity, which JSON cannot")
            one["data"] = tensor.data.ravel().tolist()
        described.append(one)
    return described, tail


def _decode_tensors(tensors: Sequence[_Tensor], tail: memoryview) -> tuple[NamedTensor, ...]:
    _check_unique(tensor.name for tensor in tensors)
    decoded, start = [], 0
    for tensor in tensors:
        size = None if tensor.parameters is None else tensor.parameters.binary_data_size
        if tensor.datatype == BYTES and size is not None:
            _check_place(tensor)
            data = _byte_strings(tensor, tail[start : start + size])
        elif tensor.datatype == BYTES:
            _check_place(tensor)
            data = _texts(tensor)
        elif size is None:
            data = _from_json(tensor, _dtype(tensor))
        else:
            data = _from_bytes(tensor, _dtype(tensor), tail[start : start + size])
        start += size or 0
        decoded.append(NamedTensor(tensor.name, data))
    if start != len(tail):
        raise ProtocolError(f"{len(tail) - start} bytes follow the last tensor")
    return tuple(decoded)


def _dtype(tensor: _Tensor) -> np.dtype[Any]:
    """The tensor's type. Raises ProtocolError unless its values are part of the message."""
    if tensor.datatype not in DATATYPES:
        raise ProtocolError(f"{_shown(tensor.name)}: datatype {_shown(tensor.datatype)} is not supported")
    _check_place(tensor)
    return DATATYPES[tensor.datatype]


def _check_place(tensor: _Tensor) -> None:
    """Raises ProtocolError unless the values are in the JSON or behind it."""
    parameters = tensor.parameters or _TensorParameters()
    if parameters.shared_memory_region is not None:
        raise ProtocolError(f"{_shown(tensor.name)}: shared memory is not supported")
    if (parameters.binary_data_size is None) == (memoryview(tensor.data).nbytes == 0):
        raise ProtocolError(f"{_shown(tensor.name)} needs either data or binary_data_size")


def _as_bytes(tensor: NamedTensor) -> bytes:
    if tensor.datatype == BYTES:
        return b"".join(_LENGTH.pack(len(value)) + value for value in tensor.data)
    return tensor.data.astype(DATATYPES[tensor.datatype], copy=False).tobytes()


def _texts(tensor: _Tensor) -> Array:
    """Byte strings [n] of the text in the JSON. Raises ProtocolError unless there are as many as the shape says."""
    try:
        texts = decode_json(bytes(tensor.data), list[str])
    except ValueError as error:
        raise ProtocolError(f"{_shown(tensor.name)}: BYTES in JSON have to be a list of texts") from error
    if tensor.shape != (len(texts),):
        raise ProtocolError(f"{_shown(tensor.name)}: {len(texts)} texts, the shape is {list(tensor.shape)}")
    return _objects([text.encode("utf-8", "replace") for text in texts])


def _objects(values: list[bytes]) -> Array:
    found = np.empty(len(values), dtype=object)
    found[:] = values
    return found


def _byte_strings(tensor: _Tensor, data: memoryview) -> Array:
    """Byte strings [n] from ``data``. Raises ProtocolError unless it holds exactly as many as the shape says."""
    if len(tensor.shape) != 1:
        raise ProtocolError(f"{_shown(tensor.name)}: BYTES need a shape of one axis, not {list(tensor.shape)}")
    values: list[bytes] = []
    at = 0
    for _ in range(tensor.shape[0]):
        start = at + _LENGTH.size
        if start > len(data):
            raise ProtocolError(f"{_shown(tensor.name)} is cut short: {len(values)} of {tensor.shape[0]} strings")
        at = start + _LENGTH.unpack_from(data, at)[0]
        if at > len(data):
            raise ProtocolError(f"{_shown(tensor.name)} is cut short: {len(values)} of {tensor.shape[0]} strings")
        values.append(bytes(data[start:at]))
    announced = tensor.parameters.binary_data_size if tensor.parameters else None
    if at != announced:
        raise ProtocolError(f"{_shown(tensor.name)}: its strings take {at} bytes, binary_data_size is {announced}")
    return _objects(values)


def _from_bytes(tensor: _Tensor, dtype: np.dtype[Any], data: memoryview) -> Array:
    expected = math.prod(tensor.shape) * dtype.itemsize
    announced = tensor.parameters.binary_data_size if tensor.parameters else None
    if announced != expected:
        raise ProtocolError(
            f"{_shown(tensor.name)}: {tensor.datatype} of shape {list(tensor.shape)} takes {expected} bytes, "
            f"binary_data_size is {announced}"
        )
    if len(data) != expected:
        raise ProtocolError(f"{_shown(tensor.name)} is cut short: {len(data)} of {expected} bytes")
    if dtype.kind == "b" and (np.frombuffer(data, np.uint8) > 1).any():
        raise ProtocolError(f"{_shown(tensor.name)}: a BOOL is 0 or 1")
    # the copy is aligned regardless of the length of the JSON
    return _shaped(np.frombuffer(data, dtype).copy(), tensor)


def _from_json(tensor: _Tensor, dtype: np.dtype[Any]) -> Array:
    """The values in ``data``: a flat list, or lists nested by shape."""
    values = _decoded(tensor, dtype)
    try:
        if dtype.kind == "f":
            wide = np.array(values, dtype=np.float64)
            with np.errstate(over="ignore"):
                array = wide.astype(dtype)
            if not np.isfinite(array).all():
                raise OverflowError(f"a value is too large for {tensor.datatype}")
        else:
            array = np.array(values, dtype=dtype)
    except (ValueError, OverflowError) as error:
        raise ProtocolError(f"{_shown(tensor.name)}: {error}") from error
    if array.ndim != 1 and array.size and array.shape != tensor.shape:
        raise ProtocolError(
            f"{_shown(tensor.name)}: data is nested as {list(array.shape)}, its shape is {list(tensor.shape)}"
        )
    return _shaped(array, tensor)


def _decoded(tensor: _Tensor, dtype: np.dtype[Any]) -> list[Any]:
    depth = len(tensor.shape) if _NESTED.match(tensor.data) else 1
    kind: Any = _JSON_KINDS[dtype.kind]
    for _ in range(depth):
        kind = GenericAlias(list, kind)
    try:
        values: list[Any] = decode_json(bytes(tensor.data), kind)
    except ValueError as error:
        raise ProtocolError(f"{_shown(tensor.name)}: data: {error}") from error
    return values


def _shaped(array: Array, tensor: _Tensor) -> Array:
    if array.size != math.prod(tensor.shape):
        raise ProtocolError(
            f"{_shown(tensor.name)}: shape {list(tensor.shape)} needs {math.prod(tensor.shape)} values, "
            f"there are {array.size}"
        )
    try:
        return array.reshape(tensor.shape)
    except ValueError as error:  # no values, and a shape that overflows
        raise ProtocolError(f"{_shown(tensor.name)}: {error}") from error


def _requested(output: _Output, binary: bool) -> RequestedOutput:
    parameters = output.parameters or _OutputParameters()
    if parameters.shared_memory_region is not None:
        raise ProtocolError(f"{_shown(output.name)}: shared memory is not supported")
    if parameters.classification:
        raise ProtocolError(f"{_shown(output.name)}: classification is not supported")
    return RequestedOutput(output.name, binary if parameters.binary_data is None else parameters.binary_data)


def _check_unique(names: Iterable[str]) -> None:
    ordered = sorted(names)
    for name, following in pairwise(ordered):
        if name == following:
            raise ProtocolError(f"{_shown(name)} appears twice")


def _shown(text: str) -> str:
    """A name from outside, for messages."""
    return repr(text if len(text) <= 60 else text[:57] + "…")
