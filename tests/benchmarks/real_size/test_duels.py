from __future__ import annotations

import numpy as np
import pytest

from benchmarks.real_size.duels import Duel, figures_of, row_of
from benchmarks.real_size.rivals import Rival, RivalName, best_rival
from device_sdk.policies.found import Found
from device_sdk.policies.planning.choice import Choice
from device_sdk.supernet.cost import PlanCost
from device_sdk.supernet.goal import Goal
from device_sdk.supernet.plan import Edge, Plan, Subnet

COST = PlanCost(accuracy=0.9, latency_ms=1.0, p95_latency_ms=1.0, bytes_sent=0.0, peak_bytes=0)
CHOSEN = Found(choice=Choice(Plan(Subnet((Edge("o0"),))), COST, {}, 10), goal=Goal(), seconds=1.0)


def right(share: float) -> np.ndarray:
    return np.arange(200) < 200 * share


def rival(share: float, ratio: float, rendition: str = "int8") -> Rival:
    return Rival(RivalName(0, rendition, 192), ratio, right(share))


def duel(share: float, rival_share: float | None, *, seed: int = 0, mode: str = "int8", ratio: float = 0.45) -> Duel:
    other = None if rival_share is None else rival(rival_share, ratio)
    return Duel(mode, 0.45, seed, CHOSEN, ratio, right(share), other)


def test_the_best_rival_is_the_most_accurate_that_is_fast_enough_in_the_renditions_of_the_mode():
    rivals = [rival(0.7, 0.4), rival(0.75, 0.44, "fp32"), rival(0.9, 0.6)]
    assert best_rival(rivals, 0.45, ("fp32", "int8")) is rivals[1]
    assert best_rival(rivals, 0.43, ("fp32",)) is None or rivals[1].ratio <= 1.02 * 0.43
    assert best_rival(rivals, 0.2, ("fp32", "int8")) is None


def test_gaps_are_means_over_seeds_with_bounds_and_the_worst_seed():
    figures = figures_of([duel(0.8, 0.8, seed=0), duel(0.6, 0.8, seed=1)], right(0.9))
    assert figures["gap_to_simple_int8_45"] == pytest.approx(10.0)
    assert figures["gap_to_simple_worst_int8_45"] == pytest.approx(20.0)
    assert figures["gap_to_simple_high_int8_45"] > 10.0
    assert figures["gain_over_simple_low_int8_points"] < figures["gain_over_simple_int8_points"] == pytest.approx(-10.0)


def test_the_untrained_bundle_is_compared_with_the_full_model():
    figures = figures_of([duel(0.8, None, mode="untrained")], right(0.9))
    assert figures["untrained_drop_45_points"] == pytest.approx(10.0)
    assert figures["untrained_drop_high_45_points"] > 10.0


def test_choices_over_their_budget_are_counted():
    assert figures_of([duel(0.8, 0.8), duel(0.8, 0.8, ratio=0.5)], right(0.9))["over_budget_share"] == 0.5


def test_a_choice_without_a_rival_has_a_row_of_its_own():
    assert "simple" not in row_of(duel(0.8, None))
    assert row_of(duel(0.8, 0.7))["gap_points"] == pytest.approx(-10.0)
