"""Which exits to keep in a memory budget: one pure function, for the server and for a device on its own.

Source: MEEdge §3.3, Algorithm 1. The misprint in line 6 (index i where j is meant) is put right.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from device_sdk.errors import UsageError
from device_sdk.supernet.blocks import Exit
from device_sdk.supernet.supernet import Supernet

_PARAMETER_BYTES = 4


@dataclass(frozen=True)
class ExitCandidate:
    """An exit that could be kept.

    ``reach_time``: from the input to its cut point; ``branch_time``: of its branch; both in the unit of the full
    model's time.
    """

    exit: str
    position: int
    accuracy: float
    reach_time: float
    branch_time: float
    memory_bytes: int


@dataclass(frozen=True)
class Placement:
    """The exits to keep, by position.

    ``expectation``: expected accuracy when inference may be stopped at any time up to the full model's, each moment as
    likely as any other (mAE, MEEdge §4.1); ``memory_bytes``: of the kept exits.
    """

    exits: tuple[str, ...]
    expectation: float
    memory_bytes: int


def place(
    candidates: Iterable[ExitCandidate],
    *,
    full_time: float,
    memory_bytes: int | None,
) -> Placement:
    """Keep exits greedily: always the one that adds most expectation per byte, while it fits and adds anything.

    At most one at a cut point. ``memory_bytes``: limit for all kept ones; None for no limit, then bytes do not count.

    Raises:
        UsageError: the limit is negative, or ``full_time`` not above zero.
    """
    if memory_bytes is not None and memory_bytes < 0:
        raise UsageError(f"the memory for exits is {memory_bytes} bytes; it cannot be negative")
    if not full_time > 0:
        raise UsageError(f"the full model's time is {full_time:g}; it must be above zero")
    left = sorted(candidates, key=lambda candidate: (candidate.position, candidate.exit))
    kept: list[ExitCandidate] = []
    limited = memory_bytes is not None
    room = float("inf") if memory_bytes is None else float(memory_bytes)
    best = 0.0
    while True:
        left = [c for c in left if c.memory_bytes <= room and all(c.position != k.position for k in kept)]
        added = [expectation([*kept, c], full_time=full_time) - best for c in left]
        gains = [gain / max(c.memory_bytes, 1) if limited else gain for gain, c in zip(added, left, strict=True)]
        if not gains or max(gains) <= 0:
            break
        chosen = left[gains.index(max(gains))]
        kept.append(chosen)
        room -= chosen.memory_bytes
        best = expectation(kept, full_time=full_time)
    kept.sort(key=lambda candidate: candidate.position)
    return Placement(
        exits=tuple(candidate.exit for candidate in kept),
        expectation=best,
        memory_bytes=sum(candidate.memory_bytes for candidate in kept),
    )


def expectation(exits: Sequence[ExitCandidate], *, full_time: float) -> float:
    """The mean over all moments before ``full_time`` of the accuracy of the best answer that is there by then.

    An exit answers once the path has reached it and every branch before it, and its own, was tried. One that is less
    accurate than an earlier one changes nothing: the earlier answer stays.
    """
    area = accuracy = since = tried = 0.0
    for exit_ in sorted(exits, key=lambda candidate: candidate.position):
        tried += exit_.branch_time
        answered = exit_.reach_time + tried
        if answered < full_time and exit_.accuracy > accuracy:
            area += accuracy * (answered - since)
            accuracy, since = exit_.accuracy, answered
    return (area + accuracy * (full_time - since)) / full_time


def candidates_by_macs(supernet: Supernet) -> tuple[list[ExitCandidate], float]:
    """All exits with an accuracy, and the full model's time; both timed in MACs along the original path.

    For devices without measurements. Memory is that of float32 parameters.
    """
    reached = [0]
    for _, block in supernet.walk(supernet.original):
        reached.append(reached[-1] + block.macs)

    def candidate(exit_: Exit, accuracy: float) -> ExitCandidate:
        reach, size = float(reached[exit_.position]), _PARAMETER_BYTES * exit_.parameters
        return ExitCandidate(exit_.id, exit_.position, accuracy, reach, float(exit_.macs), size)

    known = [candidate(exit_, exit_.accuracy) for exit_ in supernet.exits if exit_.accuracy is not None]
    return known, float(reached[-1])
