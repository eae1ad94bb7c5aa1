"""Selection of the exits to keep in a memory budget: one pure function, for the server and for a device on its own.

Source: MEEdge §3.3. ``exact`` is the default; ``hpf`` is the paper's search, ``greedy`` its first path.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Literal

from device_sdk.errors import UsageError
from device_sdk.policies.placement.candidates import ExitCandidate, candidates_by_macs, transferable_bytes, worthwhile
from device_sdk.policies.placement.exact import place_exactly
from device_sdk.policies.placement.expectation import UNIFORM, StopTimes, expectation
from device_sdk.policies.placement.hpf import greedy_choice, place_by_priority
from device_sdk.policies.placement.problem import Choice, Placement, PlacementProblem

Strategy = Literal["exact", "hpf", "greedy"]

STRATEGIES: dict[str, Callable[[PlacementProblem], Choice]] = {
    "exact": place_exactly,
    "greedy": greedy_choice,
    "hpf": place_by_priority,
}


def place(
    candidates: Iterable[ExitCandidate],
    *,
    full_time: float,
    memory_bytes: int | None,
    stop_times: StopTimes = UNIFORM,
    strategy: Strategy = "exact",
    time_limit_s: float | None = 1.0,
    clock: Callable[[], float] = time.monotonic,
) -> Placement:
    """Choose the exits with the highest expectation, at most one at a cut point.

    ``memory_bytes``: limit for all kept ones; None for no limit. ``time_limit_s``: of the search, read from ``clock``;
    None for no limit. At the limit the better of the best choice so far and the greedy one is returned; a limit of
    zero gives the greedy one. Of equally good choices the exact search returns one of the fewest bytes.

    Raises:
        UsageError: a limit is negative, ``full_time`` not above zero, or there is no such strategy.
    """
    if memory_bytes is not None and memory_bytes < 0:
        raise UsageError(f"the memory for exits is {memory_bytes} bytes; it cannot be negative")
    if not full_time > 0:
        raise UsageError(f"the full model's time is {full_time:g}; it must be above zero")
    if time_limit_s is not None and not time_limit_s >= 0:
        raise UsageError(f"the time for the search is {time_limit_s:g} s; it cannot be negative")
    if strategy not in STRATEGIES:
        raise UsageError(f"there is no placement strategy {strategy}", hint="known: " + ", ".join(sorted(STRATEGIES)))
    deadline_s = None if time_limit_s is None else clock() + time_limit_s
    useful = worthwhile(candidates, full_time=full_time, memory_bytes=memory_bytes)
    limit = sum(one.memory_bytes for one in useful) if memory_bytes is None else memory_bytes
    problem = PlacementProblem(
        candidates=useful,
        survival=stop_times.survival(full_time),
        memory_bytes=limit,
        per_byte=memory_bytes is not None,
        late=lambda: deadline_s is not None and clock() >= deadline_s,
    )
    choice = greedy_choice(problem) if problem.late() else STRATEGIES[strategy](problem)
    return problem.placement(choice)


__all__ = [
    "STRATEGIES",
    "UNIFORM",
    "ExitCandidate",
    "Placement",
    "StopTimes",
    "Strategy",
    "candidates_by_macs",
    "expectation",
    "place",
    "transferable_bytes",
]
