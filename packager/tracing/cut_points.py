"""Where an exported graph can be cut, and how cells are joined into blocks (AdaptiveNet §4.1)."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence

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


LONG = 12  # anchors: no residual or inception block has more
MOST_TENSORS = 4  # at one cut point


def _is_anchor(node: fx.Node) -> bool:
    return any(word in operator_name(node) for word in _ANCHORS)


def cut_positions(body: ExportedGraph, *, fused: Collection[str] = FUSED, streams: bool = True) -> list[int]:
    """Indices of the nodes behind which the model is cut, its end left out.

    There is an anchor since the last cut and one to come, and the tail of the last anchor is complete: the operators
    called as in ``fused`` that follow it. Cut points have one live tensor, taps that wait for a head left out. Only
    where more than ``LONG`` anchors lie between two of them, as in parallel streams, is that stretch cut where two
    tensors are live, then what still has twice as many where three are, then four (docs/adr/0028-several-tensors.md).
    Without ``streams`` only a model that cannot be cut elsewhere is cut where several are live. Taps are cut points
    wherever they lie.

    Raises:
        TraceError: a tap lies where the model cannot be cut.
    """
    live = live_tensors(body)
    taps = tap_positions(body)
    if lost := [body.nodes[index].name for index in taps if len(live.get(index, ())) != 1]:
        raise TraceError(
            f"the model cannot be cut at {lost[0]}, a feature that the head reads",
            hint="let the backbone put out what its next layer reads, such as the end of a stage",
        )
    anchors = [index for index, node in enumerate(body.nodes) if _is_anchor(node) and node not in body.constants]
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
    """Of the ``allowed`` positions one behind each anchor but the last, as late as its fused operators reach."""
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
    """Indices of the nodes that a head reads besides the last one, in order."""
    return sorted(body.nodes.index(tap) for tap in body.taps)


def live_tensors(body: ExportedGraph) -> dict[int, tuple[fx.Node, ...]]:
    """By index, the tensors that are live after that node, where up to ``MOST_TENSORS`` are: what a cut there carries.

    Each has one row per sample. Of several tensors none is the input or one that is still filled part by part. Streams
    keep their order: by shape, and what goes through from one cut to the next stays in its place.
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
    """Whether a tensor can be one of several at a cut point."""
    return node is not body.input and node not in body.changed and node.meta["val"].dtype == torch.float32


def _in_order(body: ExportedGraph, found: Mapping[int, tuple[fx.Node, ...]]) -> dict[int, tuple[fx.Node, ...]]:
    """Sorted by shape; among equal shapes a new tensor takes the place of the one that has gone since the last cut."""
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
