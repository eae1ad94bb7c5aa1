"""One numbering of the cut points of all members, in which every block leads to a higher number."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from packager.joining.networks import Place


@dataclass(frozen=True)
class Numbering:
    """``places``: the number of each member's cut points, the input 0 and the output the highest of all."""

    places: tuple[Mapping[int, int], ...]

    @property
    def output(self) -> int:
        """The number of the last cut point."""
        return max(self.places[0].values())

    def of(self, place: Place) -> int:
        """The number of a member's cut point."""
        return self.places[place[0]][place[1]]


def numbered(depths: Sequence[Sequence[float]], edges: Iterable[tuple[Place, Place]] = ()) -> Numbering:
    """Number the cut points in topological order, of those that may come next the shallowest first.

    Args:
        depths: of each member, the share of its work that is done at each of its cut points, increasing from 0.
        edges: between inner cut points of different members, as ``acyclic`` returns them.
    """
    lasts = [len(own) - 1 for own in depths]
    after: dict[Place, list[Place]] = {}
    waiting: dict[Place, int] = {(member, cut): 0 for member, last in enumerate(lasts) for cut in range(1, last)}
    chains = [((member, cut), (member, cut + 1)) for member, last in enumerate(lasts) for cut in range(1, last - 1)]
    for start, end in [*chains, *edges]:
        after.setdefault(start, []).append(end)
        waiting[end] += 1
    ready = [(depths[member][cut], member, cut) for (member, cut), count in waiting.items() if not count]
    heapq.heapify(ready)
    places: list[dict[int, int]] = [{0: 0} for _ in depths]
    number = 0
    while ready:
        _, member, cut = heapq.heappop(ready)
        number += 1
        places[member][cut] = number
        for following in after.get((member, cut), ()):
            waiting[following] -= 1
            if not waiting[following]:
                heapq.heappush(ready, (depths[following[0]][following[1]], *following))
    for own, last in zip(places, lasts, strict=True):
        own[last] = number + 1
    return Numbering(tuple(places))


def acyclic(depths: Sequence[Sequence[float]], edges: Sequence[tuple[Place, Place]]) -> tuple[tuple[Place, Place], ...]:
    """The ``edges``, given in order of preference, that together leave the graph without a cycle."""
    kept: list[tuple[Place, Place]] = []
    for start, end in edges:
        if not _reaches(end, start, depths, kept):
            kept.append((start, end))
    return tuple(kept)


def _reaches(
    start: Place, goal: Place, depths: Sequence[Sequence[float]], edges: Sequence[tuple[Place, Place]]
) -> bool:
    """True if a path along members and ``edges`` leads from ``start`` to ``goal``; the output ends all paths."""
    seen, waiting = {start}, [start]
    while waiting:
        member, cut = waiting.pop()
        if (member, cut) == goal:
            return True
        following = [end for begin, end in edges if begin == (member, cut)]
        following += [(member, cut + 1)] if cut + 1 < len(depths[member]) - 1 else []
        waiting += [place for place in following if place not in seen]
        seen.update(following)
    return False
