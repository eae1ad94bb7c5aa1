"""Operators on each element: of one tensor, or of several that broadcast."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from packager.inputs.onnx_model.operators.port import Inputs, OnnxNode, Operator, given, present
from packager.inputs.onnx_model.values import UnsupportedOperatorError, Value, is_host, numbers, tensor

_FLOAT, _FLOAT16, _BOOL, _DOUBLE, _BFLOAT16 = 1, 10, 9, 11, 16  # of onnx.TensorProto
_HALF = (_FLOAT16, _BFLOAT16)
_TYPES = {
    _FLOAT: torch.float32,
    2: torch.uint8,
    3: torch.int8,
    5: torch.int16,
    6: torch.int32,
    7: torch.int64,
    _BOOL: torch.bool,
    _FLOAT16: torch.float32,  # half precision is imported in single precision
    _BFLOAT16: torch.float32,
    _DOUBLE: torch.float64,
}


def _unary(function: Callable[[Tensor], Tensor], on_host: Callable[[Any], Any] | None = None) -> Operator:
    def run(_: OnnxNode, inputs: Inputs) -> Value:
        (value,) = inputs
        assert value is not None
        if is_host(value) and on_host is not None:
            return _each(on_host, value)
        return function(tensor(value))

    return run


def _absolute(number: Any) -> Any:
    return number if isinstance(number, torch.SymInt) else abs(number)  # sizes are not negative


def _each(function: Callable[..., Any], *values: Value) -> Value:
    """``function`` of the numbers of host values that broadcast."""
    parts = np.broadcast_arrays(*values)
    made = np.empty(parts[0].shape, dtype=object)
    for place in np.ndindex(made.shape):
        made[place] = function(*(part[place] for part in parts))
    return made


def _binary(function: Callable[..., Tensor], on_host: Callable[..., Any]) -> Operator:
    def run(_: OnnxNode, inputs: Inputs) -> Value:
        given_values = present(inputs)
        if all(map(is_host, given_values)):
            found = given_values[0]
            for other in given_values[1:]:
                found = _each(on_host, found, other)
            return found
        first, *others = map(_operand, given_values)
        for other in others:
            first = _applied(function, first, other)
        return first

    return run


def _applied(function: Callable[..., Tensor], first: Any, other: Any) -> Tensor:
    """``function`` with a tensor first: torch's exporter takes numbers as the second operand alone."""
    if isinstance(first, Tensor) or not isinstance(other, Tensor):
        return function(first, other)
    return function(other, first) if function in (torch.add, torch.mul) else function(_filled(first, other), other)


def _filled(number: Any, like: Any) -> Tensor:
    """A number as a tensor without axes, of the other operand's type."""
    if isinstance(number, Tensor):
        return number
    return torch.full((), number, dtype=like.dtype if isinstance(like, Tensor) else None)


def _operand(value: Value) -> Any:
    """A tensor, or the number of a host value that has one: a Python number keeps the other operand's type."""
    return value.item() if is_host(value) and value.ndim == 0 else tensor(value)


def _as_tensors(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Any, Any], Tensor]:
    return lambda one, other: function(torch.as_tensor(one), torch.as_tensor(other))


def _quotient(one: Any, other: Any) -> Any:
    """ONNX divides integers towards zero; sizes are not negative."""
    return one / other if isinstance(one, float) or isinstance(other, float) else one // other


def _divided(one: Any, other: Any) -> Tensor:
    whole = all(
        not (part.is_floating_point() if isinstance(part, Tensor) else isinstance(part, float)) for part in (one, other)
    )
    return torch.div(one, other, rounding_mode="trunc" if whole else None)


def _modulo(node: OnnxNode, inputs: Inputs) -> Value:
    return _binary(torch.fmod if node.get("fmod", 0) else torch.remainder, operator.mod)(node, inputs)


def _power(_: OnnxNode, inputs: Inputs) -> Value:
    base, exponent = present(inputs)
    if is_host(base) and is_host(exponent):
        return _each(operator.pow, base, exponent)
    return torch.pow(tensor(base), _operand(exponent))


def _where(_: OnnxNode, inputs: Inputs) -> Value:
    condition, one, other = present(inputs)
    if all(map(is_host, (condition, one, other))):
        return _each(lambda chosen, yes, no: yes if chosen else no, condition, one, other)
    one, other = _operand(one), _operand(other)
    return torch.where(tensor(condition).bool(), _filled(one, other), _filled(other, one))


def _mean(node: OnnxNode, inputs: Inputs) -> Value:
    return tensor(_binary(torch.add, operator.add)(node, inputs)) / len(inputs)


def _cast(node: OnnxNode, inputs: Inputs) -> Value:
    (value,), kind = inputs, int(node.get("to"))
    assert value is not None
    if kind not in _TYPES:
        raise UnsupportedOperatorError(f"a cast to ONNX's type {kind}")
    if is_host(value) and _plain(value) and (value.ndim == 0 or kind not in (_FLOAT, _DOUBLE, *_HALF)):
        return _each(bool if kind == _BOOL else float if _TYPES[kind].is_floating_point else int, value)
    if is_host(value) and not _TYPES[kind].is_floating_point and kind != _BOOL:
        return value
    return tensor(value).to(_TYPES[kind])


def _plain(value: Value) -> bool:
    return all(not isinstance(number, torch.SymInt) for number in value.reshape(-1).tolist())


def _cast_like(_: OnnxNode, inputs: Inputs) -> Value:
    value, like = present(inputs)
    return value if is_host(like) and is_host(value) else tensor(value).to(tensor(like).dtype)


def _clip(node: OnnxNode, inputs: Inputs) -> Value:
    value = given(inputs, 0)
    assert value is not None
    low, high = (given(inputs, index) for index in (1, 2))
    bounds = [None if bound is None else _bound(bound) for bound in (low, high)]
    least, most = (node.get(name, bound) for name, bound in zip(("min", "max"), bounds, strict=True))
    if least is None and most is None:
        return value
    if is_host(value):
        return _each(lambda number: _between(number, least, most), value)
    if (least, most) == (0, 6):
        return functional.relu6(tensor(value))
    return torch.clamp(tensor(value), least, most)


def _between(number: Any, least: Any, most: Any) -> Any:
    raised = number if least is None else max(number, least)
    return raised if most is None else min(raised, most)


def _bound(value: Value) -> Any:
    return numbers(value, "a bound of Clip")[0]


def _gelu(node: OnnxNode, inputs: Inputs) -> Value:
    return functional.gelu(tensor(_first(inputs)), approximate=node.get("approximate", "none"))


def _first(inputs: Inputs) -> Value:
    assert inputs[0] is not None
    return inputs[0]


def _hard_sigmoid(node: OnnxNode, inputs: Inputs) -> Value:
    alpha, beta, value = node.get("alpha", 0.2), node.get("beta", 0.5), tensor(_first(inputs))
    if abs(alpha - 1 / 6) < 1e-6 and beta == 0.5:
        return functional.hardsigmoid(value)
    return torch.clamp(value * alpha + beta, 0, 1)


def _leaky_relu(node: OnnxNode, inputs: Inputs) -> Value:
    return functional.leaky_relu(tensor(_first(inputs)), node.get("alpha", 0.01))


def _elu(node: OnnxNode, inputs: Inputs) -> Value:
    return functional.elu(tensor(_first(inputs)), node.get("alpha", 1.0))


def _prelu(_: OnnxNode, inputs: Inputs) -> Value:
    value, slope = (tensor(one) for one in inputs if one is not None)
    return torch.where(value >= 0, value, value * slope)


def _identity(_: OnnxNode, inputs: Inputs) -> Value:
    return _first(inputs)


OPERATORS: dict[str, Operator] = {
    "Abs": _unary(torch.abs, _absolute),
    "Add": _binary(torch.add, operator.add),
    "And": _binary(_as_tensors(torch.logical_and), lambda one, other: bool(one) and bool(other)),
    "Cast": _cast,
    "CastLike": _cast_like,
    "Ceil": _unary(torch.ceil),
    "Clip": _clip,
    "Cos": _unary(torch.cos),
    "Div": _binary(_divided, _quotient),
    "Dropout": _identity,  # a graph for inference
    "Elu": _elu,
    "Equal": _binary(torch.eq, operator.eq),
    "Erf": _unary(torch.erf),
    "Exp": _unary(torch.exp),
    "Floor": _unary(torch.floor),
    "Gelu": _gelu,
    "Greater": _binary(torch.gt, operator.gt),
    "GreaterOrEqual": _binary(torch.ge, operator.ge),
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _unary(functional.hardswish),
    "Identity": _identity,
    "LeakyRelu": _leaky_relu,
    "Less": _binary(torch.lt, operator.lt),
    "LessOrEqual": _binary(torch.le, operator.le),
    "Log": _unary(torch.log),
    "Max": _binary(_as_tensors(torch.maximum), max),
    "Mean": _mean,
    "Min": _binary(_as_tensors(torch.minimum), min),
    "Mish": _unary(functional.mish),
    "Mod": _modulo,
    "Mul": _binary(torch.mul, operator.mul),
    "Neg": _unary(torch.neg, operator.neg),
    "Not": _unary(torch.logical_not, operator.not_),
    "Or": _binary(_as_tensors(torch.logical_or), lambda one, other: bool(one) or bool(other)),
    "PRelu": _prelu,
    "Pow": _power,
    "Reciprocal": _unary(torch.reciprocal),
    "Relu": _unary(functional.relu),
    "Round": _unary(torch.round),
    "Selu": _unary(functional.selu),
    "Sigmoid": _unary(torch.sigmoid),
    "Sign": _unary(torch.sign),
    "Sin": _unary(torch.sin),
    "Softplus": _unary(functional.softplus),
    "Softsign": _unary(functional.softsign),
    "Sqrt": _unary(torch.sqrt),
    "Sub": _binary(torch.sub, operator.sub),
    "Sum": _binary(torch.add, operator.add),
    "Tanh": _unary(torch.tanh),
    "Where": _where,
}
