"""Recognises nodes of an exported graph that are the complete call of one torch.nn layer."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

_aten = torch.ops.aten
_Values = dict[str, Any]  # arguments by their names in the operator's schema; weights as tensors
_CONVOLUTIONS: dict[tuple[int, bool], type[nn.Module]] = {
    (3, False): nn.Conv1d,
    (4, False): nn.Conv2d,
    (5, False): nn.Conv3d,
    (3, True): nn.ConvTranspose1d,
    (4, True): nn.ConvTranspose2d,
    (5, True): nn.ConvTranspose3d,
}
_NORMS: dict[int, type[nn.Module]] = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
_MOMENTUM = 0.1
TRANSPOSES = (_aten.t.default, _aten.permute.default, _aten.transpose.int)  # of a matrix


@dataclass(frozen=True)
class LayerCall:
    """A call of a layer on the node ``source``.

    ``make`` builds the layer on torch's meta device, ``states`` are the names of its weights, ``path`` is where they
    lie ("" for a layer without). ``results``: nodes that take the first of several results. ``training``: it ran in
    training mode.
    """

    make: Callable[[], nn.Module]
    source: fx.Node
    path: str
    states: Mapping[str, str]
    choices: tuple[object, ...]
    results: tuple[fx.Node, ...] = ()
    training: bool = False

    def makes_the_same_as(self, other: LayerCall) -> bool:
        """True if both are calls of one layer."""
        return (self.choices, self.states) == (other.choices, other.states)


def called_layer(node: fx.Node, names: Mapping[str, str | None], states: Mapping[str, Tensor]) -> LayerCall | None:
    """The layer that ``node`` calls, or None; ``names``: of states by node, ``states``: tensors by these names."""
    reader = _READERS.get(node.target)
    if reader is None:
        return None
    values = _arguments(node)
    weights: dict[str, str] = {}
    for name in _WEIGHTS:
        given = values.get(name)
        if isinstance(given, fx.Node):
            state = names.get(_untransposed(given).name if node.target is _aten.addmm.default else given.name)
            if state is None:
                return None
            weights[name], values[name] = state, states[state]
    source, path = values.get("input", values.get("mat1")), _path_of(weights)
    results = tuple(node.users) if isinstance(node.target, torch._ops.OpOverload) and _is_tuple(node) else ()
    first = all(user.target is operator.getitem and (user.args[1] == 0 or not user.users) for user in results)
    if not isinstance(source, fx.Node) or source.name in names or path is None or not first:
        return None
    values["dimensions"] = source.meta["val"].dim()
    made = reader(values)
    if made is None:
        return None
    kind, choices = made
    return LayerCall(
        make=lambda: _on_meta(kind, choices),
        source=source,
        path=path,
        states=weights,
        choices=(kind, *sorted(choices.items(), key=str)),
        results=results,
        training=bool(values.get("training", values.get("train", False))),
    )


_WEIGHTS = ("weight", "bias", "running_mean", "running_var", "mat2", "self")
_Made = tuple[type[nn.Module], dict[str, Any]] | None


def _arguments(node: fx.Node) -> _Values:
    schema = node.target._schema
    values = {one.name: one.default_value for one in schema.arguments if one.has_default_value()}
    values |= {one.name: given for one, given in zip(schema.arguments, node.args, strict=False)}
    values |= node.kwargs
    if node.target is _aten.addmm.default:  # bias + input @ weight.T
        return {"bias": values["self"], "input": values["mat1"], "weight": values["mat2"], **values} | {
            "self": None,
            "mat2": None,
        }
    return values


def _untransposed(node: fx.Node) -> fx.Node:
    """The weight that is transposed for a matrix product; ``node`` if it is none."""
    source = node.args[0] if node.target in TRANSPOSES else node
    return source if isinstance(source, fx.Node) else node


def _is_tuple(node: fx.Node) -> bool:
    return len(node.target._schema.returns) > 1


def _path_of(weights: Mapping[str, str]) -> str | None:
    """The path of the layer that has all ``weights`` under their own names; "" without weights; None if none has."""
    paths = {state.removesuffix(name) for name, state in weights.items() if state.endswith(f".{name}")}
    if not weights:
        return ""
    if len(paths) != 1 or any(not state.endswith(f".{name}") for name, state in weights.items()):
        return None
    return paths.pop().removesuffix(".")


def _on_meta(kind: type[nn.Module], choices: Mapping[str, Any]) -> nn.Module:
    device = {} if issubclass(kind, nn.Dropout) else {"device": "meta"}
    layer = kind(**choices, **device)
    if isinstance(layer, nn.modules.batchnorm._BatchNorm):
        layer.num_batches_tracked = torch.tensor(0)
    return layer


def _convolution(values: _Values) -> _Made:
    weight, transposed, groups = values["weight"], bool(values.get("transposed", False)), values["groups"]
    kind = _CONVOLUTIONS.get((weight.dim(), transposed))
    if kind is None:
        return None
    count = weight.dim() - 2
    inputs, outputs = (
        (weight.shape[0], weight.shape[1] * groups) if transposed else (weight.shape[1] * groups, len(weight))
    )
    choices = {
        "in_channels": inputs,
        "out_channels": outputs,
        "kernel_size": tuple(weight.shape[2:]),
        "padding": values["padding"] if isinstance(values["padding"], str) else _spread(values["padding"], count),
        "groups": groups,
        "bias": values["bias"] is not None,
        "stride": _spread(values["stride"], count),
        "dilation": _spread(values["dilation"], count),
    }
    if transposed:
        choices["output_padding"] = _spread(values["output_padding"], count)
    return kind, choices


def _transposed_convolution(values: _Values) -> _Made:
    return _convolution(values | {"transposed": True})


def _spread(value: Any, count: int) -> tuple[int, ...]:
    listed = (value,) if isinstance(value, int) else tuple(value)
    return listed * count if len(listed) == 1 else listed


def _linear(values: _Values) -> _Made:
    weight = values["weight"]
    return nn.Linear, {
        "in_features": weight.shape[1],
        "out_features": weight.shape[0],
        "bias": values["bias"] is not None,
    }


def _batch_norm(values: _Values) -> _Made:
    mean, kind = values["running_mean"], _NORMS.get(values["dimensions"])
    if kind is None or not isinstance(mean, Tensor) or (values["weight"] is None) != (values["bias"] is None):
        return None
    momentum = values["momentum"] or _MOMENTUM  # programs for inference often store 0: no statistic would ever move
    return kind, {
        "num_features": len(mean),
        "eps": values["eps"],
        "momentum": momentum,
        "affine": values["weight"] is not None,
    }


def _layer_norm(values: _Values) -> _Made:
    shape, weight, bias = values["normalized_shape"], values["weight"], values["bias"]
    if not all(isinstance(extent, int) for extent in shape) or (weight is None and bias is not None):
        return None
    return nn.LayerNorm, {
        "normalized_shape": tuple(shape),
        "eps": values["eps"],
        "elementwise_affine": weight is not None,
        "bias": bias is not None,
    }


def _group_norm(values: _Values) -> _Made:
    weight = values["weight"]
    if weight is None or values["bias"] is None:
        return None
    groups = values.get("num_groups", values.get("group"))
    return nn.GroupNorm, {"num_groups": groups, "num_channels": len(weight), "eps": values["eps"]}


def _dropout(values: _Values) -> _Made:
    return nn.Dropout, {"p": values["p"]}


_READERS: dict[Any, Callable[[_Values], _Made]] = {
    **dict.fromkeys((_aten.conv1d.default, _aten.conv2d.default, _aten.conv3d.default), _convolution),
    **dict.fromkeys((_aten.conv1d.padding, _aten.conv2d.padding, _aten.conv3d.padding), _convolution),
    _aten.convolution.default: _convolution,
    **dict.fromkeys(
        (_aten.conv_transpose1d.default, _aten.conv_transpose2d.input, _aten.conv_transpose3d.input),
        _transposed_convolution,
    ),
    _aten.linear.default: _linear,
    _aten.addmm.default: _linear,
    _aten.batch_norm.default: _batch_norm,
    _aten._native_batch_norm_legit_no_training.default: _batch_norm,
    _aten.layer_norm.default: _layer_norm,
    _aten.native_layer_norm.default: _layer_norm,
    _aten.group_norm.default: _group_norm,
    _aten.native_group_norm.default: _group_norm,
    _aten.dropout.default: _dropout,
    _aten.dropout_.default: _dropout,
}
