"""Bounds on what a fragment takes: its tensors and memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from device_sdk.errors import CompositionError
from device_sdk.fragments.fragment import Fragment, Node, Tensor
from device_sdk.fragments.shape_rules import MAX_VALUES, SHAPE_DRIVEN, Inferred, UndeterminedError, infer
from device_sdk.supernet.blocks import TensorSpec

# Bytes per element of the element types, by number in onnx.proto. Strings, complex numbers and those below 8 bits are
# left out.


MIN_LIMIT_ELEMENTS = 64 << 20  # 256 MB of float32
_GROWTH = 64  # times the largest tensor at the ends
_WEIGHT_GROWTH = 2  # times the largest initializer, which DequantizeLinear widens


def check_sizes(
    fragments: Sequence[Fragment],
    inputs: Iterable[TensorSpec],
    outputs: Iterable[TensorSpec],
    owners: Sequence[str] = (),
) -> None:
    """Raise CompositionError if a tensor inside the model may exceed the limit, or a shape cannot be determined.

    The limit in elements: 64 times the largest tensor at the ends, twice the largest initializer, or 2²⁶, whichever is
    most. ``owners``: of the fragments, for the error.
    """
    inputs = tuple(inputs)
    largest = max((spec.size for spec in (*inputs, *outputs)), default=0)
    values = {tensor.name: constant(tensor) for fragment in fragments for tensor in fragment.initializers}
    values |= {spec.name.encode(): Inferred((1, *spec.shape)) for spec in inputs}
    weights = max((math.prod(tensor.shape) for one in fragments for tensor in one.initializers), default=0)
    limit = max(MIN_LIMIT_ELEMENTS, _GROWTH * largest, _WEIGHT_GROWTH * weights)
    driven = 0
    for number, fragment in enumerate(fragments):
        try:
            driven = _check_nodes(fragment, values, limit, driven)
        except CompositionError as error:
            owner = owners[number] if number < len(owners) else f"fragment {number}"
            raise CompositionError(f"{owner} is refused: {error}") from error


def _check_nodes(fragment: Fragment, values: dict[bytes, Inferred], limit: int, driven: int) -> int:
    """Adds the outputs of a fragment to ``values``.

    ``driven``: elements of all outputs of shape-driven operators before it; returns those after it.
    """
    for node in fragment.nodes:
        for name, found in zip(node.outputs, inferred(node, values), strict=False):
            size = math.prod(found.shape or ())
            driven += max(size, 0) if node.operator in SHAPE_DRIVEN else 0
            if max(size, driven) > limit:
                raise _refused(node, f"needs {max(size, driven)} elements of one sample; {limit} are allowed")
            values[name] = found
    return driven


def inferred(node: Node, values: dict[bytes, Inferred]) -> list[Inferred]:
    """The outputs of ``node``, or CompositionError if it is shape-driven and its size is unknown."""
    attributes = {
        name: constant(found) if isinstance(found, Tensor) else found for name, found in node.attributes.items()
    }
    given = [values.get(name, Inferred(None)) if name else None for name in node.inputs]
    try:
        return infer(node.operator, given, attributes, len(node.outputs))
    except UndeterminedError as error:
        raise _refused(node, "makes a tensor whose size is neither a constant nor derived from a shape") from error


def _refused(node: Node, why: str) -> CompositionError:
    name = (node.outputs or (b"",))[0][:80].decode(errors="replace")
    return CompositionError(f"operator {node.operator}, which computes {name!r}, {why}")


_INTEGERS = {2: "u1", 3: "i1", 6: "<i4", 7: "<i8", 9: "u1"}
_FLOATS = {1: "<f4", 11: "<f8"}


def constant(tensor: Tensor) -> Inferred:
    """A constant, with its values if it may be a shape, a list of axes or scales."""
    kind = (_INTEGERS | _FLOATS).get(tensor.element_type)
    count = math.prod(tensor.shape)
    most = math.prod(extent or 1 for extent in tensor.shape)  # numpy has no empty array of vast other extents
    if kind is None or most > MAX_VALUES:
        return Inferred(tensor.shape)
    if tensor.int64s and len(tensor.int64s) == count:
        return Inferred(tensor.shape, np.array(tensor.int64s, np.int64).reshape(tensor.shape))
    if len(tensor.raw) != count * np.dtype(kind).itemsize:
        return Inferred(tensor.shape)
    values = np.frombuffer(tensor.raw, kind).reshape(tensor.shape)
    return Inferred(tensor.shape, values.astype(np.float64 if tensor.element_type in _FLOATS else np.int64))
