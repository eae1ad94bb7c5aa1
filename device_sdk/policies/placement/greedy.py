"""Greedy placement: always the exit that adds most expectation per byte, while it fits and adds anything.

Source: MEEdge §3.3, Algorithm 1. The misprint in line 6 (index i where j is meant) is put right.
"""

from __future__ import annotations

from device_sdk.policies.placement.candidates import ExitCandidate
from device_sdk.policies.placement.problem import Choice, PlacementProblem


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
