"""Shape inference for the operators that bound the tensors inside a model; others give unknown shapes.

Rules follow onnx.ai/onnx/operators. Where a rule does not apply, the result is unknown, except for shape-driven
operators, which must be determined.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from device_sdk.fragments.known_values import (
    MAX_EXTENT,
    Attributes,
    Given,
    Inferred,
    Shape,
    UndeterminedError,
    broadcast,
    given_at,
    integers_of,
    known_values,
    shape_of,
)
from device_sdk.fragments.layer_shapes import (
    convolved,
    gemm,
    matrix_product,
    pooled,
    rearranged,
    transposed_convolution,
    unpooled,
)

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
