"""Where an exported graph can be cut, and how cells are joined into blocks (AdaptiveNet §4.1)."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

import torch
from torch import fx

from packager.errors import TraceError
from packager.tracing.exported_graph import ExportedGraph, is_size, operator_name

# an anchor does the computing that a block is made of; what follows it up to the next anchor belongs to it while it is
# one of the fused operators, which inference engines fuse with it (AdaptiveNet §4.1, second principle)
_ANCHORS = ("conv", "linear", "matmul", "bmm", "addmm", "mm", "scaled_dot_product_attention", "einsum")
FUSED = (
    "batch_norm",
    "relu",
    "relu_",
    "relu6",
    "hardtanh",
    "hardtanh_",
    "gelu",
    "silu",
    "silu_",
    "hardswish",
    "hardswish_",
    "hardsigmoid",
    "sigmoid",
    "tanh",
    "leaky_relu",
    "leaky_relu_",
    "elu",
    "mish",
    "prelu",
    "dropout",
    "dropout_",
    "add",
    "add_",
    "mul",
    "mul_",
    "max_pool2d",
)


def _is_anchor(node: fx.Node) -> bool:
    return any(word in operator_name(node) for word in _ANCHORS)


def cut_positions(body: ExportedGraph, *, fused: Collection[str] = FUSED) -> list[int]:
    """Indices of the nodes whose output is a cut point, the model's output left out.

    After node k exactly one tensor is live, taps that wait for a head left out; there is an anchor since the last cut
    and one to come, and the tail of the last anchor is complete: the operators called as in ``fused`` that follow it.
    Taps are cut points wherever they lie.

    Raises:
        TraceError: a tap lies where the model cannot be cut.
    """
    singles = _single_live_positions(body)
    taps = tap_positions(body)
    if lost := [body.nodes[index].name for index in taps if index not in singles]:
        raise TraceError(
            f"the model cannot be cut at {lost[0]}, a feature that the head reads",
            hint="let the backbone put out what its next layer reads, such as the end of a stage",
        )
    anchors = [index for index, node in enumerate(body.nodes) if _is_anchor(node)]
    positions: list[int] = []
    for anchor, following in itertools.pairwise(anchors):
        if tapped := [index for index in taps if anchor <= index < following]:
            positions += tapped
            continue
        candidates = [index for index in singles if anchor <= index < following]
        if not candidates:
            continue
        best = candidates[0]
        for index in candidates[1:]:
            if any(operator_name(body.nodes[k]) not in fused for k in range(best + 1, index + 1)):
                break
            best = index
        positions.append(best)
    return positions


def tap_positions(body: ExportedGraph) -> list[int]:
    """Indices of the nodes that a head reads besides the last one, in order."""
    return sorted(body.nodes.index(tap) for tap in body.taps)


def _single_live_positions(body: ExportedGraph) -> list[int]:
    """Nodes after which their own output, one row per sample, is the only live tensor."""
    last_use: dict[fx.Node, int] = {body.output: len(body.nodes)}
    for index, node in enumerate(body.nodes):
        for source in body.tensor_inputs(node):
            last_use[source] = max(last_use.get(source, -1), index)
    live: set[fx.Node] = {body.input}
    singles: list[int] = []
    for index, node in enumerate(body.nodes):
        if not is_size(node):
            live.add(node)
        live = {n for n in live if last_use.get(n, -1) > index}
        if live == {node} and _has_row_per_sample(node, body.input):
            singles.append(index)
    return singles


def _has_row_per_sample(node: fx.Node, entry: fx.Node) -> bool:
    """Whether the first axis is the batch and the others are fixed: a reshape can have moved samples elsewhere."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.dim() == 0:
        return False
    batch, *rest = value.shape
    return str(batch) == str(entry.meta["val"].shape[0]) and all(isinstance(extent, int) for extent in rest)


def join_small(body: ExportedGraph, positions: Sequence[int], *, gamma: float) -> list[int]:
    """Bounds of the blocks: neighbours are joined while together they have at most gamma · P0 parameters (§4.1).

    The first and the last cell stay by themselves: as stem and head they are never merged, and what was joined to them
    could not be either. Taps stay cut points.
    """
    sizes = _cell_parameters(body, positions)
    limit = gamma * sum(sizes)
    bounds, current = [-1], sizes[0]
    taps = tap_positions(body)
    for cell, (position, size) in enumerate(zip(positions, sizes[1:], strict=True), start=1):
        if cell in (1, len(positions)) or position in taps or current + size > limit:
            bounds.append(position)
            current = 0
        current += size
    return [*bounds, len(body.nodes) - 1]


def _cell_parameters(body: ExportedGraph, positions: Sequence[int]) -> list[int]:
    """Parameters and buffers of the cells between ``positions``; shared ones count where they are first used."""
    counted: set[str] = set()
    sizes: list[int] = []
    for start, end in itertools.pairwise([-1, *positions, len(body.nodes) - 1]):
        names = {n.name for k in range(start + 1, end + 1) for n in body.nodes[k].all_input_nodes} & body.states.keys()
        sizes.append(sum(body.states[name].numel() for name in names - counted))
        counted |= names
    return sizes
