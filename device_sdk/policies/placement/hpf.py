"""Placement by rules: MEEdge's HPF, and greedily."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log

from device_sdk.policies.placement.candidates import ExitCandidate
from device_sdk.policies.placement.problem import Choice, PlacementProblem
from device_sdk.random_source import SplitMix64


def greedy_choice(problem: PlacementProblem) -> Choice:
    """At most one exit at a cut point. Without a memory limit, bytes do not count. Of equal gains the first wins."""
    left, kept = list(problem.candidates), list[ExitCandidate]()
    room, best = problem.memory_bytes, 0.0
    while True:
        taken = {one.position for one in kept}
        left = [one for one in left if one.memory_bytes <= room and one.position not in taken]
        added = [problem.value([*kept, one]) - best for one in left]
        gains = [
            gain / max(one.memory_bytes, 1) if problem.per_byte else gain for gain, one in zip(added, left, strict=True)
        ]
        if not gains or max(gains) <= 0:
            return Choice(tuple(kept))
        chosen = left[gains.index(max(gains))]
        kept.append(chosen)
        room -= chosen.memory_bytes
        best = problem.value(kept)


_SAMPLES = 30  # random combinations behind a Monte Carlo score
_SEED = 0

Order = Callable[[PlacementProblem], list[ExitCandidate]]


def place_by_priority(problem: PlacementProblem, score: str = "m7") -> Choice:
    """The best choice that the search visits until the problem is late, with one of ``SCORES``.

    ``m5`` is the greedy choice itself, without a search. Never proven optimal: the search enters only nodes that
    improve on their parent, so a set whose every order passes through a worse one is not visited.
    """
    if score == "m5":
        return greedy_choice(problem)
    return Choice(_depth_first(problem, SCORES[score](problem)))


def _depth_first(problem: PlacementProblem, order: Sequence[ExitCandidate]) -> tuple[ExitCandidate, ...]:
    """Alg. 2: children are later candidates in ``order``, of a free cut point, that fit and improve the expectation."""
    best: tuple[float, tuple[ExitCandidate, ...]] = (0.0, ())
    stack: list[tuple[tuple[ExitCandidate, ...], float, int, int]] = [((), 0.0, problem.memory_bytes, 0)]
    while stack and not problem.late():
        kept, value, room, number = stack.pop()
        if number == len(order):
            continue
        stack.append((kept, value, room, number + 1))
        child = order[number]
        if child.memory_bytes > room or any(one.position == child.position for one in kept):
            continue
        with_child = (*kept, child)
        improved = problem.value(with_child)
        if improved > value:
            stack.append((with_child, improved, room - child.memory_bytes, number + 1))
            best = max(best, (improved, with_child), key=lambda found: found[0])
    return best[1]


def _smallest_first(problem: PlacementProblem) -> list[ExitCandidate]:
    return sorted(problem.candidates, key=lambda one: one.memory_bytes)


def _greedy_first(problem: PlacementProblem) -> list[ExitCandidate]:
    """Alg. 1: the greedy choice in its order, then the rest by expectation per byte alone."""
    chosen = greedy_choice(problem).exits
    rest = [one for one in problem.candidates if one not in chosen]
    return [*chosen, *sorted(rest, key=lambda one: -problem.value([one]) / max(one.memory_bytes, 1))]


def _hull_first(problem: PlacementProblem) -> list[ExitCandidate]:
    """``_greedy_first`` with those on the convex envelope of accuracy over time ahead, the order kept otherwise."""
    order = _greedy_first(problem)
    hull = convex_envelope(order)
    return [one for one in order if one in hull] + [one for one in order if one not in hull]


def convex_envelope(candidates: Sequence[ExitCandidate]) -> list[ExitCandidate]:
    """The candidates on the upper convex hull of (answer time, accuracy), from time 0 and accuracy 0 to the highest."""
    hull: list[ExitCandidate] = []
    for one in sorted(candidates, key=lambda candidate: (candidate.answer_time, -candidate.accuracy)):
        if hull and one.accuracy <= hull[-1].accuracy:
            continue
        while hull and not _rises_less(hull[-2:], one):
            hull.pop()
        hull.append(one)
    return hull


def _rises_less(last: Sequence[ExitCandidate], one: ExitCandidate) -> bool:
    """True if the line to ``one`` bends down at the last point. The point before the first one is the origin."""
    before_time, before = (last[0].answer_time, last[0].accuracy) if len(last) == 2 else (0.0, 0.0)
    middle = last[-1]
    rise, run = middle.accuracy - before, middle.answer_time - before_time
    return rise * (one.answer_time - middle.answer_time) > (one.accuracy - middle.accuracy) * run


def _sampled(*, bytes_power: int, important: bool) -> Order:
    """By the mean gain over random combinations, divided by bytes to ``bytes_power``.

    A combination takes candidates in random order while they fit, the ``important`` ones (by expectation per byte)
    more likely first.
    """

    def order(problem: PlacementProblem) -> list[ExitCandidate]:
        random = SplitMix64(_SEED)
        weights = [problem.value([one]) / max(one.memory_bytes, 1) if important else 1.0 for one in problem.candidates]
        gains = [0.0] * len(weights)
        for _ in range(_SAMPLES):
            if problem.late():
                break
            _add_gains(problem, [log(1.0 - random.uniform()) / max(weight, 1e-300) for weight in weights], gains)
        sizes = [max(one.memory_bytes, 1) ** bytes_power for one in problem.candidates]
        ranked = sorted(range(len(gains)), key=lambda number: -gains[number] / sizes[number])
        return [problem.candidates[number] for number in ranked]

    return order


def _add_gains(problem: PlacementProblem, keys: list[float], gains: list[float]) -> None:
    """Add to ``gains`` what each candidate adds to those before it, the highest key first."""
    kept: list[ExitCandidate] = []
    room, value = problem.memory_bytes, 0.0
    for number in sorted(range(len(keys)), key=lambda each: -keys[each]):
        one = problem.candidates[number]
        if one.memory_bytes <= room and all(one.position != other.position for other in kept):
            kept.append(one)
            improved = problem.value(kept)
            gains[number] += improved - value
            room, value = room - one.memory_bytes, improved


SCORES: dict[str, Order] = {
    "m0": _smallest_first,
    "m1": _sampled(bytes_power=1, important=False),
    "m2": _sampled(bytes_power=0, important=False),
    "m3": _sampled(bytes_power=1, important=True),
    "m4": _sampled(bytes_power=2, important=True),
    "m5": _greedy_first,
    "m6": _greedy_first,
    "m7": _hull_first,
}
