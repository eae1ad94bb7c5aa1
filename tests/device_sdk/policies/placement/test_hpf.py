from __future__ import annotations

import random
from itertools import count

import pytest

from device_sdk.policies.placement import ExitCandidate, StopTimes, place
from device_sdk.policies.placement.hpf import SCORES, convex_envelope, place_by_priority
from device_sdk.policies.placement.problem import PlacementProblem

FULL_TIME = 10.0


def problem(candidates: list[ExitCandidate], memory_bytes: int, nodes: int = 2000) -> PlacementProblem:
    ticks = count()
    return PlacementProblem(
        candidates=tuple(candidates),
        survival=StopTimes().survival(FULL_TIME),
        memory_bytes=memory_bytes,
        per_byte=True,
        late=lambda: next(ticks) >= nodes,
    )


def zoo(seed: int) -> list[ExitCandidate]:
    draw = random.Random(seed)
    return [
        ExitCandidate(
            f"x{number}", number % 5, draw.random(), 2.0 * (number % 5), draw.random() / 4, draw.randint(1, 99)
        )
        for number in range(30)
    ]


@pytest.mark.parametrize("score", sorted(SCORES))
@pytest.mark.parametrize("seed", range(3))
def test_every_score_finds_a_placement_that_fits_and_is_no_better_than_the_exact_one(score, seed):
    asked = problem(zoo(seed), 120)
    choice = place_by_priority(asked, score)
    exact = place(zoo(seed), full_time=FULL_TIME, memory_bytes=120)
    assert 0 < asked.value(choice.exits) <= exact.expectation + 1e-12
    assert sum(one.memory_bytes for one in choice.exits) <= 120
    assert len({one.position for one in choice.exits}) == len(choice.exits)
    assert not choice.optimal


def test_the_search_behind_the_greedy_order_is_never_worse_than_greedy() -> None:
    for seed in range(5):
        asked = problem(zoo(seed), 120)
        greedy = asked.value(place_by_priority(asked, "m5").exits)
        assert asked.value(place_by_priority(problem(zoo(seed), 120), "m6").exits) >= greedy


def test_more_time_never_gives_a_worse_placement() -> None:
    values = [
        problem(zoo(9), 120).value(place_by_priority(problem(zoo(9), 120, nodes)).exits) for nodes in (5, 50, 5000)
    ]
    assert values == sorted(values)
    assert values[0] < values[-1]


def test_the_envelope_holds_what_bends_the_curve_up() -> None:
    points = [("a", 1.0, 0.5), ("below", 2.0, 0.55), ("b", 3.0, 0.8), ("worse", 4.0, 0.7), ("c", 8.0, 0.9)]
    candidates = [
        ExitCandidate(name, number, accuracy, time, 0.0, 1) for number, (name, time, accuracy) in enumerate(points)
    ]
    assert [one.exit for one in convex_envelope(candidates)] == ["a", "b", "c"]
    assert convex_envelope([]) == []
