"""Shapes of what a graph computes, operator by operator, from known values and the shapes of its inputs."""

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


def convolved(given: Given, attributes: Attributes) -> Shape:
    """Conv and ConvInteger."""
    shape, weight = shape_of(given, 0), shape_of(given, 1)
    return (shape[0], weight[0], *_windows(shape[2:], attributes.get(b"kernel_shape") or weight[2:], attributes))


def pooled(given: Given, attributes: Attributes) -> Shape:
    """AveragePool, LpPool and MaxPool."""
    shape = shape_of(given, 0)
    return (*shape[:2], *_windows(shape[2:], attributes[b"kernel_shape"], attributes))


def _windows(extents: Shape, kernel: Shape, attributes: Attributes) -> Shape:
    rank = len(kernel)
    strides = attributes.get(b"strides") or (1,) * rank
    dilations = attributes.get(b"dilations") or (1,) * rank
    pads = attributes.get(b"pads") or (0,) * 2 * rank
    if str(attributes.get(b"auto_pad", b"NOTSET"), "ascii") not in ("NOTSET", "VALID"):
        return tuple(-(-extent // stride) for extent, stride in zip(extents, strides, strict=True))
    found = []
    for axis, (extent, size) in enumerate(zip(extents, kernel, strict=True)):
        room = extent + pads[axis] + pads[axis + rank] - dilations[axis] * (size - 1) - 1
        steps = -(-room // strides[axis]) if attributes.get(b"ceil_mode") else room // strides[axis]
        found.append(max(steps + 1, 0))
    return tuple(found)


def transposed_convolution(given: Given, attributes: Attributes) -> Shape:
    """ConvTranspose."""
    shape, weight = shape_of(given, 0), shape_of(given, 1)
    channels, kernel = weight[1] * attributes.get(b"group", 1), weight[2:]
    told = attributes.get(b"output_shape")
    if told:
        return (shape[0], channels, *told[-len(kernel) :])
    strides, dilations, more = (
        attributes.get(name) or (default,) * len(kernel)
        for name, default in ((b"strides", 1), (b"dilations", 1), (b"output_padding", 0))
    )
    pads = attributes.get(b"pads") or (0,) * 2 * len(kernel)
    spatial = (
        strides[i] * (shape[2 + i] - 1) + more[i] + (kernel[i] - 1) * dilations[i] + 1 - pads[i] - pads[i + len(kernel)]
        for i in range(len(kernel))
    )
    return (shape[0], channels, *spatial)


def unpooled(given: Given, attributes: Attributes) -> Shape:
    """MaxUnpool."""
    if given_at(given, 2) is not None:
        return integers_of(given, 2)
    shape, kernel = shape_of(given, 0), attributes[b"kernel_shape"]
    strides = attributes.get(b"strides") or (1,) * len(kernel)
    spatial = zip(shape[2:], kernel, strides, strict=True)
    return (*shape[:2], *((extent - 1) * stride + size for extent, size, stride in spatial))


def matrix_product(given: Given, _: Attributes) -> Shape:
    """MatMul."""
    left, right = shape_of(given, 0), shape_of(given, 1)
    if len(left) < 2 or len(right) < 2:
        return left[:-1] + right[:-2] + right[-1:] * (len(right) > 1)
    return (*broadcast([left[:-2], right[:-2]]), left[-2], right[-1])


def gemm(given: Given, attributes: Attributes) -> Shape:
    """Gemm."""
    left, right = shape_of(given, 0), shape_of(given, 1)
    return (left[1 if attributes.get(b"transA") else 0], right[0 if attributes.get(b"transB") else 1])


def rearranged(grow: bool) -> Callable[[Given, Attributes], Shape]:
    """DepthToSpace and SpaceToDepth."""

    def rule(given: Given, attributes: Attributes) -> Shape:
        batch, channels, height, width = shape_of(given, 0)
        side = attributes[b"blocksize"]
        if grow:
            return batch, channels // side**2, height * side, width * side
        return batch, channels * side**2, height // side, width // side

    return rule


_OF_THE_FIRST = """
    Abs Acos Acosh Asin Asinh Atan Atanh BatchNormalization BitwiseNot Cast CastLike Ceil Celu Clip Cos Cosh CumProd
    CumSum DequantizeLinear Dropout DynamicQuantizeLinear Elu Erf Exp Floor Gelu GroupNormalization HardSigmoid
    HardSwish Hardmax Identity InstanceNormalization IsInf IsNaN LRN LayerNormalization LeakyRelu Log LogSoftmax
    LpNormalization MeanVarianceNormalization Mish Neg Not QuantizeLinear RMSNormalization Reciprocal Relu
    ReverseSequence Round Scatter ScatterElements ScatterND Selu Shrink Sigmoid Sign Sin Sinh Softmax Softplus Softsign
    Sqrt Swish Tan Tanh TensorScatter ThresholdedRelu Trilu
"""
_BROADCASTING = """
    Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean Min Mod
    Mul Or PRelu Pow Sub Sum Where Xor
"""
_REDUCTIONS = "L1 L2 LogSum LogSumExp Max Mean Min Prod Sum SumSquare"
_SAME = frozenset(_OF_THE_FIRST.split())
_BROADCAST = frozenset(_BROADCASTING.split())


def infer(operator: str, given: Given, attributes: Attributes, outputs: int) -> list[Inferred]:
    """The outputs of one node.

    Raises:
        UndeterminedError: the operator is shape-driven and its size is unknown.
    """
    try:
        values = known_values(operator, given, attributes)
        if values is not None:
            return [Inferred(values.shape, values)]
        if operator in _SAME:
            return [Inferred(shape_of(given, 0))] + [Inferred(None)] * (outputs - 1)
        if operator == "Split":
            return _split(given, attributes, outputs)
        if operator in _BROADCAST:
            return [Inferred(broadcast([shape_of(given, index) for index in range(len(given))]))]
        if operator in _RULES:
            return [Inferred(_RULES[operator](given, attributes))] + [Inferred(None)] * (outputs - 1)
    except _INAPPLICABLE as error:
        if operator in SHAPE_DRIVEN:
            raise UndeterminedError from error
    return [Inferred(None)] * outputs


# what a rule raises on unknown shapes, and on inputs and attributes that its operator cannot have
_INAPPLICABLE = (UndeterminedError, ValueError, LookupError, TypeError, ArithmeticError, AttributeError)


def _split(given: Given, attributes: Attributes, outputs: int) -> list[Inferred]:
    shape, axis = shape_of(given, 0), attributes.get(b"axis", 0) % len(shape_of(given, 0))
    share = -(-shape[axis] // outputs)
    even = [min(share, shape[axis] - share * number) for number in range(outputs)]
    parts = integers_of(given, 1) if given_at(given, 1) is not None else attributes.get(b"split") or even
    return [Inferred((*shape[:axis], part, *shape[axis + 1 :])) for part in parts]


def _expand(given: Given, _: Attributes) -> Shape:
    return broadcast([shape_of(given, 0), integers_of(given, 1)])


def _tile(given: Given, _: Attributes) -> Shape:
    return tuple(extent * count for extent, count in zip(shape_of(given, 0), integers_of(given, 1), strict=True))


def _range(given: Given, _: Attributes) -> Shape:
    values = [one.values for one in given if one is not None and one.values is not None]
    if len(values) != 3:
        raise UndeterminedError
    start, limit, delta = (float(value.ravel()[0]) for value in values)
    return (min(max(math.ceil((limit - start) / (delta or math.nan)), 0), MAX_EXTENT),)


def _resize(given: Given, _: Attributes) -> Shape:
    shape, sizes = shape_of(given, 0), given_at(given, 3)
    if sizes is not None and sizes.shape != (0,):
        told = integers_of(given, 3)
        return (*shape[: len(shape) - len(told)], *told)
    scales = given_at(given, 1 if len(given) == 2 else 2)
    if scales is None or scales.values is None:
        raise UndeterminedError
    told_scales = scales.values.ravel()
    kept = len(shape) - len(told_scales)
    return (*shape[:kept], *(math.ceil(e * float(s)) for e, s in zip(shape[kept:], told_scales, strict=True)))


def _pad(given: Given, attributes: Attributes) -> Shape:
    shape = shape_of(given, 0)
    pads = integers_of(given, 1) if len(given) > 1 else attributes.get(b"pads", ())
    axes = [int(axis) for axis in integers_of(given, 3)] if given_at(given, 3) is not None else range(len(pads) // 2)
    found = list(shape)
    for number, axis in enumerate(axes):
        found[axis] += max(pads[number], 0) + max(pads[number + len(pads) // 2], 0)
    return tuple(found)


def _one_hot(given: Given, _: Attributes) -> Shape:
    return (*shape_of(given, 0), *integers_of(given, 1))


def _told(index: int) -> Callable[[Given, Attributes], Shape]:
    return lambda given, _: integers_of(given, index)


def _replaced(given: Given, attributes: Attributes) -> Shape:
    """CenterCropPad."""
    told, found = integers_of(given, 1), list(shape_of(given, 0))
    for axis, extent in zip(attributes.get(b"axes") or range(len(found)), told, strict=True):
        found[axis] = extent
    return tuple(found)


def _reshaped(given: Given, attributes: Attributes) -> Shape:
    shape, told = shape_of(given, 0), list(integers_of(given, 1))
    if not attributes.get(b"allowzero"):
        told = [shape[axis] if extent == 0 else extent for axis, extent in enumerate(told)]
    if -1 in told:
        told[told.index(-1)] = math.prod(shape) // max(-math.prod(told), 1)
    return tuple(told)


def _flattened(given: Given, attributes: Attributes) -> Shape:
    shape, axis = shape_of(given, 0), attributes.get(b"axis", 1)
    return (math.prod(shape[:axis]), math.prod(shape[axis:]))


def _axes(given: Given, attributes: Attributes, rank: int) -> set[int]:
    told = integers_of(given, 1) if given_at(given, 1) is not None else attributes.get(b"axes") or ()
    return {axis % rank for axis in told}


def _squeezed(given: Given, attributes: Attributes) -> Shape:
    shape = shape_of(given, 0)
    axes = _axes(given, attributes, len(shape)) or {axis for axis, extent in enumerate(shape) if extent == 1}
    return tuple(extent for axis, extent in enumerate(shape) if axis not in axes)


def _unsqueezed(given: Given, attributes: Attributes) -> Shape:
    told = integers_of(given, 1) if given_at(given, 1) is not None else attributes[b"axes"]
    return np.expand_dims(np.broadcast_to(np.int8(0), shape_of(given, 0)), told).shape


def _reduced(given: Given, attributes: Attributes) -> Shape:
    shape = shape_of(given, 0)
    axes = _axes(given, attributes, len(shape))
    if not axes and not attributes.get(b"noop_with_empty_axes"):
        axes = set(range(len(shape)))
    if attributes.get(b"keepdims", 1):
        return tuple(1 if axis in axes else extent for axis, extent in enumerate(shape))
    return tuple(extent for axis, extent in enumerate(shape) if axis not in axes)


def _concatenated(given: Given, attributes: Attributes) -> Shape:
    shapes, axis = [shape_of(given, index) for index in range(len(given))], attributes[b"axis"]
    found = list(shapes[0])
    found[axis] = sum(shape[axis] for shape in shapes)
    return tuple(found)


def _cut_out(given: Given, attributes: Attributes) -> Shape:
    """Slice, whose bounds are inputs."""
    found = list(shape_of(given, 0))
    starts, ends = integers_of(given, 1), integers_of(given, 2)
    axes = integers_of(given, 3) if given_at(given, 3) is not None else range(len(starts))
    steps = integers_of(given, 4) if given_at(given, 4) is not None else (1,) * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        found[axis] = len(range(*slice(start, end, step).indices(found[axis])))
    return tuple(found)


def _gathered(given: Given, attributes: Attributes) -> Shape:
    shape, axis = shape_of(given, 0), attributes.get(b"axis", 0)
    axis %= len(shape)
    return shape[:axis] + shape_of(given, 1) + shape[axis + 1 :]


def _gathered_rows(given: Given, attributes: Attributes) -> Shape:
    shape, places = shape_of(given, 0), shape_of(given, 1)
    taken = attributes.get(b"batch_dims", 0) + (places[-1] if places else -1)
    if not 0 <= taken <= len(shape):
        raise UndeterminedError
    return places[:-1] + shape[taken:]


_RULES: dict[str, Callable[[Given, Attributes], Shape]] = {
    "AffineGrid": lambda given, _: (*integers_of(given, 1), 3),
    "AveragePool": pooled,
    "BlackmanWindow": _told(0),
    "CenterCropPad": _replaced,
    "Col2Im": lambda given, _: (*shape_of(given, 0)[:2], *integers_of(given, 1)),
    "Concat": _concatenated,
    "Constant": lambda _, attributes: attributes[b"value"].shape,
    "ConstantOfShape": _told(0),
    "Conv": convolved,
    "ConvInteger": convolved,
    "ConvTranspose": transposed_convolution,
    "DepthToSpace": rearranged(grow=True),
    "Expand": _expand,
    "EyeLike": lambda given, _: shape_of(given, 0),
    "Flatten": _flattened,
    "Gather": _gathered,
    "GatherElements": lambda given, _: shape_of(given, 1),
    "GatherND": _gathered_rows,
    "Gemm": gemm,
    "GlobalAveragePool": lambda given, _: (*shape_of(given, 0)[:2], *(1,) * (len(shape_of(given, 0)) - 2)),
    "GlobalMaxPool": lambda given, _: (*shape_of(given, 0)[:2], *(1,) * (len(shape_of(given, 0)) - 2)),
    "GridSample": lambda given, _: (*shape_of(given, 0)[:2], *shape_of(given, 1)[1:-1]),
    "HammingWindow": _told(0),
    "HannWindow": _told(0),
    "LpPool": pooled,
    "MatMul": matrix_product,
    "MatMulInteger": matrix_product,
    "MaxPool": pooled,
    "MaxUnpool": unpooled,
    "MelWeightMatrix": lambda given, _: (*integers_of(given, 1), *integers_of(given, 0)),
    "OneHot": _one_hot,
    "Pad": _pad,
    "Range": _range,
    **{
        f"Reduce{kind}": _reduced
        for kind in ["L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare"]
    },
    "Reshape": _reshaped,
    "Resize": _resize,
    "RoiAlign": lambda given, told: (
        shape_of(given, 1)[0],
        shape_of(given, 0)[1],
        told.get(b"output_height", 1),
        told.get(b"output_width", 1),
    ),
    "Slice": _cut_out,
    "SpaceToDepth": rearranged(grow=False),
    "Squeeze": _squeezed,
    "Tile": _tile,
    "Transpose": lambda given, told: tuple(
        shape_of(given, 0)[axis] for axis in told.get(b"perm") or reversed(range(len(shape_of(given, 0))))
    ),
    "Unsqueeze": _unsqueezed,
    "Upsample": _resize,
}

_DRIVEN = """
    AffineGrid BlackmanWindow CenterCropPad Col2Im ConstantOfShape Expand EyeLike HammingWindow HannWindow MaxUnpool
    MelWeightMatrix OneHot Pad Range Resize Tile Upsample
"""
SHAPE_DRIVEN = frozenset(_DRIVEN.split())  # their size is told by an input
