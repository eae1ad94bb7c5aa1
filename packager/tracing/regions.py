"""Regions of an exported graph: subgraphs for computations under a context manager."""

from __future__ import annotations

import operator

import torch
from torch import fx

_GRADIENTS = torch.ops.higher_order.wrap_with_set_grad_enabled
_AUTOCAST = torch.ops.higher_order.wrap_with_autocast
_GRADIENTS_ARGS, _AUTOCAST_ARGS = 1, 4  # number of arguments before the region's graph
_AUTOCAST_ENABLED = 2


def inline_regions(program: torch.export.ExportedProgram) -> fx.Graph:
    """The graph of ``program`` with its regions inlined, so that it can be cut inside them.

    Linear attention is often computed under ``autocast(enabled=False)``. In evaluation such a region, or one under
    ``no_grad``, equals its operators. A region that enables autocast is kept.
    """
    graph, members = program.graph, dict(program.graph_module.named_modules())
    for node in list(graph.nodes):
        position = _region_position(node)
        if position is None:
            continue
        region = node.args[position]
        assert isinstance(region, fx.Node)
        _inline(node, members[str(region.target)], node.args[position + 1 :])
        graph.erase_node(node)
    return graph


def _region_position(node: fx.Node) -> int | None:
    """The index of the argument of ``node`` that is a region's graph; None if it is no region or must be kept."""
    if node.target is _GRADIENTS:
        return _GRADIENTS_ARGS
    if node.target is _AUTOCAST and not node.args[_AUTOCAST_ENABLED]:
        return _AUTOCAST_ARGS
    return None


def _inline(call: fx.Node, region: torch.nn.Module, given: tuple[fx.node.Argument, ...]) -> None:
    """Insert the operators of ``region`` before ``call``, and redirect readers of its results."""
    assert isinstance(region, fx.GraphModule)
    placed: dict[fx.Node, fx.node.Argument] = {}
    inputs = iter(given)
    for node in region.graph.nodes:
        if node.op == "placeholder":
            placed[node] = next(inputs)
        elif node.op == "output":
            _hand_out(call, [placed[result] for result in node.args[0]])
        else:
            with call.graph.inserting_before(call):
                placed[node] = call.graph.node_copy(node, lambda one: placed[one])


def _hand_out(call: fx.Node, results: list[fx.node.Argument]) -> None:
    for reader in list(call.users):
        assert reader.target is operator.getitem
        result = results[reader.args[1]]
        assert isinstance(result, fx.Node)
        reader.replace_all_uses_with(result)
        call.graph.erase_node(reader)
