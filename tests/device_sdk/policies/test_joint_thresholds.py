from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from device_sdk.policies.joint_thresholds import AskingEnd, best_thresholds
from device_sdk.policies.route import RemoteCall
from device_sdk.policies.threshold_grid import Grid
from device_sdk.policies.thresholds import ExitSamples
from device_sdk.supernet.cost import PlanCost, Power
from device_sdk.supernet.plan import UNREACHABLE_CONFIDENCE, ExitChoice
from device_sdk.supernet.requirement import Requirement

POWER = Power(active_w=2.0, radio_w=3.0, waiting_w=0.5)
CALL = RemoteCall(300, 7.0, 2.0)
FULL_MS = 10.0
REQUIREMENTS = {
    "latency": Requirement(accuracy=0.7, optimise="latency_ms"),
    "latency, hardly possible": Requirement(accuracy=0.9, optimise="latency_ms"),
    "energy": Requirement(accuracy=0.75, optimise="energy_mj"),
    "bytes": Requirement(accuracy=0.65, latency_ms=10.0, optimise="bytes_sent"),
    "accuracy": Requirement(latency_ms=9.0),
    "accuracy, p95": Requirement(p95_latency_ms=13.0, energy_mj=25.0),
    "latency, p95": Requirement(accuracy=0.65, p95_latency_ms=12.0, optimise="latency_ms"),
    "memory": Requirement(accuracy=0.7, peak_bytes=115, optimise="latency_ms"),
}


class World:
    """Random samples on their way past exits to an end that may ask."""

    def __init__(self, seed: int, *, exits: int, count: int) -> None:
        random = np.random.default_rng(seed)
        # steps of confidence, so that samples share thresholds
        self.exits = [
            ExitSamples(
                ExitChoice(f"x{number}", UNREACHABLE_CONFIDENCE),
                confidence=random.integers(3, 10, count) / 10,
                right=random.uniform(size=count) < 0.5 + 0.1 * number,
                reach_ms=2.0 + 2.5 * number,
                branch_ms=0.4,
            )
            for number in range(exits)
        ]
        self.end = AskingEnd(
            ease=random.integers(0, 6, count).astype(float),
            right=random.uniform(size=count) < 0.75,
            server_right=random.uniform(size=count) < 0.9,
            full_ms=FULL_MS,
            call=CALL,
        )

    def cost(self, thresholds, hard_eases: int) -> PlanCost:
        """The plan followed sample by sample."""
        limits = [*np.unique(self.end.ease), math.inf]
        right, ms, mj, sent = [], [], [], []
        for sample in range(len(self.end.right)):
            device_ms = 0.0
            for exit_, threshold in zip(self.exits, thresholds, strict=True):
                if threshold >= UNREACHABLE_CONFIDENCE:
                    continue
                device_ms += exit_.branch_ms
                if exit_.confidence[sample] >= threshold:
                    right.append(exit_.right[sample])
                    device_ms += exit_.reach_ms
                    asked = False
                    break
            else:
                device_ms += FULL_MS
                asked = self.end.ease[sample] < limits[hard_eases]
                right.append((self.end.server_right if asked else self.end.right)[sample])
            ms.append(device_ms + asked * (CALL.transfer_ms + CALL.server_ms))
            mj.append(POWER.active_w * device_ms + asked * (POWER.radio_w * CALL.transfer_ms + POWER.waiting_w * 2.0))
            sent.append(asked * CALL.size_bytes)
        used = sum(threshold < UNREACHABLE_CONFIDENCE for threshold in thresholds)
        return PlanCost(
            accuracy=float(np.mean(right)),
            latency_ms=float(np.mean(ms)),
            p95_latency_ms=float(np.percentile(ms, 95)),
            energy_mj=float(np.mean(mj)),
            bytes_sent=float(np.mean(sent)),
            peak_bytes=100 + 10 * used,
        )

    def exhaustive(self, requirement: Requirement) -> float | None:
        grids = [[*np.unique(exit_.confidence), UNREACHABLE_CONFIDENCE] for exit_ in self.exits]
        costs = [
            self.cost(thresholds, hard)
            for thresholds in itertools.product(*grids)
            for hard in range(len(np.unique(self.end.ease)) + 1)
        ]
        return max((requirement.value(cost) for cost in costs if not requirement.misses(cost)), default=None)

    def best(self, requirement: Requirement, **options):
        options = {"power": POWER, "peak_bytes": 100, "exit_bytes": [10] * len(self.exits)} | options
        return best_thresholds(self.exits, self.end, requirement, **options)


@pytest.mark.parametrize("requirement", REQUIREMENTS.values(), ids=REQUIREMENTS)
@pytest.mark.parametrize(("exits", "count"), [(0, 20), (1, 25), (2, 14)])
@pytest.mark.parametrize("seed", range(3))
def test_the_best_of_all_combinations_is_found(requirement, exits, count, seed):
    world = World(seed, exits=exits, count=count)
    expected, found = world.exhaustive(requirement), world.best(requirement)
    assert (found is None) == (expected is None)
    if expected is None:
        return
    assert found.is_exact
    assert found.value == pytest.approx(expected)
    thresholds = {choice.exit: choice.threshold for choice in found.exits}
    cost = world.cost(
        [thresholds.get(one.choice.exit, UNREACHABLE_CONFIDENCE) for one in world.exits], found.hard_eases
    )
    assert requirement.value(cost) == pytest.approx(expected)
    assert not requirement.misses(cost)


def test_three_exits_too_and_bounds_spare_most_combinations():
    world = World(5, exits=3, count=8)
    requirement = REQUIREMENTS["latency"]
    found = world.best(requirement)
    assert found.value == pytest.approx(world.exhaustive(requirement))
    combinations = math.prod(1 + len(np.unique(one.confidence)) for one in world.exits[:-1])
    assert found.tables < combinations / 2


def test_nothing_is_found_that_is_not_better_than_what_is_known():
    world = World(1, exits=2, count=60)
    for name in ("latency", "accuracy"):
        best = world.best(REQUIREMENTS[name])
        assert world.best(REQUIREMENTS[name], better_than=best.value + 1e-9) is None
        worse = world.best(REQUIREMENTS[name], better_than=best.value - 1e-3)
        assert worse.value == pytest.approx(best.value)


def test_without_power_nothing_keeps_a_limit_of_energy():
    assert World(1, exits=1, count=20).best(REQUIREMENTS["energy"], power=None) is None


def test_a_search_that_is_cut_short_says_so():
    world = World(1, exits=3, count=60)
    requirement = REQUIREMENTS["latency"]
    whole = world.best(requirement)
    short = world.best(requirement, most_tables=whole.tables + 1)
    assert whole.is_exact
    assert not short.is_exact
    assert short.value == whole.value
    assert world.best(requirement, most_tables=0) is None


def test_fewer_thresholds_are_a_part_of_all():
    world = World(2, exits=2, count=200)
    requirement, grid = REQUIREMENTS["latency"], Grid.of(world.exits, world.end.ease, most=3)
    few, every = world.best(requirement, grid=grid), world.best(requirement)
    assert all(len(one) <= 3 for one in (*grid.thresholds, grid.hard_eases))
    around = grid.around(few.exits, few.hard_eases, world.exits, world.end.ease, most=6)
    finer = world.best(requirement, grid=around)
    assert few.value <= finer.value <= every.value
    assert few.value < every.value
    confidences = [set(one.confidence) for one in world.exits]
    assert all(any(choice.threshold in one for one in confidences) for choice in few.exits)
