"""Bits of a layer graph's weights and activations under memory limits (Auto-Split Eq. 8 and 9). Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.auto_split.layer_graph import LayerGraph, packed_size
from device_sdk.policies.splitting.head_renditions import Option, allocation, hull_steps, spend


def bit_allocation(
    sizes: Sequence[int], errors: Sequence[Mapping[int, float]], widths: Sequence[int], *, budget_bytes: float
) -> tuple[int, ...] | None:
    """Bits for each item of ``sizes`` values: the same with a choice of ``widths``.

    An item without values gets 0 bits.
    """
    order = sorted(set(widths))
    items = [item for item, size in enumerate(sizes) if size]
    found = allocation([_options(sizes[item], errors[item], order) for item in items], budget_bytes=budget_bytes)
    if found is None:
        return None
    bits = dict(zip(items, (order[place] for place in found), strict=True))
    return tuple(bits.get(item, 0) for item in range(len(sizes)))


def activation_allocation(
    graph: LayerGraph,
    position: int,
    errors: Sequence[Mapping[int, float]],
    widths: Sequence[int],
    *,
    budget_bytes: float,
) -> tuple[int, ...] | None:
    """Bits for tensors 1 to ``position`` so that no layer's working set exceeds the budget (Eq. 9); None if impossible.

    ``errors`` by tensor, the network's input first. Every working set that is too large is reduced by the Lagrangian
    steps of its own tensors; then bits that fit everywhere are given back.
    """
    order = sorted(set(widths))
    options = [_options(graph.values(tensor), errors[tensor], order) for tensor in range(position + 1)]
    chosen = [len(order) - 1] * (position + 1)  # places in ``order``, by tensor; the input's is not used

    def working_bytes(index: int, places: Sequence[int]) -> int:
        return graph.working_bytes(index, [graph.input_bits, *(order[place] for place in places[1:])])

    for index in range(1, position + 1):
        own = [tensor for tensor in graph.live(index) if tensor]
        steps = sorted(step for item in own for step in hull_steps(item, options[item]))
        for _, item, lower in steps:
            if working_bytes(index, chosen) <= budget_bytes:
                break
            chosen[item] = min(chosen[item], lower)
        if working_bytes(index, chosen) > budget_bytes:
            return None

    def fits(tensor: int, place: int) -> bool:
        raised = [*chosen[:tensor], place, *chosen[tensor + 1 :]]
        until = min(max(graph.last_use[tensor], tensor), position)
        return all(working_bytes(index, raised) <= budget_bytes for index in range(tensor, until + 1))

    spend(chosen, range(1, position + 1), options, fits)
    return tuple(order[place] for place in chosen[1:])


def _options(size: int, errors: Mapping[int, float], order: Sequence[int]) -> list[Option]:
    return [(packed_size(size, width), errors.get(width, 0.0)) for width in order]
