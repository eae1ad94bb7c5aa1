from __future__ import annotations

from itertools import count, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from device_sdk.policies.placement import UNIFORM, ExitCandidate, StopTimes, expectation, place

FULL_TIME = 10.0
STOP_TIMES = [UNIFORM, StopTimes((0.25, 0.5, 1.0), (0.0, 3.0, 1.0)), StopTimes((0.75, 1.0), (1.0, 0.0))]


def exit_candidates(*, tried: bool) -> st.SearchStrategy[list[ExitCandidate]]:
    """Up to eight candidates at four cut points; reach times need not rise with the position."""
    branch = st.sampled_from([0.0, 0.5, 1.0, 2.0]) if tried else st.just(0.0)
    one = st.tuples(st.integers(1, 4), st.integers(0, 20), st.integers(0, 11), branch, st.integers(0, 50))
    return st.lists(one, max_size=8).map(
        lambda rows: [
            ExitCandidate(f"x{number}", position, accuracy / 20, float(reach), branch_time, size)
            for number, (position, accuracy, reach, branch_time, size) in enumerate(rows)
        ]
    )


def best_of_all(candidates: list[ExitCandidate], memory_bytes: int, stop_times: StopTimes) -> tuple[float, int]:
    """The highest expectation of all sets with one exit at most per cut point, and the fewest bytes that reach it."""
    positions = sorted({one.position for one in candidates})
    choices = [[None, *(one for one in candidates if one.position == position)] for position in positions]
    found = []
    for chosen in product(*choices):
        kept = [one for one in chosen if one is not None]
        size = sum(one.memory_bytes for one in kept)
        if size <= memory_bytes:
            found.append((expectation(kept, full_time=FULL_TIME, stop_times=stop_times), size))
    best = max(value for value, _ in found)
    return best, min(size for value, size in found if value > best - 1e-12)


@pytest.mark.parametrize("stop_times", STOP_TIMES, ids=["uniform", "three pieces", "two pieces"])
@pytest.mark.parametrize("tried", [True, False], ids=["slow branches", "branches for free"])
@settings(max_examples=60, deadline=None)
@given(data=st.data(), memory_bytes=st.integers(0, 150))
def test_it_is_what_trying_all_sets_finds(tried, stop_times, data, memory_bytes):
    candidates = data.draw(exit_candidates(tried=tried))
    placement = place(
        candidates, full_time=FULL_TIME, memory_bytes=memory_bytes, stop_times=stop_times, time_limit_s=None
    )
    best, _ = best_of_all(candidates, memory_bytes, stop_times)
    kept = [one for one in candidates if one.exit in placement.exits]
    assert placement.optimal
    assert placement.expectation == pytest.approx(best, abs=1e-12)
    assert placement.expectation == pytest.approx(expectation(kept, full_time=FULL_TIME, stop_times=stop_times))
    assert placement.memory_bytes == sum(one.memory_bytes for one in kept) <= memory_bytes
    assert len({one.position for one in kept}) == len(kept)


def test_it_beats_greedy_where_the_best_value_per_byte_leads_astray() -> None:
    small, large = ExitCandidate("small", 1, 0.3, 1.0, 0.0, 30), ExitCandidate("large", 1, 0.9, 1.0, 0.0, 100)
    exact = place([small, large], full_time=FULL_TIME, memory_bytes=100)
    greedy = place([small, large], full_time=FULL_TIME, memory_bytes=100, strategy="greedy")
    assert (greedy.exits, greedy.optimal) == (("small",), False)
    assert (exact.exits, exact.optimal) == (("large",), True)


def test_of_equally_good_placements_the_smaller_is_taken() -> None:
    same = [ExitCandidate("b", 1, 0.5, 1.0, 0.0, 20), ExitCandidate("a", 1, 0.5, 1.0, 0.0, 20)]
    assert place([ExitCandidate("c", 1, 0.5, 1.0, 0.0, 30), *same], full_time=4.0, memory_bytes=100).exits == ("a",)


def many(number: int = 300) -> list[ExitCandidate]:
    return [
        ExitCandidate(
            f"x{n}", n % 10, (n % 10) / 20 + (n * 37 % 101) / 250, n % 10, (n * 53 % 97) / 500, 100 + n * 7 % 89
        )
        for n in range(number)
    ]


def test_at_the_deadline_it_is_at_least_the_greedy_choice_and_not_called_optimal() -> None:
    greedy = place(many(), full_time=FULL_TIME, memory_bytes=600, strategy="greedy")
    best = place(many(), full_time=FULL_TIME, memory_bytes=600, time_limit_s=None)
    assert best.optimal
    assert best.expectation > greedy.expectation
    for reads in (0, 2, 3, 5):
        ticks = count()
        found = place(many(), full_time=FULL_TIME, memory_bytes=600, time_limit_s=reads, clock=lambda t=ticks: next(t))
        assert not found.optimal
        assert greedy.expectation <= found.expectation <= best.expectation + 1e-12
        assert found.memory_bytes <= 600
    assert place(many(), full_time=FULL_TIME, memory_bytes=600, time_limit_s=0).exits == greedy.exits


def test_an_exit_behind_a_slow_branch_answers_no_earlier_than_it() -> None:
    # the path was measured as quicker up to the second cut point than up to the first: the answers stay in order
    first, second = ExitCandidate("x1", 1, 0.5, 5.0, 0.0, 1), ExitCandidate("x2", 2, 0.9, 4.0, 0.0, 1)
    assert expectation([first, second], full_time=10.0) == pytest.approx(0.9 * 5 / 10)
    assert place([first, second], full_time=10.0, memory_bytes=2).exits == ("x2",)
