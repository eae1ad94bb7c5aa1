"""Operators that move or select elements, and those on shapes."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from packager.inputs.onnx_model.operators.port import Inputs, OnnxNode, Operator, given
from packager.inputs.onnx_model.values import UnsupportedOperatorError, Value, host, is_host, numbers, tensor

MOST_ELEMENTS = 50_000_000  # of a tensor that is made of a shape alone
_PADDED_AXES = 2  # at most, by modes other than constant


def _shape(node: OnnxNode, inputs: Inputs) -> Value:
    value = _needed(inputs, 0)
    extents = list(value.shape)
    return host(extents[slice(node.get("start", 0), node.get("end"))])


def _size(_: OnnxNode, inputs: Inputs) -> Value:
    return host([math.prod(_needed(inputs, 0).shape)], scalar=True)


def _needed(inputs: Inputs, index: int) -> Value:
    value = given(inputs, index)
    if value is None:
        raise UnsupportedOperatorError(f"input {index} is left out")
    return value


def _reshape(node: OnnxNode, inputs: Inputs) -> Value:
    value, target = _needed(inputs, 0), numbers(_needed(inputs, 1), "the target of a reshape")
    if not node.get("allowzero", 0):
        target = [value.shape[axis] if _is_number(extent, 0) else extent for axis, extent in enumerate(target)]
    if is_host(value):
        return value.reshape([int(extent) for extent in target])
    return tensor(value).reshape(target)


def _is_number(value: Any, number: int) -> bool:
    """True if ``value`` is that number itself, not a symbolic size."""
    return not isinstance(value, torch.SymInt) and int(value) == number


def _flatten(node: OnnxNode, inputs: Inputs) -> Value:
    value, axis = tensor(_needed(inputs, 0)), int(node.get("axis", 1))
    axis = axis + value.dim() if axis < 0 else axis
    if axis == 0:
        return value.reshape(1, -1)
    return value.flatten(axis) if axis == 1 else value.flatten(axis).flatten(0, axis - 1)


def _axes(node: OnnxNode, inputs: Inputs) -> list[int] | None:
    listed = given(inputs, 1)
    axes = node.get("axes") if listed is None else numbers(listed, "the axes")
    return None if axes is None else [int(axis) for axis in axes]


def _squeeze(node: OnnxNode, inputs: Inputs) -> Value:
    value, axes = _needed(inputs, 0), _axes(node, inputs)
    if is_host(value):
        return value.reshape(
            []
            if axes is None
            else [extent for n, extent in enumerate(value.shape) if n not in axes and n - value.ndim not in axes]
        )
    return tensor(value).squeeze() if axes is None else torch.squeeze(tensor(value), tuple(axes))


def _unsqueeze(node: OnnxNode, inputs: Inputs) -> Value:
    value, axes = _needed(inputs, 0), _axes(node, inputs) or []
    rank = len(value.shape) + len(axes)
    places = sorted(axis % rank for axis in axes)
    if is_host(value):
        return np.expand_dims(value, tuple(places))
    made = tensor(value)
    for place in places:
        made = made.unsqueeze(place)
    return made


def _transpose(node: OnnxNode, inputs: Inputs) -> Value:
    value = _needed(inputs, 0)
    order = [int(axis) for axis in node.get("perm") or reversed(range(len(value.shape)))]
    return np.transpose(value, order) if is_host(value) else tensor(value).permute(order)


def _concat(node: OnnxNode, inputs: Inputs) -> Value:
    parts = [part for part in inputs if part is not None]
    if all(map(is_host, parts)):
        return np.concatenate([part.reshape(-1) for part in parts])
    return torch.cat([tensor(part) for part in parts], int(node.get("axis", 0)))


def _split(node: OnnxNode, inputs: Inputs) -> Value | tuple[Value, ...]:
    value, axis, listed = _needed(inputs, 0), int(node.get("axis", 0)), given(inputs, 1)
    sizes = node.get("split") if listed is None else numbers(listed, "the sizes of a split")
    if not sizes:
        count = int(node.get("num_outputs", len(node.outputs)))
        each = -(-value.shape[axis] // count)
        sizes = [each] * (count - 1) + [value.shape[axis] - each * (count - 1)]
    if is_host(value):
        return tuple(np.split(value, np.cumsum([int(size) for size in sizes])[:-1]))
    return torch.split(tensor(value), [int(size) for size in sizes], axis)


def _slice(node: OnnxNode, inputs: Inputs) -> Value:
    value = _needed(inputs, 0)
    starts, ends = (numbers(_needed(inputs, index), "the bound of a slice") for index in (1, 2))
    axes = given(inputs, 3)
    listed = range(len(starts)) if axes is None else [int(axis) for axis in numbers(axes, "the axes of a slice")]
    steps = given(inputs, 4)
    strides = [1] * len(starts) if steps is None else [int(step) for step in numbers(steps, "the step of a slice")]
    for start, end, axis, step in zip(starts, ends, listed, strides, strict=True):
        value = _sliced(value, start, end, axis % len(value.shape), step)
    return value


def _sliced(value: Value, start: Any, end: Any, axis: int, step: int) -> Value:
    if step < 0:
        if is_host(value):
            return value[tuple([slice(None)] * axis + [slice(int(start), _limit(end), step)])]
        if step != -1 or _limit(start) not in (-1, None, value.shape[axis] - 1) or _limit(end) is not None:
            raise UnsupportedOperatorError("a slice with a negative step")
        return tensor(value).flip(axis)
    part = tuple([slice(None)] * axis + [slice(start, _limit(end), step)])
    return value[part]


def _limit(end: Any) -> Any:
    """The end of a slice; None where ONNX writes the largest or smallest number for "all"."""
    return None if not isinstance(end, torch.SymInt) and abs(int(end)) >= sys.maxsize // 2**32 else end


def _gather(node: OnnxNode, inputs: Inputs) -> Value:
    value, index, axis = _needed(inputs, 0), _needed(inputs, 1), int(node.get("axis", 0))
    if is_host(value) and is_host(index):
        return np.asarray(np.take(value, index.astype(np.int64), axis=axis), dtype=object)
    data = tensor(value)
    axis %= data.dim()
    if is_host(index) and index.ndim == 0:
        return data.select(axis, index.item())
    places = tensor(index)
    if axis == 0 and data.dim() == 2 and not is_host(index):
        return functional.embedding(places.long(), data)
    places = places.long()
    if is_host(index):
        places = tensor(host([number % data.shape[axis] for number in index.reshape(-1).tolist()])).reshape(index.shape)
    picked = data.index_select(axis, places.reshape(-1))
    return picked if places.dim() == 1 else picked.reshape(*data.shape[:axis], *places.shape, *data.shape[axis + 1 :])


def _gather_elements(node: OnnxNode, inputs: Inputs) -> Value:
    return torch.gather(tensor(_needed(inputs, 0)), int(node.get("axis", 0)), tensor(_needed(inputs, 1)).long())


def _expand(_: OnnxNode, inputs: Inputs) -> Value:
    value, target = tensor(_needed(inputs, 0)), numbers(_needed(inputs, 1), "the target of an expansion")
    own = [1] * (len(target) - value.dim()) + list(value.shape)
    wider = [1] * (value.dim() - len(target)) + target
    shape = [extent if _is_number(wanted, 1) else wanted for extent, wanted in zip(own, wider, strict=True)]
    _require_small(shape)
    return value.expand(shape)


def _tile(_: OnnxNode, inputs: Inputs) -> Value:
    value, counts = _needed(inputs, 0), numbers(_needed(inputs, 1), "the counts of a repetition")
    _require_small([*value.shape, *counts])
    return np.tile(value, [int(count) for count in counts]) if is_host(value) else tensor(value).repeat(counts)


def _require_small(shape: Sequence[Any]) -> None:
    if math.prod(int(extent) for extent in shape if not isinstance(extent, torch.SymInt)) > MOST_ELEMENTS:
        raise UnsupportedOperatorError(f"a tensor of shape {list(shape)}")


def _constant_of_shape(node: OnnxNode, inputs: Inputs) -> Value:
    shape, filling = numbers(_needed(inputs, 0), "a shape"), node.get("value", 0.0)
    _require_small(shape)
    if not isinstance(filling, float) and len(shape) == 1 and not isinstance(shape[0], torch.SymInt):
        return host([filling] * int(shape[0]))
    return torch.full([*shape], filling)


def _range(_: OnnxNode, inputs: Inputs) -> Value:
    start, limit, step = (_scalar(_needed(inputs, index)) for index in range(3))
    if all(isinstance(number, int) for number in (start, limit, step)):
        _require_small([len(range(start, limit, step))])
        return tensor(host(range(start, limit, step)))
    return torch.arange(start, limit, step)


def _scalar(value: Value) -> Any:
    return numbers(value, "a range")[0] if is_host(value) else tensor(value).item()


def _trilu(node: OnnxNode, inputs: Inputs) -> Value:
    listed = given(inputs, 1)
    diagonal = 0 if listed is None else int(numbers(listed, "the diagonal")[0])
    return (torch.triu if node.get("upper", 1) else torch.tril)(tensor(_needed(inputs, 0)), diagonal)


def _pad(node: OnnxNode, inputs: Inputs) -> Value:
    value, mode = tensor(_needed(inputs, 0)), node.get("mode", "constant")
    listed = node.get("pads") if given(inputs, 1) is None else numbers(_needed(inputs, 1), "the pads")
    filling, axes = given(inputs, 2), given(inputs, 3)
    chosen = range(value.dim()) if axes is None else [int(axis) % value.dim() for axis in numbers(axes, "the axes")]
    half = len(listed) // 2
    around = {axis: (int(listed[n]), int(listed[half + n])) for n, axis in enumerate(chosen)}
    first = min((axis for axis, pads in around.items() if pads != (0, 0)), default=None)
    if first is None:
        return value
    amounts = [amount for axis in reversed(range(first, value.dim())) for amount in around.get(axis, (0, 0))]
    if mode == "constant":
        number = node.get("value", 0.0) if filling is None else tensor(filling).item()
        return functional.pad(value, amounts, value=number)
    if len(amounts) > 2 * _PADDED_AXES or mode not in ("reflect", "edge"):
        raise UnsupportedOperatorError(f"padding of more than two axes by the mode {mode}")
    return functional.pad(value, amounts, mode="replicate" if mode == "edge" else mode)


def _depth_to_space(node: OnnxNode, inputs: Inputs) -> Value:
    value, block = tensor(_needed(inputs, 0)), int(node.get("blocksize"))
    if node.get("mode", "DCR") == "CRD":
        return functional.pixel_shuffle(value, block)
    batch, channels, height, width = value.shape
    parts = value.reshape(batch, block, block, channels // block**2, height, width).permute(0, 3, 4, 1, 5, 2)
    return parts.reshape(batch, channels // block**2, height * block, width * block)


def _space_to_depth(node: OnnxNode, inputs: Inputs) -> Value:
    value, block = tensor(_needed(inputs, 0)), int(node.get("blocksize"))
    batch, channels, height, width = value.shape
    parts = value.reshape(batch, channels, height // block, block, width // block, block).permute(0, 3, 5, 1, 2, 4)
    return parts.reshape(batch, channels * block**2, height // block, width // block)


def _resize(node: OnnxNode, inputs: Inputs) -> Value:
    value, sizes = tensor(_needed(inputs, 0)), given(inputs, 3)
    spatial = value.dim() - 2
    if sizes is not None:
        target = [int(size) for size in numbers(sizes, "the size of a resize")[-spatial:]]
    else:
        factors = numbers(_needed(inputs, 2), "the scales of a resize")[-spatial:]
        target = [math.floor(extent * factor) for extent, factor in zip(value.shape[2:], factors, strict=True)]
    mode, where = node.get("mode", "nearest"), node.get("coordinate_transformation_mode", "half_pixel")
    if node.get("axes") is not None or node.get("antialias", 0):
        raise UnsupportedOperatorError("a resize of chosen axes or with antialiasing")
    if mode == "nearest":
        exact = {"asymmetric": "nearest", "half_pixel": "nearest-exact"}.get(where)
        if exact is None:
            raise UnsupportedOperatorError(f"a nearest resize with coordinates {where}")
        return functional.interpolate(value, target, mode=exact)
    kind = {("linear", 1): "linear", ("linear", 2): "bilinear", ("cubic", 2): "bicubic"}.get((mode, spatial))
    if kind is None or where not in ("half_pixel", "pytorch_half_pixel", "align_corners"):
        raise UnsupportedOperatorError(f"a {mode} resize with coordinates {where}")
    return functional.interpolate(value, target, mode=kind, align_corners=where == "align_corners")


def _cumulative(node: OnnxNode, inputs: Inputs) -> Value:
    if node.get("exclusive", 0) or node.get("reverse", 0):
        raise UnsupportedOperatorError("an exclusive or reversed cumulative sum")
    return torch.cumsum(tensor(_needed(inputs, 0)), int(numbers(_needed(inputs, 1), "the axis")[0]))


def _scatter_nd(node: OnnxNode, inputs: Inputs) -> Value:
    if node.get("reduction", "none") != "none":
        raise UnsupportedOperatorError("a scatter with a reduction")
    value, index, updates = (tensor(_needed(inputs, number)) for number in range(3))
    return value.index_put(tuple(index.long().unbind(-1)), updates)


OPERATORS: dict[str, Operator] = {
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "CumSum": _cumulative,
    "DepthToSpace": _depth_to_space,
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "Pad": _pad,
    "Range": _range,
    "Reshape": _reshape,
    "Resize": _resize,
    "ScatterND": _scatter_nd,
    "Shape": _shape,
    "Size": _size,
    "Slice": _slice,
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Trilu": _trilu,
    "Unsqueeze": _unsqueeze,
}
