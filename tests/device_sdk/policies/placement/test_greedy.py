from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.bundles.bundle import Bundle
from device_sdk.errors import UsageError
from device_sdk.policies.placement import ExitCandidate, Placement, candidates_by_macs, expectation
from device_sdk.policies.placement import place as place_by


def candidate(
    name: str, position: int, accuracy: float, time: float, size: int = 100, branch: float = 0.0
) -> ExitCandidate:
    return ExitCandidate(name, position, accuracy, time - branch, branch, size)


def place(candidates: list[ExitCandidate], *, full_time: float, memory_bytes: int | None) -> Placement:
    return place_by(candidates, full_time=full_time, memory_bytes=memory_bytes, strategy="greedy")


@st.composite
def candidates(draw: st.DrawFn) -> list[ExitCandidate]:
    numbers = range(draw(st.integers(0, 6)))
    return [
        candidate(
            f"x{number}",
            draw(st.integers(1, 4)),
            draw(st.integers(0, 100)) / 100,
            draw(st.integers(1, 12)),
            draw(st.integers(1, 50)),
        )
        for number in numbers
    ]


def test_expectation_is_the_area_under_the_best_answer_so_far() -> None:
    exits = [candidate("late", 2, 0.9, 6.0), candidate("early", 1, 0.5, 2.0)]
    assert expectation(exits, full_time=10.0) == pytest.approx((2 * 0.0 + 4 * 0.5 + 4 * 0.9) / 10)


def test_an_exit_less_accurate_than_an_earlier_one_changes_nothing() -> None:
    good, worse = candidate("good", 1, 0.8, 2.0), candidate("worse", 2, 0.6, 5.0)
    assert expectation([good, worse], full_time=10.0) == expectation([good], full_time=10.0)
    assert place([good, worse], full_time=10.0, memory_bytes=None).exits == ("good",)


def test_the_best_value_per_byte_is_kept_first() -> None:
    small, large = candidate("small", 1, 0.6, 2.0, 10), candidate("large", 2, 0.9, 3.0, 1000)
    assert place([small, large], full_time=10.0, memory_bytes=1000).exits == ("small",)
    assert place([small, large], full_time=10.0, memory_bytes=1010).exits == ("small", "large")


def test_without_a_limit_bytes_do_not_count_and_each_cut_point_keeps_its_better_branch() -> None:
    small, large = candidate("pooled", 1, 0.6, 2.0, 10), candidate("conv", 1, 0.8, 2.2, 1000)
    assert place([small, large], full_time=10.0, memory_bytes=None).exits == ("conv",)


def test_no_memory_keeps_no_exit() -> None:
    placement = place([candidate("x", 1, 0.9, 1.0)], full_time=2.0, memory_bytes=0)
    assert (placement.exits, placement.expectation, placement.memory_bytes) == ((), 0.0, 0)


@pytest.mark.parametrize(("full_time", "memory_bytes"), [(0.0, None), (float("nan"), None), (1.0, -1)])
def test_limits_that_make_no_sense_are_refused(full_time: float, memory_bytes: int | None) -> None:
    with pytest.raises(UsageError):
        place([], full_time=full_time, memory_bytes=memory_bytes)


@given(candidates(), st.integers(0, 120))
def test_placements_fit_and_are_never_worse_than_the_best_single_exit_per_byte(
    given_candidates: list[ExitCandidate], memory_bytes: int
) -> None:
    placement = place(given_candidates, full_time=10.0, memory_bytes=memory_bytes)
    kept = [one for one in given_candidates if one.exit in placement.exits]
    assert placement.memory_bytes == sum(one.memory_bytes for one in kept) <= memory_bytes
    assert len({one.position for one in kept}) == len(kept)
    assert placement.expectation == pytest.approx(expectation(kept, full_time=10.0))
    # nothing that still fits would add anything
    for one in given_candidates:
        fits = one.memory_bytes <= memory_bytes - placement.memory_bytes
        if fits and all(one.position != other.position for other in kept):
            assert expectation([*kept, one], full_time=10.0) <= placement.expectation + 1e-12


@given(candidates())
def test_without_a_limit_greedy_reaches_at_least_half_of_the_best_choice(given_candidates: list[ExitCandidate]) -> None:
    """The expectation is monotone and submodular and one exit per cut point a matroid, which bounds greedy choices."""
    best = max(
        expectation(chosen, full_time=10.0)
        for size in range(len(given_candidates) + 1)
        for chosen in combinations(given_candidates, size)
        if len({one.position for one in chosen}) == size
    )
    assert place(given_candidates, full_time=10.0, memory_bytes=None).expectation >= best / 2 - 1e-12


def test_candidates_of_a_bundle_are_timed_in_macs_along_the_original_path(bundle: Bundle) -> None:
    found, full_time = candidates_by_macs(bundle.supernet)
    assert full_time == 5.0  # five originals of one MAC each
    assert {one.exit: one.reach_time + one.branch_time for one in found} == {
        "x1-pooled": 2.0,
        "x2-pooled": 3.0,
        "x2-untrained": 3.0,
        "x3-pooled": 4.0,
    }
    assert all(one.memory_bytes == 4 * 51 for one in found)


def test_an_exit_waits_for_the_branches_that_were_tried_before_it():
    first, second = candidate("x1", 1, 0.5, 2.0, branch=1.0), candidate("x2", 2, 0.9, 4.0, branch=1.0)
    alone = expectation([second], full_time=10.0)
    assert alone == pytest.approx(0.9 * 6 / 10)
    both = expectation([first, second], full_time=10.0)  # the second answers at 5, behind the first one's branch
    assert both == pytest.approx((0.5 * 3 + 0.9 * 5) / 10)
