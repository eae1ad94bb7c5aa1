"""Cut points of an exported graph, and joining cells into blocks (AdaptiveNet §4.1)."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence

import torch
from torch import fx

from packager.errors import TraceError
from packager.tracing.exported_graph import ExportedGraph, is_size, operator_name

# Anchors are the operators with the main computation of a block. The operators after an anchor belong to its cell as
# long as they are ones that inference engines fuse with it (AdaptiveNet §4.1, second principle).
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


LONG = 12  # anchors: the most in a residual or inception block
MOST_TENSORS = 4  # at one cut point


def cut_positions(body: ExportedGraph, *, fused: Collection[str] = FUSED, streams: bool = True) -> list[int]:
    """Indices of the nodes after which the model is cut, its end excluded.

    Between two cuts there is at least one anchor, and the operators in ``fused`` that follow it are not separated from
    it. Cut points have one live tensor, not counting taps. A stretch with more than ``LONG`` anchors between two cuts,
    as in parallel streams, is cut where two tensors are live; if a stretch still has twice as many, where three are,
    then four (docs/adr/0028-several-tensors.md). Without ``streams`` this is only done if the model has no other cut
    point. Taps are always cut points.

    Raises:
        TraceError: a tap is not a possible cut point.
    """
    live = live_tensors(body)
    taps = tap_positions(body)
    if lost := [body.nodes[index].name for index in taps if len(live.get(index, ())) != 1]:
        raise TraceError(
            f"the model cannot be cut at {lost[0]}, a feature that the head reads",
            hint="let the backbone return a feature that its next layer reads, such as the end of a stage",
        )
    anchors = [
        index
        for index, node in enumerate(body.nodes)
        if node not in body.constants and any(word in operator_name(node) for word in _ANCHORS)
    ]
    positions: list[int] = []
    for count in range(1, MOST_TENSORS + 1):
        allowed = [index for index, tensors in live.items() if len(tensors) == count]
        bounds = [-1, *positions, len(body.nodes) - 1]
        for start, end in itertools.pairwise(bounds):
            within = [anchor for anchor in anchors if start < anchor <= end]
            if count == 1 or not positions or (streams and len(within) > LONG * (count - 1)):
                found = _within(body, within, [k for k in allowed if start < k < end], taps, fused)
                positions = sorted({*positions, *found})
    return positions


def _within(
    body: ExportedGraph, anchors: Sequence[int], allowed: Sequence[int], taps: Sequence[int], fused: Collection[str]
) -> list[int]:
    """One of the ``allowed`` positions after each anchor but the last, as late as its fused operators extend."""
    positions: list[int] = []
    for anchor, following in itertools.pairwise(anchors):
        if tapped := [index for index in taps if anchor <= index < following]:
            positions += tapped
            continue
        candidates = [index for index in allowed if anchor <= index < following]
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
    """Indices of the backbone outputs that a head reads besides the last one, in order."""
    return sorted(body.nodes.index(tap) for tap in body.taps)


def live_tensors(body: ExportedGraph) -> dict[int, tuple[fx.Node, ...]]:
    """The live tensors after each node index, where there are at most ``MOST_TENSORS``.

    Each has the batch as its first axis. If there are several, none is the input or still modified in place. They are
    ordered by shape; a tensor that stays live keeps its position.
    """
    last_use: dict[fx.Node, int] = {body.output: len(body.nodes)}
    for index, node in enumerate(body.nodes):
        for source in body.tensor_inputs(node):
            last_use[source] = max(last_use.get(source, -1), index)
    live: set[fx.Node] = {body.input}
    found: dict[int, tuple[fx.Node, ...]] = {}
    for index, node in enumerate(body.nodes):
        if not is_size(node):
            live.add(node)
        live = {n for n in live if last_use.get(n, -1) > index and n not in body.constants}
        if len(live) > MOST_TENSORS or not all(_has_row_per_sample(n, body.input) for n in live):
            continue
        if live == {node} or (len(live) > 1 and all(_can_go_along(n, body) for n in live)):
            found[index] = tuple(live)
    return _in_order(body, found)


def _can_go_along(node: fx.Node, body: ExportedGraph) -> bool:
    """True if a tensor may be one of several at a cut point."""
    return node is not body.input and node not in body.changed and node.meta["val"].dtype == torch.float32


def _in_order(body: ExportedGraph, found: Mapping[int, tuple[fx.Node, ...]]) -> dict[int, tuple[fx.Node, ...]]:
    """Sorted by shape; among equal shapes a new tensor takes the position of the one that ended since the last cut."""
    order = {node: index for index, node in enumerate([body.input, *body.nodes])}
    ordered: dict[int, tuple[fx.Node, ...]] = {}
    before: tuple[fx.Node, ...] = ()
    for index, tensors in found.items():
        places: dict[tuple[int, ...], list[fx.Node | None]] = {}
        for node in before:
            places.setdefault(_extents(node), []).append(node if node in tensors else None)
        for node in sorted(set(tensors) - set(before), key=lambda one: order[one]):
            same = places.setdefault(_extents(node), [])
            if None in same:
                same[same.index(None)] = node
            else:
                same.append(node)
        before = tuple(node for shape in sorted(places, reverse=True) for node in places[shape] if node is not None)
        ordered[index] = before
    return ordered


def _extents(node: fx.Node) -> tuple[int, ...]:
    return tuple(node.meta["val"].shape[1:])


def _has_row_per_sample(node: fx.Node, entry: fx.Node) -> bool:
    """True if the first axis is the batch and all others are static; a reshape may have changed that."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.dim() == 0:
        return False
    batch, *rest = value.shape
    return str(batch) == str(entry.meta["val"].shape[0]) and all(isinstance(extent, int) for extent in rest)


def join_small(body: ExportedGraph, positions: Sequence[int], *, gamma: float) -> list[int]:
    """Bounds of the blocks: neighbouring cells are joined while they have at most gamma · P0 parameters (§4.1).

    The first and the last cell, stem and head, are not joined, since they are never replaced. Taps stay cut points.
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
    """Parameters and buffers of the cells between ``positions``; shared ones count at their first use."""
    counted: set[str] = set()
    sizes: list[int] = []
    for start, end in itertools.pairwise([-1, *positions, len(body.nodes) - 1]):
        names = {n.name for k in range(start + 1, end + 1) for n in body.nodes[k].all_input_nodes} & body.states.keys()
        sizes.append(sum(body.states[name].numel() for name in names - counted))
        counted |= names
    return sizes
