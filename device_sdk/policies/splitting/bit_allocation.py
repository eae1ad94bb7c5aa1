"""Bits of weights and activations under memory limits, by Lagrangian allocation (Auto-Split Eq. 8 and 9). Pure.

Shoham and Gersho 1988: on the lower convex hull of each item's (bytes, error), the steps with the least error added per
byte saved, over all items, are the allocations that some multiplier makes optimal. They are taken until the budget
holds; what then is left of the budget goes to single items.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from device_sdk.policies.splitting.layer_graph import LayerGraph, packed_size


def bit_allocation(
    sizes: Sequence[int], errors: Sequence[Mapping[int, float]], widths: Sequence[int], *, budget_bytes: float
) -> tuple[int, ...] | None:
    """Bits for each item of ``sizes`` values so that the sum of errors is small and bytes keep the budget (Eq. 8).

    None if even the smallest width exceeds it. An item without values gets 0 bits.
    """
    order = sorted(set(widths))
    items = [item for item, size in enumerate(sizes) if size]
    bits = [order[-1] if size else 0 for size in sizes]
    used = sum(packed_size(size, order[-1]) for size in sizes)
    steps = sorted(
        step for item in items for step in _hull_steps(item, sizes[item], errors[item], order)
    )  # within an item slopes grow downwards, so its steps come in order
    for _, item, lower in steps:
        if used <= budget_bytes:
            break
        used -= packed_size(sizes[item], bits[item]) - packed_size(sizes[item], lower)
        bits[item] = lower
    if used > budget_bytes:
        return None
    _spend(bits, items, order, errors, _Budget(sizes, bits, budget_bytes).fits)
    return tuple(bits)


class _Budget:
    """Whether one more raise of an item keeps the sum of bytes."""

    def __init__(self, sizes: Sequence[int], bits: Sequence[int], budget_bytes: float) -> None:
        self._sizes, self._bits, self._budget = sizes, bits, budget_bytes

    def fits(self, item: int, width: int) -> bool:
        used = sum(map(packed_size, self._sizes, self._bits))
        more = packed_size(self._sizes[item], width) - packed_size(self._sizes[item], self._bits[item])
        return used + more <= self._budget


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
    bits = [graph.input_bits, *([order[-1]] * position)]
    for index in range(1, position + 1):
        own = [tensor for tensor in graph.live(index) if tensor]
        steps = sorted(step for item in own for step in _hull_steps(item, graph.values(item), errors[item], order))
        for _, item, lower in steps:
            if graph.working_bytes(index, bits) <= budget_bytes:
                break
            bits[item] = min(bits[item], lower)
        if graph.working_bytes(index, bits) > budget_bytes:
            return None

    def fits(tensor: int, width: int) -> bool:
        raised = [*bits[:tensor], width, *bits[tensor + 1 :]]
        until = min(max(graph.last_use[tensor], tensor), position)
        return all(graph.working_bytes(index, raised) <= budget_bytes for index in range(tensor, until + 1))

    _spend(bits, range(1, position + 1), order, errors, fits)
    return tuple(bits[1:])


def _hull_steps(
    item: int, size: int, errors: Mapping[int, float], order: Sequence[int]
) -> list[tuple[float, int, int]]:
    """(error added per byte saved, item, width after it) along the lower convex hull, from the largest width down."""
    hull: list[tuple[int, float, int]] = []
    for width in reversed(order):
        point = (packed_size(size, width), errors.get(width, 0.0), width)
        if hull and point[0] == hull[-1][0]:
            continue  # fewer bits that save no byte
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) >= _slope(hull[-2], point):
            hull.pop()
        hull.append(point)
    return [(_slope(before, after), item, after[2]) for before, after in pairwise(hull)]


def _slope(before: tuple[int, float, int], after: tuple[int, float, int]) -> float:
    return (after[1] - before[1]) / (before[0] - after[0])


def _spend(
    bits: list[int],
    items: Sequence[int] | range,
    order: Sequence[int],
    errors: Sequence[Mapping[int, float]],
    fits: Callable[[int, int], bool],
) -> None:
    """Raise items to larger widths that lower the error and still fit, the largest gains first. Each at most once."""

    def change(item: int, width: int) -> float:
        return errors[item].get(width, 0.0) - errors[item].get(bits[item], 0.0)

    gains = sorted((change(item, width), item, width) for item in items for width in order if width > bits[item])
    raised = set[int]()
    for gain, item, width in gains:
        if gain < 0 and item not in raised and fits(item, width):
            bits[item] = width
            raised.add(item)
