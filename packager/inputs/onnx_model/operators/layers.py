"""Operators with weights, pooling and matrix products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from packager.inputs.onnx_model.operators.port import Inputs, OnnxNode, Operator, given
from packager.inputs.onnx_model.values import UnsupportedOperatorError, Value, tensor

LINEAR = "pathweave:Linear"  # a matrix product with a constant weight [out, in], and its bias; made by `weights`
_CONVOLUTIONS = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
_TRANSPOSED = {1: functional.conv_transpose1d, 2: functional.conv_transpose2d, 3: functional.conv_transpose3d}
_MAX_POOLS = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}
_AVERAGE_POOLS: dict[int, Any] = {1: functional.avg_pool1d, 2: functional.avg_pool2d, 3: functional.avg_pool3d}
_MOMENTUM = 0.9  # of ONNX; torch counts the other share


def _tensors(inputs: Inputs) -> list[Tensor]:
    return [tensor(value) for value in inputs if value is not None]


def _convolution(node: OnnxNode, inputs: Inputs) -> Value:
    value, weight, *bias = _tensors(inputs)
    count = weight.dim() - 2
    stride, dilation = (_each_axis(node, name, count) for name in ("strides", "dilations"))
    pads = _pads(node, value, weight.shape[2:], stride, dilation)
    value, around = _padded(value, pads, count, 0.0)
    function, groups = _CONVOLUTIONS[count], int(node.get("group", 1))
    return function(value, weight, bias[0] if bias else None, stride, around, dilation, groups)


def _each_axis(node: OnnxNode, name: str, count: int) -> list[int]:
    return [int(number) for number in node.get(name) or [1] * count]


def _pads(
    node: OnnxNode, value: Tensor, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> list[tuple[int, int]]:
    """Pads before and after each spatial axis."""
    automatic, count = node.get("auto_pad", "NOTSET"), len(kernel)
    if automatic in ("NOTSET", "VALID"):
        listed = [0] * (2 * count) if automatic == "VALID" else node.get("pads") or [0] * (2 * count)
        return [(int(listed[axis]), int(listed[count + axis])) for axis in range(count)]
    found = []
    for axis in range(count):
        extent = int(value.shape[2 + axis])
        covered = (math.ceil(extent / stride[axis]) - 1) * stride[axis] + dilation[axis] * (kernel[axis] - 1) + 1
        total = max(covered - extent, 0)
        less, more = total // 2, total - total // 2
        found.append((less, more) if automatic == "SAME_UPPER" else (more, less))
    return found


def _padded(value: Tensor, pads: Sequence[tuple[int, int]], count: int, filling: float) -> tuple[Tensor, list[int]]:
    """Uneven pads are a step of their own; even ones are left to the operator."""
    if all(before == after for before, after in pads):
        return value, [before for before, _ in pads]
    return functional.pad(value, [amount for pair in reversed(pads) for amount in pair], value=filling), [0] * count


def _transposed_convolution(node: OnnxNode, inputs: Inputs) -> Value:
    value, weight, *bias = _tensors(inputs)
    count = weight.dim() - 2
    if node.get("auto_pad", "NOTSET") != "NOTSET" or node.get("output_shape"):
        raise UnsupportedOperatorError("a transposed convolution with automatic pads")
    stride, dilation = (_each_axis(node, name, count) for name in ("strides", "dilations"))
    pads = _pads(node, value, weight.shape[2:], stride, dilation)
    if any(before != after for before, after in pads):
        raise UnsupportedOperatorError("a transposed convolution with uneven pads")
    around, extra = [before for before, _ in pads], [int(n) for n in node.get("output_padding") or [0] * count]
    groups = int(node.get("group", 1))
    return _TRANSPOSED[count](value, weight, bias[0] if bias else None, stride, around, extra, groups, dilation)


def _batch_norm(node: OnnxNode, inputs: Inputs) -> Value:
    if node.get("training_mode", 0):
        raise UnsupportedOperatorError("a batch normalisation in training mode")
    value, weight, bias, mean, variance = _tensors(inputs)
    momentum = 1 - node.get("momentum", _MOMENTUM)
    return functional.batch_norm(value, mean, variance, weight, bias, False, momentum, node.get("epsilon", 1e-5))


def _layer_norm(node: OnnxNode, inputs: Inputs) -> Value:
    value, weight, *bias = _tensors(inputs)
    axis = int(node.get("axis", -1)) % value.dim()
    return functional.layer_norm(
        value, value.shape[axis:], weight, bias[0] if bias else None, node.get("epsilon", 1e-5)
    )


def _group_norm(node: OnnxNode, inputs: Inputs) -> Value:
    value, weight, bias = _tensors(inputs)
    groups = int(node.get("num_groups"))
    if len(weight) != value.shape[1]:  # before opset 21 one number per group
        each = value.shape[1] // groups
        weight, bias = weight.repeat_interleave(each), bias.repeat_interleave(each)
    return functional.group_norm(value, groups, weight, bias, node.get("epsilon", 1e-5))


def _instance_norm(node: OnnxNode, inputs: Inputs) -> Value:
    value, weight, bias = _tensors(inputs)
    return functional.instance_norm(value, weight=weight, bias=bias, eps=node.get("epsilon", 1e-5))


def _root_mean_square_norm(node: OnnxNode, inputs: Inputs) -> Value:
    value, weight = _tensors(inputs)
    axis = int(node.get("axis", -1)) % value.dim()
    return functional.rms_norm(value, value.shape[axis:], weight, node.get("epsilon", 1e-5))


def _max_pool(node: OnnxNode, inputs: Inputs) -> Value:
    (value,) = _tensors(inputs)
    kernel = [int(extent) for extent in node.get("kernel_shape")]
    stride, dilation = (_each_axis(node, name, len(kernel)) for name in ("strides", "dilations"))
    pads = _pads(node, value, kernel, stride, dilation)
    value, around = _padded(value, pads, len(kernel), -math.inf)
    return _MAX_POOLS[len(kernel)](value, kernel, stride, around, dilation, bool(node.get("ceil_mode", 0)))


def _average_pool(node: OnnxNode, inputs: Inputs) -> Value:
    (value,) = _tensors(inputs)
    kernel = [int(extent) for extent in node.get("kernel_shape")]
    stride, counted = _each_axis(node, "strides", len(kernel)), bool(node.get("count_include_pad", 0))
    if any(step != 1 for step in _each_axis(node, "dilations", len(kernel))):
        raise UnsupportedOperatorError("an average pool with dilation")
    pads = _pads(node, value, kernel, stride, [1] * len(kernel))
    if any(before != after for before, after in pads) and not counted:
        raise UnsupportedOperatorError("an average pool with uneven pads that do not count")
    value, around = _padded(value, pads, len(kernel), 0.0)
    return _AVERAGE_POOLS[len(kernel)](value, kernel, stride, around, bool(node.get("ceil_mode", 0)), counted)


def _global_average(_: OnnxNode, inputs: Inputs) -> Value:
    (value,) = _tensors(inputs)
    return value.mean(list(range(2, value.dim())), keepdim=True)


def _global_max(_: OnnxNode, inputs: Inputs) -> Value:
    (value,) = _tensors(inputs)
    return value.amax(list(range(2, value.dim())), keepdim=True)


def _matrix_product(_: OnnxNode, inputs: Inputs) -> Value:
    one, other = _tensors(inputs)
    return torch.matmul(one, other)


def _linear(_: OnnxNode, inputs: Inputs) -> Value:
    value, weight, *bias = _tensors(inputs)
    return functional.linear(value, weight, bias[0] if bias else None)


def _gemm(node: OnnxNode, inputs: Inputs) -> Value:
    one, other, *added = _tensors(inputs)
    one, other = one.t() if node.get("transA", 0) else one, other.t() if node.get("transB", 0) else other
    product = torch.matmul(one, other) * node.get("alpha", 1.0)
    return product + added[0] * node.get("beta", 1.0) if added else product


def _einsum(node: OnnxNode, inputs: Inputs) -> Value:
    return torch.einsum(node.get("equation"), *_tensors(inputs))


def _attention(node: OnnxNode, inputs: Inputs) -> Value:
    """ONNX's Attention on four axes: query, key and value are [batch, heads, tokens, channels]."""
    query, key, value, *mask = _tensors(inputs)
    if query.dim() != 4 or given(inputs, 4) is not None or node.get("softcap", 0.0):
        raise UnsupportedOperatorError("an Attention on three axes, with past keys or a soft cap")
    return functional.scaled_dot_product_attention(
        query,
        key,
        value,
        mask[0] if mask else None,
        is_causal=bool(node.get("is_causal", 0)),
        scale=node.get("scale"),
        enable_gqa=query.shape[1] != key.shape[1],
    )


OPERATORS: dict[str, Operator] = {
    LINEAR: _linear,
    "Attention": _attention,
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_norm,
    "Conv": _convolution,
    "ConvTranspose": _transposed_convolution,
    "Einsum": _einsum,
    "Gemm": _gemm,
    "GlobalAveragePool": _global_average,
    "GlobalMaxPool": _global_max,
    "GroupNormalization": _group_norm,
    "InstanceNormalization": _instance_norm,
    "LayerNormalization": _layer_norm,
    "MatMul": _matrix_product,
    "MaxPool": _max_pool,
    "RMSNormalization": _root_mean_square_norm,
}
