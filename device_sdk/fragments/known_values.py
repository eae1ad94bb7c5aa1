"""Shapes and short constants inside a model, as far as they are known before it runs.

Exporters compute the arguments of Reshape, Expand or Resize from shapes with a few operators on short lists of
integers, which are evaluated here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt


class UndeterminedError(Exception):
    """The size that a shape-driven operator is told is unknown."""


class Inferred:
    """A tensor's ``shape`` (None: unknown) and, if it is a short one that is known, its ``values``."""

    __slots__ = ("shape", "values")

    def __init__(self, shape: Sequence[int] | None, values: npt.NDArray[Any] | None = None) -> None:
        self.shape = None if shape is None else tuple(map(int, shape))
        self.values = values


Given = Sequence[Inferred | None]
Attributes = Mapping[bytes, Any]
Shape = tuple[int, ...]
MAX_VALUES = 1024  # a shape or a list of axes is short
_MAX_PRODUCT = 1 << 20  # of the lengths of the operands: none of the results can be longer
MAX_EXTENT = 1 << 48  # products of such extents are exact in Python, and above every limit


def known_values(operator: str, given: Given, attributes: Attributes) -> npt.NDArray[Any] | None:
    """The values of an output that is computed from shapes and short constants; else None."""
    if operator == "Shape" and given and given[0] is not None and given[0].shape is not None:
        shape = given[0].shape
        return np.array(shape[attributes.get(b"start", 0) : attributes.get(b"end", len(shape))], np.int64)
    if operator == "Size" and given and given[0] is not None and given[0].shape is not None:
        return np.array(min(math.prod(given[0].shape), MAX_EXTENT), np.int64)
    if operator == "Constant":
        return _constant(attributes)
    operands = [one.values for one in given if one is not None and one.values is not None]
    if operator not in _ARITHMETIC or not operands or len(operands) < len(given):
        return None
    if operator != "Concat" and math.prod(max(one.size, 1) for one in operands) > _MAX_PRODUCT:
        return None
    try:
        with np.errstate(all="ignore"):
            found = np.asarray(_ARITHMETIC[operator](attributes, *operands))
    except (ValueError, LookupError, TypeError, ArithmeticError, AttributeError):
        return None
    return found if found.size <= MAX_VALUES else None


def _constant(attributes: Attributes) -> npt.NDArray[Any] | None:
    for name, found in attributes.items():
        if name == b"value" and isinstance(found, Inferred):
            return found.values
        if name in (b"value_int", b"value_ints") and found is not None:
            return np.array(found, np.int64)
    return None


def _filled(attributes: Attributes, shape: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if math.prod(max(int(extent), 0) for extent in shape) > MAX_VALUES:
        raise ValueError("too long for a shape")
    value = attributes.get(b"value")
    return np.full(shape, 0 if value is None else value.values[0])


def _sliced(_: Attributes, data: npt.NDArray[Any], *bounds: npt.NDArray[Any]) -> npt.NDArray[Any]:
    starts, ends, *more = bounds
    axes = more[0] if more else range(len(starts))
    steps = more[1] if len(more) > 1 else [1] * len(starts)
    index = [slice(None)] * data.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        index[int(axis)] = slice(int(start), int(end), int(step))
    return data[tuple(index)]


def _axes_of(attributes: Attributes, axes: Sequence[npt.NDArray[Any]]) -> Shape:
    found = axes[0].ravel() if axes else attributes.get(b"axes", ())
    return tuple(map(int, found))


_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "Abs": lambda _, a: np.abs(a),
    "Add": lambda _, a, b: a + b,
    "Cast": lambda given, a: a.astype(np.float64 if given.get(b"to") in (1, 10, 11, 16) else np.int64),
    "Ceil": lambda _, a: np.ceil(a),
    "Concat": lambda given, *all_: np.concatenate(all_, given.get(b"axis", 0)),
    "ConstantOfShape": lambda given, shape: _filled(given, shape),
    "Div": lambda _, a, b: a / b if a.dtype.kind == "f" else np.where(b == 0, 0, np.trunc(a / b)).astype(np.int64),
    "Equal": lambda _, a, b: (a == b).astype(np.int64),
    "Floor": lambda _, a: np.floor(a),
    "Gather": lambda given, a, index: np.take(a, index, given.get(b"axis", 0)),
    "Identity": lambda _, a: a,
    "Max": lambda _, *all_: np.maximum.reduce(np.broadcast_arrays(*all_)),
    "Min": lambda _, *all_: np.minimum.reduce(np.broadcast_arrays(*all_)),
    "Mod": lambda _, a, b: np.fmod(a, b),
    "Mul": lambda _, a, b: a * b,
    "Neg": lambda _, a: -a,
    "ReduceProd": lambda given, a, *axes: np.prod(
        a, axis=_axes_of(given, axes) or None, keepdims=bool(given.get(b"keepdims", 1))
    ),
    "Reshape": lambda _, a, shape: a.reshape(shape),
    "Slice": _sliced,
    "Squeeze": lambda given, a, *axes: np.squeeze(a, _axes_of(given, axes) or None),
    "Sub": lambda _, a, b: a - b,
    "Unsqueeze": lambda given, a, *axes: np.expand_dims(a, _axes_of(given, axes)),
    "Where": lambda _, condition, a, b: np.where(condition, a, b),
}


def shape_of(given: Given, index: int) -> Shape:
    """The shape of an input; UndeterminedError if it is unknown or absent."""
    found = given[index]
    if found is None or found.shape is None:
        raise UndeterminedError
    return found.shape


def integers_of(given: Given, index: int) -> Shape:
    """The values of an input as integers between −2⁴⁸ and 2⁴⁸."""
    found = given[index]
    if found is None or found.values is None:
        raise UndeterminedError
    return tuple(max(-MAX_EXTENT, min(int(value), MAX_EXTENT)) for value in found.values.ravel())


def given_at(given: Given, index: int) -> Inferred | None:
    """An input that may be left out."""
    return given[index] if index < len(given) else None


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """The shape that operands of these shapes are broadcast to."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    # 0 only meets 0 and 1
    return tuple(0 if 0 in extents else max(extents) for extents in zip(*padded, strict=True))
