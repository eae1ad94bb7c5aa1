"""Reconstructs a block of an exported graph as a trainable module (docs/adr/0003-real-modules.md)."""

from __future__ import annotations

import copy
import operator
from collections.abc import Sequence

import torch
from torch import fx, nn

from packager.errors import TraceError
from packager.tracing.exported_graph import ExportedGraph, is_size

_ATTENTION_DIMENSIONS = 4  # [batch, heads, tokens, channels]
_LEAF_MODULES = (
    nn.modules.conv._ConvNd,
    nn.modules.batchnorm._BatchNorm,
    nn.Linear,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.modules.dropout._DropoutNd,
)


class BlockBuilder:
    """Builds a GraphModule of the nodes of one block, with the model's own torch.nn layers."""

    def __init__(
        self,
        body: ExportedGraph,
        model: nn.Module,
        between: range,
        *,
        entries: Sequence[fx.Node],
        results: Sequence[fx.Node],
    ) -> None:
        self._body = body
        self._model = model
        self._nodes = [body.nodes[index] for index in between]
        self._entries = tuple(entries)
        self._results = tuple(results)
        self._graph = fx.Graph()
        self._root = nn.Module()
        self._new: dict[fx.Node, fx.Node] = {}

    def build(self) -> fx.GraphModule:
        """The block as a module from ``entries`` to the single result, or a tuple of ``results``."""
        names = ["features"] if len(self._entries) == 1 else [f"features_{n}" for n in range(len(self._entries))]
        for name, entry in zip(names, self._entries, strict=True):
            self._new[entry] = self._graph.placeholder(name)
        layers = self._layer_calls()
        for node in self._nodes:
            layer = layers.get(node)
            if layer is not None:
                self._new[node] = self._call_layer(layer, node)
            elif not is_size(node):
                self._copy(node)
        results = tuple(self._resolve(result) for result in self._results)
        self._graph.output(results[0] if len(results) == 1 else results)
        module = fx.GraphModule(self._root, self._graph)
        module.graph.eliminate_dead_code()
        module.recompile()
        module.delete_all_unused_submodules()
        return module.eval()

    def _layer_calls(self) -> dict[fx.Node, str]:
        """Nodes that are the complete call of one supported layer, with the layer's path in the model."""
        calls: dict[tuple[str, str], list[fx.Node]] = {}
        for node in self._nodes:
            stack = list((node.meta.get("nn_module_stack") or {}).items())
            if stack and not is_size(node):
                calls.setdefault((stack[-1][0], stack[-1][1][0]), []).append(node)
        found = {}
        for (_, path), nodes in calls.items():
            try:
                layer = self._model.get_submodule(path) if path else None
            except AttributeError:
                continue
            if len(nodes) == 1 and isinstance(layer, _LEAF_MODULES):
                found[nodes[0]] = path
        return found

    def _call_layer(self, path: str, node: fx.Node) -> fx.Node:
        name = self._member(path, _plain(self._model.get_submodule(path)))
        source = node.args[0]
        assert isinstance(source, fx.Node)
        return self._graph.call_module(name, (self._resolve(source),))

    def _copy(self, node: fx.Node) -> None:
        copied = self._graph.node_copy(node, self._resolve)
        copied.meta = {}
        self._new[node] = self._in_plain_products(copied) if _is_wide_attention(node) else copied

    def _in_plain_products(self, attention: fx.Node) -> fx.Node:
        """The attention as matrix products; torch exports the fused operator to ONNX only with 4 dimensions."""
        attention.target = torch.ops.aten._scaled_dot_product_attention_math.default
        return self._graph.call_function(operator.getitem, (attention, 0))

    def _resolve(self, node: fx.Node) -> fx.Node:
        if node not in self._new:
            if node.name in self._body.states:
                self._new[node] = self._get_state(node.name)
            elif is_size(node):
                self._new[node] = self._recompute_size(node)
            elif node in self._body.constants:
                self._copy(node)
            else:
                raise TraceError(f"the operator at {node.name} reads a tensor from before its cut point")
        return self._new[node]

    def _recompute_size(self, node: fx.Node) -> fx.Node:
        """A symbolic size computed from the block's own input instead of an earlier tensor."""
        wanted, batch = node.meta["val"], self._entries[0].meta["val"].shape[0]
        if isinstance(wanted, torch.SymInt):
            multiple = wanted.node.expr / batch.node.expr
            if multiple.is_Integer:
                size = self._graph.call_function(torch.ops.aten.sym_size.int, (self._new[self._entries[0]], 0))
                return size if multiple == 1 else self._graph.call_function(operator.mul, (size, int(multiple)))
        copied = self._graph.node_copy(node, self._resolve)
        copied.meta = {}
        return copied

    def _get_state(self, name: str) -> fx.Node:
        tensor = self._body.states[name]
        member = name.removeprefix("p_").removeprefix("b_")
        if member not in self._root._parameters and member not in self._root._buffers:
            if isinstance(tensor, nn.Parameter):
                self._root.register_parameter(member, tensor)
            else:
                self._root.register_buffer(member, tensor)
        return self._graph.get_attr(member)

    def _member(self, path: str, module: nn.Module) -> str:
        name = path.replace(".", "_")
        if name not in self._root._modules:
            self._root.add_module(name, module)
        return name


def _is_wide_attention(node: fx.Node) -> bool:
    if node.target is not torch.ops.aten.scaled_dot_product_attention.default:
        return False
    query = node.args[0]
    assert isinstance(query, fx.Node)
    return bool(query.meta["val"].dim() != _ATTENTION_DIMENSIONS)


def _plain(layer: nn.Module) -> nn.Module:
    """The layer as an instance of torch's own class, with the same weights.

    A subclass may compute more in ``forward``, such as an activation, which the graph has as separate nodes.
    """
    own: type[nn.Module] = next(kind for kind in type(layer).__mro__ if kind.__module__.startswith("torch.nn."))
    if type(layer).forward is own.forward:
        return layer
    plain = copy.copy(layer)
    plain.__class__ = own
    plain._parameters, plain._buffers, plain._modules = dict(layer._parameters), dict(layer._buffers), {}
    return plain
