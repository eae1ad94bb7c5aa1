"""Bits of weights under a memory limit, by Lagrangian allocation (Auto-Split Eq. 8). Pure.

Shoham and Gersho 1988: on the lower convex hull of each item's (bytes, error), the steps with the least error added per
byte saved, over all items, are the allocations that some multiplier makes optimal. They are taken until the budget
holds; the rest of the budget goes to single items.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

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
