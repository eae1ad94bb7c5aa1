"""A program as a module with torch.nn layers around its weights, which can be trained, pruned and cut.

An exported graph has batch normalisation and dropout frozen in evaluation mode, and no layers. Nodes that are the
complete call of one layer become that layer again; everything else stays an operator on parameters.
"""

from __future__ import annotations

import operator
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export.graph_signature import InputKind

from packager.inputs.exported_program.layer_calls import TRANSPOSES, LayerCall, called_layer

_CHECKS = frozenset(
    {
        torch.ops.aten._assert_scalar.default,
        torch.ops.aten._assert_tensor_metadata.default,
        torch.ops.aten.sym_constrain_range.default,
        torch.ops.aten.sym_constrain_range_for_size.default,
    }
)
_STATES = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
_HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class LayeredProgram:
    """The rebuilt module, in evaluation mode and single precision.

    ``training``: paths of layers that the program ran in training mode. ``half``: the program was in half precision.
    """

    module: fx.GraphModule
    training: tuple[str, ...]
    half: bool


def with_layers(program: torch.export.ExportedProgram) -> LayeredProgram:
    """A program of one input and one output as a module with layers: [batch, …] → [batch, …]."""
    return _Rebuilding(program).run()


class _Rebuilding:
    def __init__(self, program: torch.export.ExportedProgram) -> None:
        self._program = program
        self._states = _states(program)
        specs = program.graph_signature.input_specs
        self._state_names = {spec.arg.name: spec.target for spec in specs if spec.kind in _STATES}
        self._parameters = {spec.target for spec in specs if spec.kind is InputKind.PARAMETER}
        self._root = nn.Module()
        self._graph = fx.Graph()
        self._new: dict[fx.Node, fx.Node] = {}
        self._layers: dict[str, LayerCall] = {}  # by path
        self._training: list[str] = []
        self._half = False

    def run(self) -> LayeredProgram:
        signature = self._program.graph_signature
        alone = self._alone_in_their_layer()
        for node in self._program.graph.nodes:
            if node.op == "placeholder" and node.name in signature.user_inputs:
                self._new[node] = self._graph.placeholder("features")
            elif node.op == "get_attr":  # the graph of a region
                self._root.add_module(str(node.target), getattr(self._program.graph_module, str(node.target)))
                self._new[node] = self._graph.get_attr(str(node.target))
            elif node.op == "call_function" and not self._is_left_out(node):
                self._call(node, may_be_layer=alone.get(node, True))
        (result,) = signature.user_outputs
        self._graph.output(self._resolve(next(node for node in self._program.graph.nodes if node.name == result)))
        module = fx.GraphModule(self._root, self._graph)
        half = self._half or any(state.dtype in _HALF for state in self._states.values())
        return LayeredProgram(module.float().eval(), tuple(dict.fromkeys(self._training)), half)

    def _alone_in_their_layer(self) -> dict[fx.Node, bool]:
        """For each node with a known layer: True if it is the only operator of that call of the layer.

        Updates of statistics, transposed weights and the choice of one of several results do not count.
        """
        keys: dict[fx.Node, tuple[str, str]] = {}
        for node in self._program.graph.nodes:
            stack = list((node.meta.get("nn_module_stack") or {}).items())
            path = stack[-1][1][0] if stack else ""  # "" for operators of the whole model's own forward
            if node.op == "call_function" and path and not self._is_beside(node):
                keys[node] = (stack[-1][0], path)
        counts = Counter(keys.values())
        return {node: counts[key] == 1 for node, key in keys.items()}

    def _is_beside(self, node: fx.Node) -> bool:
        read = node.all_input_nodes
        of_states = bool(read) and all(one.name in self._state_names for one in read)
        number = not isinstance(node.meta.get("val"), Tensor | tuple | list)
        return number or of_states or node.target is operator.getitem or self._changes_state(node)

    def _is_left_out(self, node: fx.Node) -> bool:
        """True for checks, updates of statistics, and transposed weights, which are copied where they are read."""
        return node.target in _CHECKS or self._changes_state(node) or self._is_transposed_state(node)

    def _is_transposed_state(self, node: fx.Node) -> bool:
        return node.target in TRANSPOSES and node.all_input_nodes[0].name in self._state_names

    def _changes_state(self, node: fx.Node) -> bool:
        """True for the update of a statistic, which evaluation mode leaves out."""
        schema = getattr(node.target, "_schema", None)
        changed = node.args[0] if node.args else None
        mutable = schema is not None and schema.is_mutable
        return mutable and isinstance(changed, fx.Node) and changed.name in self._state_names

    def _call(self, node: fx.Node, *, may_be_layer: bool) -> None:
        if node in self._new:
            return  # one of several results of a layer
        call = called_layer(node, self._state_names, self._states) if may_be_layer else None
        path = None if call is None else self._placed(node, call)
        if call is None or path is None:
            copied = self._graph.node_copy(node, self._resolve)
            copied.args, copied.kwargs = (
                fx.node.map_aggregate(part, self._plain) for part in (copied.args, copied.kwargs)
            )
            copied.meta = {}
            self._new[node] = copied
            return
        called = self._graph.call_module(path, (self._resolve(call.source),))
        self._new |= dict.fromkeys((node, *call.results), called)
        if call.training:
            self._training.append(path)

    def _plain(self, value: Any) -> Any:
        """An argument without half precision and devices other than the processor."""
        if isinstance(value, torch.dtype) and value in _HALF:
            self._half = True
            return torch.float32
        return torch.device("cpu") if isinstance(value, torch.device) else value

    def _placed(self, node: fx.Node, call: LayerCall) -> str | None:
        """The path of the layer, made at its first call; None if that path is of something else."""
        path = call.path or _stack_path(node) or node.name
        known = self._layers.get(path)
        if known is None:
            if _found(self._root, path) is not None:
                return None
            layer = call.make()
            for name, state in call.states.items():
                self._set_state(layer, name, state)
            _container(self._root, path).add_module(path.rpartition(".")[2], layer)
            self._layers[path] = known = call
        return path if known.makes_the_same_as(call) else None

    def _resolve(self, node: fx.Node) -> fx.Node:
        if node not in self._new and self._is_transposed_state(node):
            self._new[node] = self._graph.node_copy(node, self._resolve)
            self._new[node].meta = {}
        elif node not in self._new:
            path = self._state_names[node.name]
            assert path is not None
            if _found(self._root, path) is None:
                self._set_state(_container(self._root, path), path.rpartition(".")[2], path)
            self._new[node] = self._graph.get_attr(path)
        return self._new[node]

    def _set_state(self, owner: nn.Module, name: str, state: str) -> None:
        value = self._states[state].detach().to("cpu")
        if state in self._parameters or name in owner._parameters:
            owner._parameters[name] = nn.Parameter(value, requires_grad=value.is_floating_point())
        else:
            owner._buffers[name] = value


def _states(program: torch.export.ExportedProgram) -> dict[str, Tensor]:
    """Parameters, buffers and constants by name."""
    found: dict[str, Tensor] = {}
    for spec in program.graph_signature.input_specs:
        if spec.kind in _STATES and spec.target is not None:
            value = program.state_dict.get(spec.target)
            found[spec.target] = value if value is not None else program.constants[spec.target]
    return found


def _stack_path(node: fx.Node) -> str:
    """The path of the layer that ``node`` belongs to; "" if unknown."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return str(stack[-1][0]) if stack else ""


def _found(root: nn.Module, path: str) -> object:
    """The module or tensor at ``path``; None if there is none."""
    owner: object = root
    for name in path.split("."):
        owner = getattr(owner, name, None)
    return owner


def _container(root: nn.Module, path: str) -> nn.Module:
    """The module that holds the last part of ``path``, made if there is none."""
    for name in path.split(".")[:-1]:
        if name not in root._modules:
            root.add_module(name, nn.Module())
        root = root.get_submodule(name)
    return root
