from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.policies.deciding import thresholds
from device_sdk.policies.deciding.thresholds import ExitSamples, hard_threshold
from device_sdk.supernet.plan import UNREACHABLE_CONFIDENCE, ExitChoice


def exit_samples(
    confidence: list[float] | np.ndarray,
    right: list[bool] | np.ndarray,
    *,
    name: str = "x1",
    reach_ms: float = 1.0,
    branch_ms: float = 0.1,
) -> ExitSamples:
    return ExitSamples(
        ExitChoice(name, UNREACHABLE_CONFIDENCE), np.asarray(confidence), np.asarray(right), reach_ms, branch_ms
    )


def choose_exits(exits, *, right_at_end, confidence_at_end=None, full_ms, accuracy_drop):
    """By default the end is as sure of all samples."""
    sure = np.full(len(right_at_end), 0.9) if confidence_at_end is None else confidence_at_end
    return thresholds.choose_exits(
        exits, right_at_end=right_at_end, confidence_at_end=sure, full_ms=full_ms, accuracy_drop=accuracy_drop
    )


def test_an_exit_answers_what_it_is_sure_of_and_right_about() -> None:
    confidence = np.linspace(0.01, 1.0, 100)
    sure = confidence > 0.6
    chosen = choose_exits(
        [exit_samples(confidence, sure)], right_at_end=np.ones(100, dtype=bool), full_ms=10.0, accuracy_drop=0.0
    )
    assert [choice.exit for choice in chosen] == ["x1"]
    assert 0.6 < chosen[0].threshold < 0.66


def test_a_larger_allowed_drop_lets_more_samples_leave() -> None:
    confidence = np.linspace(0.01, 1.0, 100)
    right = confidence > 0.5

    def threshold(drop: float) -> float:
        samples = exit_samples(confidence, right)
        return choose_exits([samples], right_at_end=np.ones(100, bool), full_ms=10.0, accuracy_drop=drop)[0].threshold

    assert threshold(0.2) < threshold(0.1) < threshold(0.0)


def test_an_exit_that_is_never_right_is_left_out() -> None:
    useless = exit_samples(np.linspace(0, 1, 50), np.zeros(50, bool))
    assert choose_exits([useless], right_at_end=np.ones(50, bool), full_ms=10.0, accuracy_drop=0.01) == []


def test_an_exit_whose_branch_costs_more_than_it_saves_is_left_out() -> None:
    dear = exit_samples(np.linspace(0, 1, 50), np.ones(50, bool), reach_ms=9.0, branch_ms=5.0)
    assert choose_exits([dear], right_at_end=np.ones(50, bool), full_ms=10.0, accuracy_drop=0.0) == []


def test_exits_get_thresholds_of_their_own() -> None:
    confidence = np.linspace(0.01, 1.0, 200)
    first = exit_samples(confidence, confidence > 0.8, name="first", reach_ms=1.0)
    second = exit_samples(confidence, confidence > 0.3, name="second", reach_ms=4.0)
    chosen = choose_exits([first, second], right_at_end=np.ones(200, bool), full_ms=10.0, accuracy_drop=0.0)
    assert [choice.exit for choice in chosen] == ["first", "second"]
    assert chosen[0].threshold > 0.8 > 0.4 > chosen[1].threshold > 0.3


def test_without_exits_nothing_is_chosen() -> None:
    assert choose_exits([], right_at_end=np.ones(3, bool), full_ms=1.0, accuracy_drop=0.0) == []


def test_a_lucky_threshold_does_not_count_for_itself_alone() -> None:
    """Where answers of an exit differ from the end's, it is wrong three times in four; above 0.9 it was lucky."""
    count, sure = 400, np.full(400, 0.3)
    lucky, unlucky = np.arange(count) < 8, (np.arange(count) >= 100) & (np.arange(count) < 130)
    sure[lucky | unlucky] = np.where(lucky[lucky | unlucky], 0.95, 0.6)
    right_at_end = np.ones(count, bool)
    right_at_end[lucky] = [False, False, False, False, False, False, True, True]  # six won, two lost
    right = right_at_end ^ (lucky | unlucky)
    alone = np.where(unlucky, right_at_end, right)

    def is_taken(right: np.ndarray) -> bool:
        drop = thresholds.ExpectedDrop([exit_samples(sure, right)], right_at_end, sure)
        return drop.within(0.005, [sure > 0.9])

    assert is_taken(alone)
    assert not is_taken(right)


@given(st.integers(0, 10_000), st.integers(1, 3), st.floats(0, 0.2))
def test_the_accuracy_never_drops_by_more_than_allowed(seed: int, exits: int, drop: float) -> None:
    random = np.random.default_rng(seed)
    at_end = random.random(80) < 0.8
    samples = [
        exit_samples(random.random(80), random.random(80) < 0.7, name=f"x{number}", reach_ms=1.0 + number)
        for number in range(exits)
    ]
    chosen = choose_exits(samples, right_at_end=at_end, full_ms=10.0, accuracy_drop=drop)
    right, rest = at_end.copy(), np.ones(80, bool)
    for choice in chosen:
        exit_ = next(one for one in samples if one.choice.exit == choice.exit)
        taken = rest & (exit_.confidence >= choice.threshold)
        right[taken] = exit_.right[taken]
        rest &= ~taken
    assert right.mean() >= at_end.mean() - drop - 1e-9


@given(st.lists(st.floats(0.1, 1.0), min_size=1, max_size=60, unique=True), st.floats(0, 1))
def test_the_threshold_sends_the_wished_share(confidences: list[float], share: float) -> None:
    values = np.array(confidences)
    threshold = hard_threshold(values, share=share, samples=len(values))
    sent = np.count_nonzero(values < threshold)
    # two neighbours can be so close that nothing lies between them
    assert abs(sent - round(share * len(values))) <= 1


def test_share_zero_sends_nothing_and_share_one_everything() -> None:
    values = np.array([0.2, 0.9, 1.0])
    assert hard_threshold(values, share=0.0, samples=3) == 0.0
    assert np.all(values < hard_threshold(values, share=1.0, samples=3))


def test_samples_that_an_exit_answered_are_not_sent_in_place_of_others() -> None:
    """A third of nine samples, four of which left early: three of the five that reach the end."""
    at_end = np.array([0.9, 0.5, 0.7, 0.6, 0.8])
    threshold = hard_threshold(at_end, share=1 / 3, samples=9)
    assert sorted(at_end[at_end < threshold]) == [0.5, 0.6, 0.7]
    assert hard_threshold(at_end, share=0.9, samples=9) == pytest.approx(UNREACHABLE_CONFIDENCE)
