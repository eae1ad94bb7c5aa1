"""Finds added blocks on or near the Pareto front of error against MACs.

A path's error is approximated by the sum of its blocks' errors (the squared distance of the network's answers from the
teacher's with that block alone replaced), which is exact for independent perturbations. MACs are discretised, so the
least error at every cost follows from one pass of dynamic programming over the chain.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

STEPS = 200  # of the original path's MACs
_Errors = npt.NDArray[np.float64]  # [positions, STEPS + 1]: the least error by MACs


@dataclass(frozen=True)
class Choice:
    """A block on the chain of cut points, with its MACs and its error."""

    id: str
    start: int
    end: int
    macs: int
    error: float
    original: bool = False


def off_front(choices: Sequence[Choice], *, judged: Collection[str], slack: float, worst: float) -> dict[str, str]:
    """The blocks in ``judged`` that are far from the front at every cost, with the reason.

    A block is kept if, at some cost, the least error of paths through it is at most 1 + ``slack`` times the least error
    of all paths of that cost, and not above ``worst``, beyond which answers are useless.
    """
    found = {}
    for name in judged:
        over, without = _with_and_without(name, choices)
        if not ((over <= (1 + slack) * without) & (over <= worst)).any():
            found[name] = _reason(over, without)
    return found


def of_no_use(choices: Sequence[Choice], *, judged: Sequence[str], margin: float, worst: float) -> dict[str, str]:
    """The blocks in ``judged`` whose removal does not worsen the front, with the reason.

    Blocks are removed greedily, the one with the smallest improvement first; the others are then judged again without
    it. A block is kept if at some cost the least error without it is larger by a factor of 1 + ``margin``.
    """
    left = list(choices)
    order = sorted(judged, key=lambda name: _improvement(name, left, worst)[0])
    found = {}
    for name in order:
        improvement, reason = _improvement(name, left, worst)
        if improvement < margin:
            found[name] = reason
            left = [choice for choice in left if choice.id != name]
    return found


def _improvement(name: str, choices: Sequence[Choice], worst: float) -> tuple[float, str]:
    """The largest relative reduction of the error by a block at any cost, and a description of it."""
    over, without = _with_and_without(name, choices)
    usable = over <= worst
    if not usable.any():
        return 0.0, _reason(over, without)
    with np.errstate(invalid="ignore"):
        gains = np.where(np.isinf(without), 1.0, 1.0 - over / np.maximum(without, 1e-12))
    return float(gains[usable].max()), _reason(over, without)


def _with_and_without(name: str, choices: Sequence[Choice]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """By steps of MACs: the least error of paths through a block, and of paths without it."""
    whole = sum(choice.macs for choice in choices if choice.original) or 1
    steps = {choice.id: round(STEPS * choice.macs / whole) for choice in choices}
    block = next(choice for choice in choices if choice.id == name)
    others = [other for other in choices if other.id != name]
    ahead, behind = _least(others, steps), _least(others, steps, backwards=True)
    over = _joined(ahead[block.start], behind[block.end], steps[name]) + block.error
    return over, np.minimum.accumulate(behind[0])


def _reason(over: npt.NDArray[np.float64], without: npt.NDArray[np.float64]) -> str:
    """A description of the cost at which a block is nearest to the front."""
    reached = np.flatnonzero(np.isfinite(over) & np.isfinite(without))
    if not len(reached):
        return "no path through it is cheap enough"
    nearest = reached[np.argmin(over[reached] - without[reached])]
    return f"{over[nearest]:.2g} against {without[nearest]:.2g}"


def _least(choices: Sequence[Choice], steps: Mapping[str, int], *, backwards: bool = False) -> _Errors:
    """The least error by steps of MACs from the input to each cut point, or ``backwards`` from each to the output."""
    last = max(choice.end for choice in choices)
    least = np.full((last + 1, STEPS + 1), np.inf)
    least[last if backwards else 0, 0] = 0.0
    ordered = sorted(choices, key=lambda choice: -choice.end if backwards else choice.start)
    for choice in ordered:
        known, reached = (choice.end, choice.start) if backwards else (choice.start, choice.end)
        cost = steps[choice.id]
        moved = np.full(STEPS + 1, np.inf)
        if cost <= STEPS:
            moved[cost:] = least[known, : STEPS + 1 - cost] + choice.error
        least[reached] = np.minimum(least[reached], moved)
    return least


def _joined(ahead: npt.NDArray[np.float64], behind: npt.NDArray[np.float64], cost: int) -> npt.NDArray[np.float64]:
    """The (min, +) convolution of both, shifted by ``cost`` steps."""
    joined = np.full(STEPS + 1, np.inf)
    for first in np.flatnonzero(np.isfinite(ahead)):
        begin = first + cost
        if begin <= STEPS:
            joined[begin:] = np.minimum(joined[begin:], ahead[first] + behind[: STEPS + 1 - begin])
    return joined
