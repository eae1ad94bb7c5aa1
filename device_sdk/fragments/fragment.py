"""Reading one fragment from untrusted bytes: its nodes and initializers, each field checked against what it may be.

Only known fields of the known wire type are accepted at every level, so that no reader can understand the bytes
differently from the runtime. No level nests: subgraphs, the only recursion in ONNX, are refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from device_sdk.errors import CompositionError
from device_sdk.fragments import protobuf
from device_sdk.fragments.operators import DOMAINS, ELEMENT_BYTES, OPERATORS
from device_sdk.fragments.protobuf import FIXED32, LENGTH_DELIMITED, VARINT

MAX_NODES = 100_000  # per fragment
MAX_PARTS = 4096  # inputs, outputs and attributes per node; axes per initializer

# field numbers of onnx.proto
_GRAPH_NODE, _GRAPH_INITIALIZER = 1, 5
_NODE_INPUT, _NODE_OUTPUT, _NODE_NAME, _NODE_OPERATOR, _NODE_ATTRIBUTE, _NODE_DOC, _NODE_DOMAIN = 1, 2, 3, 4, 5, 6, 7
_NODE_METADATA = 9
_ATTRIBUTE_NAME, _ATTRIBUTE_FLOAT, _ATTRIBUTE_INT, _ATTRIBUTE_STRING, _ATTRIBUTE_TENSOR = 1, 2, 3, 4, 5
_ATTRIBUTE_FLOATS, _ATTRIBUTE_INTS, _ATTRIBUTE_STRINGS, _ATTRIBUTE_DOC, _ATTRIBUTE_TYPE = 7, 8, 9, 13, 20
_TENSOR_DIMENSION, _TENSOR_TYPE, _TENSOR_FLOATS, _TENSOR_INT32S, _TENSOR_INT64S, _TENSOR_NAME = 1, 2, 4, 5, 7, 8
_TENSOR_RAW, _TENSOR_DOUBLES, _TENSOR_UINT64S, _TENSOR_DOC = 9, 10, 11, 12
_TENSOR_EXTERNAL_DATA, _TENSOR_DATA_LOCATION, _TENSOR_METADATA = 13, 14, 16

_GRAPH_ATTRIBUTES = {6, 11}  # one or several subgraphs
_ATTRIBUTE_KINDS = {
    _ATTRIBUTE_NAME: (LENGTH_DELIMITED,),
    _ATTRIBUTE_FLOAT: (FIXED32,),
    _ATTRIBUTE_INT: (VARINT,),
    _ATTRIBUTE_STRING: (LENGTH_DELIMITED,),
    _ATTRIBUTE_TENSOR: (LENGTH_DELIMITED,),
    _ATTRIBUTE_FLOATS: (FIXED32, LENGTH_DELIMITED),
    _ATTRIBUTE_INTS: (VARINT, LENGTH_DELIMITED),
    _ATTRIBUTE_STRINGS: (LENGTH_DELIMITED,),
    _ATTRIBUTE_DOC: (LENGTH_DELIMITED,),
    _ATTRIBUTE_TYPE: (VARINT,),
}
_ATTRIBUTE_TYPES = {1, 2, 3, 4, 6, 7, 8}  # as field 20 names the values above
_ELEMENT_TYPE_ATTRIBUTES = {b"to", b"dtype", b"output_dtype", b"stash_type", b"softmax_precision"}
_NODE_FIELDS = {
    *(_NODE_INPUT, _NODE_OUTPUT, _NODE_NAME, _NODE_OPERATOR, _NODE_ATTRIBUTE, _NODE_DOC, _NODE_DOMAIN),
    _NODE_METADATA,
}
_TENSOR_KINDS = {
    _TENSOR_DIMENSION: (VARINT, LENGTH_DELIMITED),
    _TENSOR_TYPE: (VARINT,),
    _TENSOR_FLOATS: (FIXED32, LENGTH_DELIMITED),
    _TENSOR_INT32S: (VARINT, LENGTH_DELIMITED),
    _TENSOR_INT64S: (VARINT, LENGTH_DELIMITED),
    _TENSOR_NAME: (LENGTH_DELIMITED,),
    _TENSOR_RAW: (LENGTH_DELIMITED,),
    _TENSOR_DOUBLES: (protobuf.FIXED64, LENGTH_DELIMITED),
    _TENSOR_UINT64S: (VARINT, LENGTH_DELIMITED),
    _TENSOR_DOC: (LENGTH_DELIMITED,),
    _TENSOR_DATA_LOCATION: (VARINT,),
    _TENSOR_METADATA: (LENGTH_DELIMITED,),
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """A constant. ``raw`` and ``int64s``: its elements, where they are stored like that; else both are empty."""

    name: bytes
    element_type: int
    shape: tuple[int, ...]
    raw: memoryview
    int64s: tuple[int, ...] = ()


AttributeValue = int | bytes | Tensor | tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Node:
    """One operator. ``attributes``: integers, lists of integers, strings and tensors; None for floats."""

    operator: str
    inputs: tuple[bytes, ...]
    outputs: tuple[bytes, ...]
    attributes: Mapping[bytes, AttributeValue]


@dataclass(frozen=True, slots=True)
class Fragment:
    """A fragment's nodes and initializers, in order."""

    nodes: tuple[Node, ...]
    initializers: tuple[Tensor, ...]

    def defined_names(self) -> Iterator[bytes]:
        """The names of its initializers and of its nodes' outputs."""
        for tensor in self.initializers:
            yield tensor.name
        for node in self.nodes:
            yield from filter(None, node.outputs)


def read_fragment(data: bytes) -> Fragment:
    """Read and check a fragment.

    Raises:
        CompositionError: not a fragment, an operator or a type that it may not have, a subgraph, or external data.
    """
    nodes, initializers = [], []
    try:
        for number, kind, value in protobuf.read_fields(memoryview(data)):
            if number not in (_GRAPH_NODE, _GRAPH_INITIALIZER) or kind != LENGTH_DELIMITED or isinstance(value, int):
                raise CompositionError(f"field {number} is not a node or an initializer")
            if number == _GRAPH_NODE:
                nodes.append(_read_node(value))
            else:
                initializers.append(_read_tensor(value))
            if len(nodes) + len(initializers) > MAX_NODES:
                raise CompositionError(f"more than {MAX_NODES} nodes and initializers")
    except ValueError as error:
        raise CompositionError(f"not a serialized graph: {error}") from error
    return Fragment(tuple(nodes), tuple(initializers))


def _read_node(data: memoryview) -> Node:
    inputs: list[bytes] = []
    outputs: list[bytes] = []
    attributes: dict[bytes, AttributeValue] = {}
    operator = domain = b""
    for count, (number, kind, value) in enumerate(protobuf.read_fields(data)):
        if number not in _NODE_FIELDS or kind != LENGTH_DELIMITED or isinstance(value, int) or count > MAX_PARTS:
            raise CompositionError(f"a node has a field {number} that it may not have")
        if number == _NODE_INPUT:
            inputs.append(bytes(value))
        elif number == _NODE_OUTPUT:
            outputs.append(bytes(value))
        elif number == _NODE_OPERATOR:
            operator = bytes(value)
        elif number == _NODE_DOMAIN:
            domain = bytes(value)
        elif number == _NODE_ATTRIBUTE:
            name, found = _read_attribute(value)
            if name in attributes:
                raise CompositionError(f"a node has the attribute {_shown(name)} twice")
            attributes[name] = found
    if _shown(domain) not in DOMAINS:
        raise CompositionError(f"operator {_shown(domain)}.{_shown(operator)} is not of the standard domain")
    if _shown(operator) not in OPERATORS:
        raise CompositionError(f"operator {_shown(operator)} is not among those that a fragment may have")
    return Node(_shown(operator), tuple(inputs), tuple(outputs), attributes)


def _read_attribute(data: memoryview) -> tuple[bytes, AttributeValue]:
    name, integers = b"", list[int]()
    found: AttributeValue = None
    kinds = set()
    for number, kind, value in protobuf.read_fields(data):
        if number in _GRAPH_ATTRIBUTES:
            raise CompositionError("a node has a subgraph, which is not allowed")
        if kind not in _ATTRIBUTE_KINDS.get(number, ()):
            raise CompositionError(f"an attribute has a field {number} that it may not have")
        if number == _ATTRIBUTE_NAME:
            name = bytes(_bytes(value))
        elif number == _ATTRIBUTE_TYPE and value not in _ATTRIBUTE_TYPES:
            raise CompositionError(f"an attribute has the type {value}, which it may not have")
        elif number == _ATTRIBUTE_INT and isinstance(value, int):
            found = _signed(value)
        elif number == _ATTRIBUTE_STRING:
            found = bytes(_bytes(value))
        elif number == _ATTRIBUTE_TENSOR:
            if _ATTRIBUTE_TENSOR in kinds:
                raise CompositionError("an attribute has two tensors")
            found = _read_tensor(_bytes(value))
        elif number == _ATTRIBUTE_INTS:
            integers += _integers(value)
        if number not in (_ATTRIBUTE_NAME, _ATTRIBUTE_DOC, _ATTRIBUTE_TYPE):
            kinds.add(number)
    if len(kinds) > 1:
        raise CompositionError(f"attribute {_shown(name)} has values of several types")
    if name in _ELEMENT_TYPE_ATTRIBUTES and found not in (*ELEMENT_BYTES, 0):
        raise CompositionError(f"attribute {_shown(name)} is of an element type that a fragment may not have")
    return name, tuple(integers) if _ATTRIBUTE_INTS in kinds else found


def _read_tensor(data: memoryview) -> Tensor:
    name, element_type, shape = b"", 0, []
    raw: memoryview = memoryview(b"")
    int64s: list[int] = []
    for number, kind, value in protobuf.read_fields(data):
        if number == _TENSOR_EXTERNAL_DATA or (number == _TENSOR_DATA_LOCATION and value):
            raise CompositionError("data is kept outside the bundle, which is not allowed")
        if kind not in _TENSOR_KINDS.get(number, ()):
            raise CompositionError(f"a tensor has a field {number} that it may not have")
        if number == _TENSOR_NAME:
            name = bytes(_bytes(value))
        elif number == _TENSOR_TYPE and isinstance(value, int):
            element_type = value
        elif number == _TENSOR_DIMENSION:
            shape += _integers(value)
        elif number == _TENSOR_RAW:
            raw = _bytes(value)
        elif number == _TENSOR_INT64S:
            int64s += _integers(value)
    if element_type not in ELEMENT_BYTES:
        raise CompositionError(f"tensor {_shown(name)} has the element type {element_type}, which it may not have")
    if len(shape) > MAX_PARTS or min(shape, default=0) < 0:
        raise CompositionError(f"tensor {_shown(name)} has the shape {shape[:8]}")
    if math.prod(shape) > len(data):  # at least a byte each, however they are stored
        raise CompositionError(f"tensor {_shown(name)} has fewer elements than its shape {shape[:8]} says")
    return Tensor(name, element_type, tuple(shape), raw, tuple(int64s))


def _bytes(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise ValueError("a number in place of bytes")
    return value


def _integers(value: int | memoryview) -> list[int]:
    """One integer, or a packed list of them."""
    return [_signed(one) for one in ([value] if isinstance(value, int) else protobuf.read_varints(value))]


def _signed(value: int) -> int:
    """A varint as the 64-bit integer that it encodes in two's complement."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def _shown(name: bytes) -> str:
    return name[:80].decode(errors="replace")
