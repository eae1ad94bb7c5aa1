from __future__ import annotations

from packager.branch_zoo.selection import Judged, kept, rung_counts, rung_steps
from packager.branch_zoo.specs import BranchCost


def judged(accuracy: float, macs: int, parameters: int = 1) -> Judged:
    return Judged(accuracy, BranchCost(macs, parameters))


def test_a_cheap_branch_stays_although_larger_ones_are_more_accurate():
    branches = {"cheap": judged(0.5, 1), "poor": judged(0.6, 90), "good": judged(0.7, 50), "best": judged(0.9, 100)}
    assert kept(branches, 3) == ["cheap", "good", "best"]


def test_of_a_front_that_does_not_fit_the_most_accurate_are_kept():
    branches = {f"b{k}": judged(0.1 * k, 10 * k) for k in range(1, 6)}
    assert kept(branches, 2) == ["b4", "b5"]
    assert kept(branches, 9) == list(branches)


def test_a_branch_that_diverged_is_dropped_first():
    assert kept({"diverged": judged(-1.0, 5), "other": judged(0.1, 5)}, 1) == ["other"]


def test_rungs_cost_about_the_same_and_use_all_steps():
    counts, steps = rung_counts(105), rung_steps(585)
    assert counts == [105, 53, 27, 14]
    assert sum(steps) == 585
    assert steps == [39, 78, 156, 312]
    assert rung_counts(3) == [3, 3, 3, 3]
    assert sum(rung_steps(3)) == 3
