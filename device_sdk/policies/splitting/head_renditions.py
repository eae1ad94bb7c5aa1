"""Renditions of the device's part: bits are allocated to blocks within memory and error."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from device_sdk.supernet.cost import CostModel
from device_sdk.supernet.plan import Edge, Subnet
from device_sdk.supernet.supernet import Supernet

Option = tuple[int, float]  # bytes and error of one choice for an item


def allocation(options: Sequence[Sequence[Option]], *, budget_bytes: float) -> tuple[int, ...] | None:
    """The place of one of each item's ``options`` so that the sum of errors is small and bytes keep the budget (Eq. 8).

    Of the Lagrangian allocation and of the same place everywhere, with what each leaves of the budget spent, that of
    least error: between two multipliers the first can be worse than the second. None if even the fewest bytes exceed
    the budget. Of options with the same bytes the last is preferred.
    """

    def bytes_of(chosen: Sequence[int]) -> int:
        return sum(own[place][0] for own, place in zip(options, chosen, strict=True))

    def error_of(chosen: list[int]) -> float:
        return sum(own[place][1] for own, place in zip(options, chosen, strict=True))

    lagrangian = _lagrangian(options, budget_bytes)
    if lagrangian is None:
        return None
    places = range(max(map(len, options), default=0))
    same: list[list[int]] = [[min(place, len(own) - 1) for own in options] for place in places]
    found: list[list[int]] = [lagrangian, *(chosen for chosen in same if bytes_of(chosen) <= budget_bytes)]
    for chosen in found:
        left = budget_bytes - bytes_of(chosen)
        spend(chosen, range(len(options)), options, _Room(options, chosen, left).take)
    best = min(found, key=error_of)
    return tuple(best)


def _lagrangian(options: Sequence[Sequence[Option]], budget_bytes: float) -> list[int] | None:
    chosen = [max(range(len(own)), key=lambda place: (own[place][0], place)) for own in options]
    used = sum(own[place][0] for own, place in zip(options, chosen, strict=True))
    steps = sorted(step for item, own in enumerate(options) for step in hull_steps(item, own))
    for _, item, lower in steps:  # within an item slopes grow downwards, so its steps come in order
        if used <= budget_bytes:
            break
        used -= options[item][chosen[item]][0] - options[item][lower][0]
        chosen[item] = lower
    return chosen if used <= budget_bytes else None


class _Room:
    """The bytes that are left of a budget, taken by moves of single items."""

    def __init__(self, options: Sequence[Sequence[Option]], chosen: Sequence[int], left: float) -> None:
        self._options, self._chosen, self._left = options, chosen, left

    def take(self, item: int, place: int) -> bool:
        """Take the bytes that the item's option at ``place`` needs beyond its present one; False if they do not fit."""
        more = self._options[item][place][0] - self._options[item][self._chosen[item]][0]
        if more > self._left:
            return False
        self._left -= more
        return True


def hull_steps(item: int, options: Sequence[Option]) -> list[tuple[float, int, int]]:
    """(error added per byte saved, item, place after it) along the lower convex hull, from the most bytes down."""
    hull: list[tuple[int, float, int]] = []
    for place in sorted(range(len(options)), key=lambda place: (options[place][0], place), reverse=True):
        point = (*options[place], place)
        if hull and point[0] == hull[-1][0]:
            continue  # a choice that saves no byte
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) >= _slope(hull[-2], point):
            hull.pop()
        hull.append(point)
    return [(_slope(before, after), item, after[2]) for before, after in pairwise(hull)]


def _slope(before: tuple[int, float, int], after: tuple[int, float, int]) -> float:
    return (after[1] - before[1]) / (before[0] - after[0])


def spend(
    chosen: list[int],
    items: range,
    options: Sequence[Sequence[Option]],
    fits: Callable[[int, int], bool],
) -> None:
    """Move items to choices that lower the error and still fit, the largest gains first. Each at most once."""

    def change(item: int, place: int) -> float:
        return options[item][place][1] - options[item][chosen[item]][1]

    gains = sorted((change(item, place), item, place) for item in items for place in range(len(options[item])))
    raised = set[int]()
    for gain, item, place in gains:
        if gain < 0 and item not in raised and fits(item, place):
            chosen[item] = place
            raised.add(item)


WIDTH = 128  # partial choices per block
_WEIGHTINGS = tuple((error, memory) for error in (0.0, 0.1, 0.3, 1.0, 3.0) for memory in (0.0, 0.3))
_MOST_HEADS = 16  # of one position, spread over the latencies

Columns = npt.NDArray[np.float64]


@dataclass(frozen=True)
class BlockChoice:
    """A block in one rendition. ``timed``: the edge whose measured latency counts.

    A rendition that the runtime expands when it loads it computes what the block's first rendition computes, so their
    difference would be noise. ``stored_bytes`` of its weights in the bundle, ``resident_bytes`` once loaded.
    """

    edge: Edge
    timed: Edge
    stored_bytes: int
    resident_bytes: int
    working_bytes: int
    error: float


@dataclass(frozen=True)
class Head:
    """The blocks before a split. ``device_bytes``: weights once loaded and the largest working set."""

    edges: tuple[Edge, ...] = ()
    device_ms: float = 0.0
    stored_bytes: int = 0
    device_bytes: int = 0
    error: float = 0.0

    def fits(self, memory_bytes: float, stored_bytes: float) -> bool:
        """True if the head keeps both limits."""
        return self.device_bytes <= memory_bytes and self.stored_bytes <= stored_bytes


@dataclass(frozen=True)
class Heads:
    """Heads of the first n blocks by n, the fastest first. ``optimal``: nothing was left out."""

    by_count: tuple[tuple[Head, ...], ...]
    optimal: bool


def block_choices(
    supernet: Supernet, subnet: Subnet, device: CostModel, stored_bytes: Mapping[Edge, int]
) -> list[list[BlockChoice]]:
    """For each block of ``subnet`` its renditions for the same runtime that were measured, that of the subnet first."""
    found = []
    for own in subnet.edges:
        runtime, first = supernet.rendition(own).runtime, supernet.block(own.block).renditions[0]
        edges = [Edge(own.block, one.name, own.input_size) for one in supernet.block(own.block).renditions]
        original = Edge(own.block, first.name, own.input_size)
        choices = []
        for edge in sorted(edges, key=lambda edge: edge != own):
            if edge not in device.edge_costs or edge not in stored_bytes:
                continue
            rendition, cost = supernet.rendition(edge), device.edge_costs[edge]
            if rendition.runtime != runtime:
                continue
            expanded = rendition.loaded_bytes is not None and original in device.edge_costs
            choices.append(
                BlockChoice(
                    edge,
                    original if expanded else edge,
                    stored_bytes[edge],
                    cost.resident_bytes,
                    cost.working_bytes,
                    rendition.error or 0.0,
                )
            )
        found.append(choices)
    return found


def own_head(choices: Sequence[Sequence[BlockChoice]], device: CostModel, count: int) -> Head:
    """The first ``count`` blocks as the subnet has them."""
    return head_of([own[0] for own in choices[:count]], device, _timed(choices))


def uniform_heads(choices: Sequence[Sequence[BlockChoice]], device: CostModel) -> list[Head]:
    """All blocks in one rendition, where they have it, else as the subnet has them; of each that computes by itself."""
    names = dict.fromkeys(one.edge.rendition for own in choices for one in own if one.timed == one.edge)
    found = []
    for name in names:
        blocks = [next((one for one in own if one.edge.rendition == name), own[0]) for own in choices]
        found.append(head_of(blocks, device, _timed(choices)))
    return found


def head_of(blocks: Sequence[BlockChoice], device: CostModel, whole: Sequence[Edge]) -> Head:
    """The head of these blocks, with their costs together as a part of a ``whole`` path."""
    if not blocks:
        return Head()
    return Head(
        tuple(one.edge for one in blocks),
        device.part_latency_ms([one.timed for one in blocks], whole),
        sum(one.stored_bytes for one in blocks),
        sum(one.resident_bytes for one in blocks) + max(one.working_bytes for one in blocks),
        sum(one.error for one in blocks),
    )


def _timed(choices: Sequence[Sequence[BlockChoice]]) -> list[Edge]:
    """The edges whose measured latencies count for the subnet as it is."""
    return [own[0].timed for own in choices]


def best_heads(
    choices: Sequence[Sequence[BlockChoice]],
    device: CostModel,
    *,
    memory_bytes: float = math.inf,
    stored_bytes: float = math.inf,
    width: int = WIDTH,
) -> Heads:
    """For each number of blocks the heads within the limits that no other matches or beats in latency and error.

    ``memory_bytes`` bounds weights once loaded and the largest working set, ``stored_bytes`` the weights as stored.
    """
    limits = (memory_bytes, stored_bytes)
    labels, optimal, whole = _Labels.none(), True, _timed(choices)
    by_count: list[tuple[Head, ...]] = [(Head(),)]
    for count, options in enumerate(choices, start=1):
        labels = labels.extended(options, choices[count - 2] if count > 1 else (), device).within(*limits)
        fronts = labels.take(_undominated(np.stack([labels.ms, labels.error])))
        found = [head_of(blocks, device, whole) for blocks in fronts.blocks(choices)]
        if not optimal:
            found += [head_of(blocks, device, whole) for blocks in _allocated(choices[:count], *limits)]
        by_count.append(_front([head for head in found if head.fits(*limits)]))
        labels = labels.undominated([one.timed.rendition for one in options], *limits)
        optimal &= len(labels.ms) <= width
        labels = labels.thinned(width)
    return Heads(tuple(by_count), optimal)


@dataclass(frozen=True)
class _Labels:
    """Partial choices: the place of each block's choice [labels, blocks], and sums."""

    places: npt.NDArray[np.int64]
    ms: Columns
    stored: Columns
    resident: Columns
    working: Columns
    error: Columns

    @classmethod
    def none(cls) -> _Labels:
        return cls(np.zeros((1, 0), dtype=np.int64), *(np.zeros(1) for _ in range(5)))

    def take(self, rows: npt.NDArray[np.bool_]) -> _Labels:
        columns = (self.ms, self.stored, self.resident, self.working, self.error)
        return _Labels(self.places[rows], *(column[rows] for column in columns))

    def extended(self, options: Sequence[BlockChoice], before: Sequence[BlockChoice], device: CostModel) -> _Labels:
        """Every label with every one of ``options``, behind the choices ``before`` of the last block."""
        rows = np.repeat(np.arange(len(self.ms)), len(options))
        place = np.tile(np.arange(len(options)), len(self.ms))
        own_ms = np.array([device.edge_latency_ms(one.timed) for one in options])[place]
        if before:
            change = np.array([[device.change_ms(a.timed, b.timed) for b in options] for a in before])
            own_ms = own_ms + change[self.places[rows, -1], place]

        def of(name: str) -> Columns:
            return np.array([float(getattr(one, name)) for one in options])[place]

        return _Labels(
            np.column_stack([self.places[rows], place]),
            self.ms[rows] + own_ms,
            self.stored[rows] + of("stored_bytes"),
            self.resident[rows] + of("resident_bytes"),
            np.maximum(self.working[rows], of("working_bytes")),
            self.error[rows] + of("error"),
        )

    def within(self, memory_bytes: float, stored_bytes: float) -> _Labels:
        """The labels that keep the limits; the others never will, since bytes only grow."""
        return self.take((self.resident + self.working <= memory_bytes) & (self.stored <= stored_bytes))

    def blocks(self, choices: Sequence[Sequence[BlockChoice]]) -> Iterator[list[BlockChoice]]:
        for places in self.places.tolist():
            yield [own[place] for own, place in zip(choices, places, strict=False)]

    def undominated(self, renditions: Sequence[str], memory_bytes: float, stored_bytes: float) -> _Labels:
        """Without the labels that another with the same last computation matches or beats in all that still counts."""
        counted = [self.ms, self.error]
        counted += [self.stored] if math.isfinite(stored_bytes) else []
        counted += [self.resident, self.working] if math.isfinite(memory_bytes) else []
        columns = np.stack(counted)
        last = np.array([renditions.index(renditions[place]) for place in self.places[:, -1].tolist()], dtype=np.int64)
        kept = np.zeros(len(self.ms), dtype=bool)
        for computation in set(last.tolist()):
            rows = np.flatnonzero(last == computation)
            kept[rows[_undominated(columns[:, rows])]] = True
        return self.take(kept)

    def thinned(self, width: int) -> _Labels:
        if len(self.ms) <= width:
            return self
        return self.take(best_by_weightings(self.ms, self.error, self.resident + self.working + self.stored, width))


def _undominated(columns: Columns) -> npt.NDArray[np.bool_]:
    """Mask of the points [criteria, count] that no other matches or beats in every criterion; of equals the first."""
    order = np.lexsort(columns[::-1])
    kept: list[int] = []
    for place in order.tolist():  # what dominates a point comes before it
        if not kept or not (columns[:, kept] <= columns[:, place, None]).all(axis=0).any():
            kept.append(place)
    mask = np.zeros(columns.shape[1], dtype=bool)
    mask[kept] = True
    return mask


def _allocated(
    choices: Sequence[Sequence[BlockChoice]], memory_bytes: float, stored_bytes: float
) -> Iterator[list[BlockChoice]]:
    """Lagrangian allocations: for the bytes that each rendition would take everywhere, and for the limits."""
    for name, limit in (("stored_bytes", stored_bytes), ("resident_bytes", memory_bytes)):
        options = [[(getattr(one, name), one.error) for one in own] for own in choices]
        budgets = {sum(own[min(place, len(own) - 1)][0] for own in options) for place in range(max(map(len, options)))}
        for budget in sorted({float(budget) for budget in budgets} | ({limit} if math.isfinite(limit) else set())):
            found = allocation(options, budget_bytes=budget)
            if found is not None:
                yield [own[place] for own, place in zip(choices, found, strict=True)]


def _front(heads: Sequence[Head]) -> tuple[Head, ...]:
    """The heads that none matches or beats in latency and error, at most ``_MOST_HEADS`` of them, the fastest first."""
    if not heads:
        return ()
    kept = _undominated(np.array([[head.device_ms, head.error] for head in heads]).T)
    front = sorted(
        (head for head, keep in zip(heads, kept.tolist(), strict=True) if keep), key=lambda head: head.device_ms
    )
    places = np.unique(np.linspace(0, len(front) - 1, min(len(front), _MOST_HEADS)).round().astype(int))
    return tuple(front[place] for place in places.tolist())


def best_by_weightings(ms: Columns, error: Columns, memory: Columns, width: int) -> npt.NDArray[np.bool_]:
    """At most ``width`` of partial choices: for several weightings of error and memory against latency, the best."""
    ms, error, memory = ((one - one.min()) / max(float(np.ptp(one)), 1e-12) for one in (ms, error, memory))
    kept = np.zeros(len(ms), dtype=bool)
    for error_weight, memory_weight in _WEIGHTINGS:
        score = ms + error_weight * error + memory_weight * memory
        kept[np.argpartition(score, width // len(_WEIGHTINGS))[: width // len(_WEIGHTINGS)]] = True
    return kept
