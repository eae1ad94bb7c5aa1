"""An ONNX graph as a torch module that runs its nodes one after the other; made to be exported, not to be kept."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from packager.errors import ModelLoadError
from packager.inputs.onnx_model.operators import OPERATORS
from packager.inputs.onnx_model.operators.port import Inputs, OnnxNode
from packager.inputs.onnx_model.reading import OnnxModel
from packager.inputs.onnx_model.values import UnsupportedOperatorError, Value, host, known_value, tensor
from packager.inputs.onnx_model.weights import layered

_RESIZE, _SCALES = "Resize", 2  # the index of its input that holds scales


class OnnxNetwork(nn.Module):
    """[batch, *input] → the graph's output.

    What depends on constants alone is computed once. Trained weights are parameters, other constants buffers.

    Raises:
        ModelLoadError: an operator has no import; names it, its node, and what to do.
    """

    def __init__(self, model: OnnxModel) -> None:
        super().__init__()
        _require_imports(model)
        self._name, self._input, self._output = model.name, model.input_name, model.output_name
        known: dict[str, Value] = {name: known_value(value) for name, value in model.constants.items()}
        left = []
        with torch.no_grad():
            for node in model.nodes:
                if all(name in known for name in node.inputs if name):
                    known |= self._constants(node, known)
                else:
                    left.append(node)
        for node in left:
            _know_scales(node, known)
        found = layered(left, known, self._output)
        self._nodes = found.nodes
        self._hosts = {name: value for name, value in known.items() if not isinstance(value, Tensor)}
        self._paths = self._register(known, found.weights, trained=model.constants)
        self._last = {name: index for index, node in enumerate(self._nodes) for name in node.inputs}

    def forward(self, features: Tensor) -> Tensor:
        """[batch, *input] → [batch, …]."""
        values: dict[str, Value] = {self._input: features}
        for index, node in enumerate(self._nodes):
            inputs = [self._value(name, values) for name in node.inputs]
            results = self._run(node, inputs)
            values |= {name: result for name, result in zip(node.outputs, results, strict=False) if name}
            for name in node.inputs:
                if self._last[name] == index and name != self._output:
                    values.pop(name, None)
        return tensor(self._value(self._output, values) if self._output in values else features)

    def _value(self, name: str, values: Mapping[str, Value]) -> Value | None:
        if not name:
            return None
        if name in values:
            return values[name]
        found: Value = self._hosts[name] if name in self._hosts else self._state(self._paths[name])
        return found

    def _state(self, path: str) -> Tensor:
        owner, _, name = path.rpartition(".")
        found: Tensor = getattr(self.get_submodule(owner), name)
        return found

    def _constants(self, node: OnnxNode, known: Mapping[str, Value]) -> dict[str, Value]:
        results = (
            (_constant(node),) if node.operator == "Constant" else self._run(node, [known.get(n) for n in node.inputs])
        )
        made = (known_value(one) if isinstance(one, Tensor) else one for one in results)
        return {name: one for name, one in zip(node.outputs, made, strict=False) if name}

    def _run(self, node: OnnxNode, inputs: Inputs) -> tuple[Value, ...]:
        try:
            result = OPERATORS[node.operator](node, inputs)
        except UnsupportedOperatorError as error:
            raise _unsupported(self._name, node, str(error)) from error
        return tuple(result) if isinstance(result, tuple | list) else (result,)

    def _register(
        self, known: Mapping[str, Value], weights: Mapping[str, Tensor], *, trained: Mapping[str, Tensor]
    ) -> dict[str, str]:
        """Register what the nodes read: the path of each tensor by name."""
        paths = {name: name for name in weights}
        for name, value in weights.items():
            self._add(name, value, parameter=not name.endswith(("running_mean", "running_var")))
        read = dict.fromkeys(name for node in self._nodes for name in node.inputs)
        for number, name in enumerate(name for name in read if name not in weights):
            value = known.get(name)
            if isinstance(value, Tensor):
                paths[name] = f"constants.c{number}"
                self._add(paths[name], value, parameter=name in trained and value.is_floating_point())
        return paths

    def _add(self, path: str, value: Tensor, *, parameter: bool) -> None:
        owner, _, name = path.rpartition(".")
        if owner not in self._modules:
            self.add_module(owner, nn.Module())
        holder = self.get_submodule(owner)
        if parameter:
            holder.register_parameter(name, nn.Parameter(value.detach()))
        else:
            holder.register_buffer(name, value)


def _require_imports(model: OnnxModel) -> None:
    for node in model.nodes:
        if node.operator not in OPERATORS and node.operator != "Constant":
            raise _unsupported(model.name, node, node.operator)


def _unsupported(name: str, node: OnnxNode, what: str) -> ModelLoadError:
    said = f"the operator {what}" if what == node.operator else f"{what} ({node.operator})"
    return ModelLoadError(
        f"{name} has {said} at node {node.name}, which has no import",
        hint="package the nn.Module (--model package.module:callable) or the exported program (.pt2) instead",
    )


def _constant(node: OnnxNode) -> Value:
    value = node.get("value")
    if isinstance(value, Tensor):
        return value
    for name in ("value_float", "value_int"):
        if node.get(name) is not None:
            return host([node.get(name)], scalar=True)
    listed = node.get("value_ints")
    return host(listed) if listed is not None else torch.tensor(node.get("value_floats", []))


def _know_scales(node: OnnxNode, known: dict[str, Value]) -> None:
    """The scales of a resize are numbers, not data."""
    if node.operator == _RESIZE and len(node.inputs) > _SCALES:
        value = known.get(node.inputs[_SCALES])
        if isinstance(value, Tensor):
            known[node.inputs[_SCALES]] = host(value.tolist())
