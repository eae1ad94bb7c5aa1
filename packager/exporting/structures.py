"""Comparison of modules by structure: equal structures differ only in their weights.

The structure of a traced module is its graph without names; of any other module its class, its plain attribute values,
and the structures of its submodules. A module with other attributes is equal to none.
"""

from __future__ import annotations

import enum
import functools
import types
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

_HELD_BY_ALL = frozenset(vars(nn.Module()))
_TORCHS_OWN = (torch.dtype, torch.device, torch.layout, torch.memory_format)
_PLAIN = (bool, int, str, bytes, types.NoneType, enum.Enum, *_TORCHS_OWN)
_CODE = (type, types.FunctionType, types.BuiltinFunctionType, torch._ops.OpOverload)


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
