"""The ONNX graph of every block and exit: many are exported together, then cut apart (docs/adr/0002).

One export of many parts is much faster than one export each. Their number is limited, since time and memory grow
faster than linearly. Of parts with equal structure only the first is exported, as a template for the others: of a
traced module its graph without names, of any other its class, plain attribute values and submodules; a module with
other attributes is equal to none.
"""

from __future__ import annotations

import enum
import functools
import types
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
import torch
from onnx import numpy_helper
from onnxscript import optimizer
from torch import fx, nn

from device_sdk.runtimes.onnx_runtime import give_back_freed_memory
from device_sdk.supernet.blocks import MAP_AXES, TensorSpec
from packager.errors import TraceError
from packager.exporting.kept_axes import copy_kept_axes
from packager.exporting.onnx_exporter import (
    IR_VERSION,
    SideBySide,
    export_side_by_side,
    refuse_custom_operators,
    select_by_convolution,
)

_MOST_MODULES = 500  # side by side in one graph; a model of 1,067 took 240 s in one, 140 s in three
_MOST_BYTES = 400_000_000  # of weights in one export, which keeps three copies in memory
_HELD_BY_ALL = frozenset(vars(nn.Module()))
_TORCHS_OWN = (torch.dtype, torch.device, torch.layout, torch.memory_format)
_PLAIN = (bool, int, str, bytes, types.NoneType, enum.Enum, *_TORCHS_OWN)
_CODE = (type, types.FunctionType, types.BuiltinFunctionType, torch._ops.OpOverload)


@dataclass(frozen=True)
class Part:
    """A module that becomes one graph, with its input and output tensors. Inner names will be ``<id>/…``."""

    id: str
    module: nn.Module
    read: tuple[TensorSpec, ...]
    end: tuple[TensorSpec, ...]

    @property
    def is_resizable(self) -> bool:
        """True of a head that brings several maps to one size, which depends on the input's."""
        return len(self.read) > 1 and all(len(spec.shape) == MAP_AXES for spec in self.read)


def part_graphs(parts: Sequence[Part]) -> dict[str, onnx.GraphProto]:
    """The graph of each part, by its id: nodes and initializers, from the names of ``read`` to those of ``end``.

    Raises:
        TraceError: torch cannot export the parts to ONNX.
    """
    structures = {part.id: structure_of(part.module.eval()) for part in parts}
    kinds = {part.id: _kind(part, structures[part.id]) for part in parts}
    first: dict[Hashable, Part] = {}
    for part in parts:
        first.setdefault(kinds[part.id], part)
    templates: dict[str, _Template] = {}
    heads = [part for part in first.values() if part.is_resizable]
    for group in _groups([part for part in first.values() if not part.is_resizable]):
        templates |= _templates(group, structures)
        give_back_freed_memory()
    for head in heads:
        templates |= _resizable_template(head, structures)
    return {part.id: templates[first[kinds[part.id]].id].filled(part, structures[part.id]) for part in parts}


def _kind(part: Part, structure: Structure) -> Hashable:
    """A key that is equal for parts that differ only in weights and names."""
    return structure.key, tuple((spec.shape, spec.dtype) for spec in part.read)


def _groups(parts: Sequence[Part]) -> Iterator[list[Part]]:
    """Consecutive parts in groups within the limits of one export."""
    group: list[Part] = []
    modules = size_bytes = 0
    for part in parts:
        more = sum(1 for _ in part.module.modules())
        more_bytes = sum(tensor.nbytes for tensor in part.module.state_dict().values())
        if group and (modules + more > _MOST_MODULES or size_bytes + more_bytes > _MOST_BYTES):
            yield group
            group, modules, size_bytes = [], 0, 0
        group.append(part)
        modules, size_bytes = modules + more, size_bytes + more_bytes
    if group:
        yield group


def _templates(
    parts: Sequence[Part], structures: Mapping[str, Structure], *, resizable: bool = False
) -> dict[str, _Template]:
    """Export the parts together, as templates for their kinds."""
    together = export_side_by_side(
        [part.module for part in parts],
        [part.read for part in parts],
        inputs=[name for part in parts for name in _inputs(part)],
        outputs=[name for part in parts for name in _outputs(part)],
        resizable=resizable,
    )
    cutter = _Cutter(together)
    return {part.id: cutter.template(part, structures[part.id]) for part in parts}


def _resizable_template(part: Part, structures: Mapping[str, Structure]) -> dict[str, _Template]:
    """The template at any input size if torch can export it so, else at the model's own."""
    try:
        return _templates([part], structures, resizable=True)
    except TraceError:
        return _templates([part], structures)


def _inputs(part: Part) -> list[str]:
    """The part's input names in the common graph."""
    return [f"{part.id}/input_{number}" for number in range(len(part.read))]


def _outputs(part: Part) -> list[str]:
    """The part's output names in the common graph."""
    return [f"{part.id}/output_{number}" for number in range(len(part.end))]


@dataclass(frozen=True)
class _Template:
    """A model of one part, from which the graph of any part of its kind is made.

    ``states``: for each initializer left out of it, the index of the structure's tensor to insert.
    """

    model: onnx.ModelProto
    states: Mapping[str, int]

    def filled(self, part: Part, structure: Structure) -> onnx.GraphProto:
        """The graph of ``part``, with its own weights and names, optimized for inference."""
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        for name, number in self.states.items():
            model.graph.initializer.append(
                numpy_helper.from_array(structure.tensors[number].detach().cpu().numpy(), name)
            )
        model = optimizer.optimize(model)
        refuse_custom_operators(model)
        select_by_convolution(model.graph)
        copy_kept_axes(model.graph)
        names = {value.name: spec.name for value, spec in zip(model.graph.input, part.read, strict=True)}
        names |= {value.name: spec.name for value, spec in zip(model.graph.output, part.end, strict=True)}
        return _renamed(model.graph, names, within=part.id)


class _Cutter:
    """Cuts the common graph into one model per part."""

    def __init__(self, together: SideBySide) -> None:
        graph = together.model.graph
        self._together = together
        self._nodes = list(graph.node)
        self._producer = {output: index for index, node in enumerate(self._nodes) for output in node.output}
        self._initializers = {tensor.name: tensor for tensor in graph.initializer}
        self._values = {value.name: value for value in [*graph.input, *graph.output, *graph.value_info]}

    def template(self, part: Part, structure: Structure) -> _Template:
        """The part's nodes, the shapes of their results, and its constants."""
        nodes, weights = self._needed_by(part)
        numbers = {id(tensor): number for number, tensor in enumerate(structure.tensors)}
        states = {name: numbers[id(self._together.states[name])] for name in weights if name in self._together.states}
        whole = self._together.model
        model = onnx.ModelProto(ir_version=IR_VERSION, opset_import=whole.opset_import, functions=whole.functions)
        model.graph.name = part.id
        model.graph.input.extend(self._values[name] for name in _inputs(part))
        model.graph.output.extend(self._values[name] for name in _outputs(part))
        model.graph.node.extend(self._nodes[index] for index in nodes)
        model.graph.initializer.extend(self._initializers[name] for name in weights if name not in states)
        inner = {name for node in model.graph.node for name in node.output} - {*_outputs(part)}
        model.graph.value_info.extend(self._values[name] for name in sorted(inner & self._values.keys()))
        return _Template(model, states)

    def _needed_by(self, part: Part) -> tuple[list[int], list[str]]:
        """The nodes, in order, and the initializers that the part's outputs need."""
        nodes: set[int] = set()
        weights: set[str] = set()
        given, waiting = {*_inputs(part), ""}, _outputs(part)
        while waiting:
            name = waiting.pop()
            if name in given:
                continue
            if name in self._initializers:
                weights.add(name)
            elif name not in self._producer:
                raise TraceError(f"the exported graph of {part.id} reads {name}, which belongs to another part")
            elif self._producer[name] not in nodes:
                nodes.add(self._producer[name])
                waiting.extend(self._nodes[self._producer[name]].input)
        return sorted(nodes), sorted(weights)


def _renamed(graph: onnx.GraphProto, names: Mapping[str, str], *, within: str) -> onnx.GraphProto:
    """Rename tensors by ``names``, prefix all others with ``within``. Metadata of the exporting machine is dropped."""

    def renamed(name: str) -> str:
        return names.get(name) or (f"{within}/{name}" if name else "")

    found = onnx.GraphProto()
    for index, node in enumerate(graph.node):
        copied = found.node.add()
        copied.CopyFrom(node)
        del copied.metadata_props[:]
        copied.ClearField("doc_string")
        copied.name = f"{within}/{node.name or index}"
        copied.input[:] = [renamed(name) for name in node.input]
        copied.output[:] = [renamed(name) for name in node.output]
    for tensor in sorted(graph.initializer, key=lambda tensor: tensor.name):
        copied_tensor = found.initializer.add()
        copied_tensor.CopyFrom(tensor)
        copied_tensor.name = renamed(tensor.name)
        copied_tensor.ClearField("doc_string")
    return found


@dataclass(frozen=True)
class Structure:
    """``key`` is equal for modules of equal structure, whose ``tensors`` then are in the same order.

    ``tensors``: the parameters and buffers, each once.
    """

    key: Hashable
    tensors: tuple[torch.Tensor, ...]


def structure_of(module: nn.Module) -> Structure:
    """The structure of ``module``, which is in evaluation mode."""
    reader = _Reader()
    try:
        return Structure(reader.module(module), tuple(reader.tensors))
    except _UnknownError:
        return Structure(object(), tuple({id(t): t for t in [*module.parameters(), *module.buffers()]}.values()))


class _UnknownError(Exception):
    """A value that cannot be compared."""


class _Reader:
    """Converts modules to hashable keys, and collects their tensors in order of appearance."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self._numbers: dict[int, int] = {}  # index of each tensor by identity, so shared tensors stay shared in the key

    def module(self, module: nn.Module) -> Hashable:
        held = vars(module)
        if any(held[name] for name in held if name.endswith("_hooks")):
            raise _UnknownError
        if isinstance(module, fx.GraphModule):
            return self._graph(module)
        return (
            type(module),
            self._value({name: value for name, value in held.items() if name not in _HELD_BY_ALL}),
            tuple((name, self._tensor(tensor)) for name, tensor in held["_parameters"].items()),
            tuple((name, self._tensor(tensor)) for name, tensor in held["_buffers"].items()),
            tuple((name, child and self.module(child)) for name, child in held["_modules"].items()),
        )

    def _graph(self, module: fx.GraphModule) -> Hashable:
        numbers: dict[fx.Node, int] = {}
        members: dict[str, int] = {}
        rows: list[Hashable] = []
        for node in module.graph.nodes:
            what: Hashable = node.target if node.op in ("call_function", "call_method") else None
            if node.op in ("call_module", "get_attr"):
                is_new = node.target not in members
                number = members.setdefault(node.target, len(members))
                what = (number, self._member(module, node.target) if is_new else None)
            rows.append((node.op, what, self._value(node.args, numbers), self._value(node.kwargs, numbers)))
            numbers[node] = len(numbers)
        return tuple(rows)

    def _member(self, module: nn.Module, target: str) -> Hashable:
        path, _, name = target.rpartition(".")
        owner = module.get_submodule(path)
        found = getattr(owner, name)
        if isinstance(found, nn.Module):
            return self.module(found)
        if name in owner._parameters or name in owner._buffers:
            return self._tensor(found)
        raise _UnknownError

    def _tensor(self, tensor: torch.Tensor | None) -> Hashable:
        if tensor is None:
            return None
        if id(tensor) not in self._numbers:
            self._numbers[id(tensor)] = len(self.tensors)
            self.tensors.append(tensor)
        return self._numbers[id(tensor)], tuple(tensor.shape), tensor.dtype

    def _value(self, value: Any, numbers: Mapping[fx.Node, int] | None = None) -> Hashable:
        if isinstance(value, _PLAIN):
            return type(value), value
        if isinstance(value, float):
            return float, repr(value)  # distinguishes -0.0 from 0.0
        if isinstance(value, fx.Node) and numbers is not None:
            return fx.Node, numbers[value]
        if isinstance(value, slice):
            return slice, self._value((value.start, value.stop, value.step), numbers)
        if isinstance(value, _CODE):
            return value
        if isinstance(value, functools.partial):
            return functools.partial, self._value((value.func, value.args, value.keywords), numbers)
        if isinstance(value, Mapping):
            return dict, tuple((name, self._value(one, numbers)) for name, one in value.items())
        if isinstance(value, (list, tuple)):
            return type(value), tuple(self._value(item, numbers) for item in value)
        if isinstance(value, (set, frozenset)):
            return set, frozenset(self._value(item, numbers) for item in value)
        raise _UnknownError
