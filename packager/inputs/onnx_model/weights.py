"""Names constants after the layers that they are weights of, so that exported calls become torch.nn layers again."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from packager.inputs.onnx_model.operators.layers import LINEAR
from packager.inputs.onnx_model.operators.port import OnnxNode
from packager.inputs.onnx_model.values import Value

# The weights of a layer by their places among the inputs.
_ROLES: Mapping[str, tuple[str, ...]] = {
    "Conv": ("weight", "bias"),
    "ConvTranspose": ("weight", "bias"),
    "BatchNormalization": ("weight", "bias", "running_mean", "running_var"),
    "LayerNormalization": ("weight", "bias"),
    "GroupNormalization": ("weight", "bias"),
    LINEAR: ("weight", "bias"),
}
_MATRIX = 2  # axes


@dataclass(frozen=True)
class LayeredNodes:
    """Nodes whose weights have the names of layers' states, such as ``layer_conv1.weight``, and these tensors."""

    nodes: tuple[OnnxNode, ...]
    weights: Mapping[str, Tensor]


def layered(nodes: Sequence[OnnxNode], known: Mapping[str, Value], output: str) -> LayeredNodes:
    """``nodes`` with named weights; products with a constant matrix become linear layers. ``known``: the constants."""
    tensors = {name: value for name, value in known.items() if isinstance(value, Tensor)}
    weights: dict[str, Tensor] = {}
    made_for: dict[str, tuple[str, ...]] = {}
    named = []
    for node in _with_linear_layers(nodes, tensors, output):
        roles = [role for role, name in zip(_ROLES.get(node.operator, ()), node.inputs[1:], strict=False) if name]
        given = [name for name in node.inputs[1:] if name]
        if not roles or not all(name in tensors for name in given):
            named.append(node)
            continue
        path = _path(node, made_for)
        made_for[path] = node.inputs[1:]
        weights |= {f"{path}.{role}": tensors[name] for role, name in zip(roles, given, strict=True)}
        named.append(replace(node, inputs=(node.inputs[0], *(f"{path}.{role}" for role in roles))))
    return LayeredNodes(tuple(named), weights)


def _path(node: OnnxNode, made_for: Mapping[str, tuple[str, ...]]) -> str:
    """The path of the layer: that of an earlier node with the same weights, or a new one."""
    weight = node.inputs[1]
    own = weight.removesuffix(".weight") if weight.endswith(".weight") else node.name
    first = path = "layer_" + re.sub(r"\W", "_", own)
    number = 1
    while path in made_for and made_for[path] != node.inputs[1:]:
        number += 1
        path = f"{first}_{number}"
    return path


def _with_linear_layers(nodes: Sequence[OnnxNode], tensors: dict[str, Tensor], output: str) -> list[OnnxNode]:
    readers = Counter(name for node in nodes for name in node.inputs)
    readers[output] += 1
    added = {name: node for node in nodes if node.operator == "Add" for name in node.inputs}
    found: list[OnnxNode] = []
    joined: set[str] = set()
    for node in nodes:
        if node.outputs[0] in joined:
            continue
        linear = _linear(node, tensors)
        sum_ = added.get(node.outputs[0])
        if linear is not None and len(linear.inputs) == 2 and sum_ is not None and readers[node.outputs[0]] == 1:
            bias = next((name for name in sum_.inputs if name != node.outputs[0]), "")
            if bias in tensors and tensors[bias].shape == tensors[linear.inputs[1]].shape[:1]:
                linear = replace(linear, inputs=(*linear.inputs, bias), outputs=sum_.outputs)
                joined.add(sum_.outputs[0])
        found.append(linear or node)
    return found


def _linear(node: OnnxNode, tensors: dict[str, Tensor]) -> OnnxNode | None:
    """A product with a constant matrix as a linear layer; its weight is added to ``tensors`` as [out, in]."""
    if node.operator not in ("MatMul", "Gemm") or len(node.inputs) < _MATRIX:
        return None
    matrix = tensors.get(node.inputs[1])
    if matrix is None or matrix.dim() != _MATRIX or not _is_plain(node):
        return None
    bias = node.inputs[2:] if len(node.inputs) > _MATRIX and node.inputs[2] else ()
    transposed = bool(node.get("transB", 0))
    outputs = matrix.shape[0] if transposed else matrix.shape[1]
    if bias and (bias[0] not in tensors or tensors[bias[0]].shape not in ((outputs,), (1, outputs))):
        return None
    name = node.inputs[1]
    if not transposed:
        name = f"{name.removesuffix('.weight')}.transposed.weight"
        tensors[name] = matrix.t().contiguous()
    if bias:
        tensors[bias[0]] = tensors[bias[0]].reshape(outputs)
    return replace(node, operator=LINEAR, inputs=(node.inputs[0], name, *bias), attributes={})


def _is_plain(node: OnnxNode) -> bool:
    return not node.get("transA", 0) and node.get("alpha", 1.0) == 1.0 and node.get("beta", 1.0) == 1.0
