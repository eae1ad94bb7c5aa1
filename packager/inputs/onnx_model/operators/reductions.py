"""Operators over whole axes: means, sums, extremes, softmax."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from packager.inputs.onnx_model.operators.port import Inputs, OnnxNode, Operator, given
from packager.inputs.onnx_model.values import Value, host, is_host, numbers, tensor

_SOFTMAX_PER_AXIS = 13  # opset since which softmax is over one axis; before, over all from it on


def _reduction(function: Callable[[Tensor, Sequence[int], bool], Tensor]) -> Operator:
    def run(node: OnnxNode, inputs: Inputs) -> Value:
        value, listed = given(inputs, 0), given(inputs, 1)
        assert value is not None
        axes = node.get("axes") if listed is None else numbers(listed, "the axes of a reduction")
        if not axes and node.get("noop_with_empty_axes", 0):
            return value
        if is_host(value) and node.operator == "ReduceProd":
            return host([math.prod(value.reshape(-1).tolist())], scalar=not node.get("keepdims", 1))
        made = tensor(value)
        chosen = [int(axis) for axis in axes] if axes else list(range(made.dim()))
        return function(made, chosen, bool(node.get("keepdims", 1)))

    return run


def _product(value: Tensor, axes: Sequence[int], keep: bool) -> Tensor:
    for axis in sorted((axis % value.dim() for axis in axes), reverse=True):
        value = torch.prod(value, axis, keepdim=keep)
    return value


def _softmax(function: Callable[[Tensor, int], Tensor]) -> Operator:
    def run(node: OnnxNode, inputs: Inputs) -> Value:
        assert inputs[0] is not None
        value, per_axis = tensor(inputs[0]), node.opset >= _SOFTMAX_PER_AXIS
        axis = int(node.get("axis", -1 if per_axis else 1)) % value.dim()
        if per_axis or axis == value.dim() - 1:
            return function(value, axis)
        return function(value.flatten(axis), axis).reshape(value.shape)

    return run


def _arg_max(node: OnnxNode, inputs: Inputs) -> Value:
    assert inputs[0] is not None
    return torch.argmax(tensor(inputs[0]), int(node.get("axis", 0)), keepdim=bool(node.get("keepdims", 1)))


def _norm(value: Tensor, axes: Sequence[int], keep: bool) -> Tensor:
    return torch.linalg.vector_norm(value, 2, list(axes), keepdim=keep)


def _unit(node: OnnxNode, inputs: Inputs) -> Value:
    assert inputs[0] is not None
    value, axis, order = tensor(inputs[0]), int(node.get("axis", -1)), int(node.get("p", 2))
    return value / torch.linalg.vector_norm(value, order, axis, keepdim=True)


OPERATORS: dict[str, Operator] = {
    "ArgMax": _arg_max,
    "LogSoftmax": _softmax(torch.log_softmax),
    "LpNormalization": _unit,
    "ReduceL1": _reduction(lambda value, axes, keep: torch.linalg.vector_norm(value, 1, list(axes), keepdim=keep)),
    "ReduceL2": _reduction(_norm),
    "ReduceMax": _reduction(lambda value, axes, keep: torch.amax(value, list(axes), keepdim=keep)),
    "ReduceMean": _reduction(lambda value, axes, keep: torch.mean(value, list(axes), keepdim=keep)),
    "ReduceMin": _reduction(lambda value, axes, keep: torch.amin(value, list(axes), keepdim=keep)),
    "ReduceProd": _reduction(_product),
    "ReduceSum": _reduction(lambda value, axes, keep: torch.sum(value, list(axes), keepdim=keep)),
    "ReduceSumSquare": _reduction(lambda value, axes, keep: torch.sum(value * value, list(axes), keepdim=keep)),
    "Softmax": _softmax(torch.softmax),
}
