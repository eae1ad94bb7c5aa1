from __future__ import annotations

import numpy as np
import pytest

from benchmarks.sure.adapting import Run
from benchmarks.sure.figures import JudgedNetwork, figures_of, rows_of, trained_minus_untrained
from benchmarks.sure.serving import Served
from device_sdk.supernet.plan import Edge, Subnet


def subnet(name: str) -> Subnet:
    return Subnet((Edge(name),))


def right(share: float) -> np.ndarray:
    return np.arange(100) < 100 * share


def run(name: str | None, *, seed: int = 0, condition: str = "idle", budget: float = 0.5) -> Run:
    chosen = None if name is None else subnet(name)
    return Run(condition, budget, seed, chosen, 0.4, 10, 1.0, "" if name else "nothing fits")


def judged(*runs: Run, shares: dict[str, float], ratios: dict[str, float], rungs: tuple[str, ...]) -> JudgedNetwork:
    return JudgedNetwork(
        "net",
        runs,
        [subnet(name) for name in rungs],
        {subnet(name): ratio for name, ratio in ratios.items()},
        {subnet(name): right(share) for name, share in shares.items()},
    )


def test_the_worst_run_is_compared_with_the_best_rung_that_keeps_the_budget():
    network = judged(
        run("good"),
        run("bad", condition="busy"),
        shares={"good": 0.8, "bad": 0.6, "rung": 0.75, "slow rung": 0.9},
        ratios={"good": 0.5, "bad": 0.3, "rung": 0.49, "slow rung": 0.9},
        rungs=("rung", "slow rung"),
    )
    figures = figures_of([network], [])
    assert figures["worst_below_ladder_points"] == pytest.approx(15.0)
    assert figures["worst_below_best_seed_points"] == pytest.approx(20.0)
    assert figures["over_budget_share"] == 0.0


def test_a_seed_that_breaks_the_budget_is_counted_and_is_no_yardstick():
    network = judged(
        run("fast", seed=0),
        run("slow", seed=1),
        shares={"fast": 0.7, "slow": 0.9},
        ratios={"fast": 0.5, "slow": 0.6},
        rungs=(),
    )
    figures = figures_of([network], [])
    assert figures["over_budget_share"] == 0.5
    assert figures["worst_below_best_seed_points"] == pytest.approx(0.0)
    assert "worst_below_ladder_points" not in figures  # no rung keeps the budget: nothing was compared, so it misses


def test_two_percent_over_the_budget_count_as_equal():
    network = judged(run("one"), shares={"one": 0.7}, ratios={"one": 0.509}, rungs=())
    assert figures_of([network], [])["over_budget_share"] == 0.0


def test_a_refused_adaptation_is_counted():
    network = judged(run("one"), run(None, seed=1), shares={"one": 0.7}, ratios={"one": 0.4}, rungs=())
    assert figures_of([network], [])["refused_runs"] == 1.0
    [row] = rows_of(network)
    assert (row["seeds"], row["refused"], row["refusal"]) == (2, 1, "nothing fits")


def test_every_rate_weighs_the_same_however_many_calls_it_has():
    rare = Served(0.5, 5.0, 10.0, (11.0, 11.0), (9.0, 9.0))
    often = Served(0.5, 30.0, 10.0, (9.0,) * 8, (8.0,) * 8)
    figures = figures_of([], [rare, often])
    assert figures["served_over_budget_prepared_share"] == 0.5
    assert figures["served_over_budget_share"] == 0.0


def test_training_is_judged_by_the_same_budget_condition_and_seed():
    shares, ratios = {"a": 0.8, "b": 0.7}, {"a": 0.4, "b": 0.4}
    trained = judged(run("a"), run("a", seed=1), run("a", seed=2), shares=shares, ratios=ratios, rungs=())
    untrained = judged(run("b"), run("a", seed=1), run(None, seed=2), shares=shares, ratios=ratios, rungs=())
    figures = trained_minus_untrained(trained, untrained)
    assert figures["trained_minus_untrained_points"] == pytest.approx(5.0)
    assert 0.0 < figures["trained_minus_untrained_low_points"] < 5.0 < figures["trained_minus_untrained_high_points"]


def test_training_that_changes_nothing_gains_nothing():
    network = judged(run("a"), shares={"a": 0.8}, ratios={"a": 0.4}, rungs=())
    assert set(trained_minus_untrained(network, network).values()) == {0.0}
