from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from device_sdk.policies.costs.route import RemoteCall
from device_sdk.policies.deciding.thresholds import ExitSamples
from device_sdk.policies.joint_thresholds.bounds import AskingEnd, Grid, percentile
from device_sdk.policies.joint_thresholds.optimum import Effort, best_thresholds
from device_sdk.supernet.cost import PlanCost, Power
from device_sdk.supernet.goal import Requirement
from device_sdk.supernet.plan import UNREACHABLE_CONFIDENCE, ExitChoice

POWER = Power(active_w=2.0, radio_w=3.0, waiting_w=0.5)
CALL = RemoteCall(300, 7.0, 2.0)
LEFT_OUT = (UNREACHABLE_CONFIDENCE, 0.0)
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

    def __init__(self, seed: int, *, exits: int, count: int, deciders: int = 1) -> None:
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
            eases=tuple(random.integers(0, 6, (deciders, count)).astype(float)),
            right=random.uniform(size=count) < 0.75,
            server_right=random.uniform(size=count) < 0.9,
            full_ms=FULL_MS,
            call=CALL,
            deciding_ms=(0.7, 0.3)[:deciders],
            nothing_hard_ms=0.2,
        )

    def cost(self, limits_of_exits, hard_eases: int, decider: int = 0) -> PlanCost:
        """The plan followed sample by sample."""
        ease = self.end.eases[decider]
        limits = [*np.unique(ease), math.inf]
        asks = any(ask_below > 0 for _, ask_below in limits_of_exits)
        deciding_ms = self.end.deciding_ms[decider] if hard_eases else asks * self.end.nothing_hard_ms
        right, ms, mj, sent = [], [], [], []
        for sample in range(len(self.end.right)):
            device_ms = 0.0
            for exit_, (threshold, ask_below) in zip(self.exits, limits_of_exits, strict=True):
                if (threshold, ask_below) == LEFT_OUT:
                    continue
                device_ms += exit_.branch_ms
                sure = exit_.confidence[sample]
                if sure >= threshold or sure < ask_below:
                    asked = sure < ask_below
                    right.append((self.end.server_right if asked else exit_.right)[sample])
                    device_ms += exit_.reach_ms
                    break
            else:
                device_ms += FULL_MS + deciding_ms
                asked = ease[sample] < limits[hard_eases]
                right.append((self.end.server_right if asked else self.end.right)[sample])
            ms.append(device_ms + asked * (CALL.transfer_ms + CALL.server_ms))
            mj.append(POWER.active_w * device_ms + asked * (POWER.radio_w * CALL.transfer_ms + POWER.waiting_w * 2.0))
            sent.append(asked * CALL.size_bytes)
        used = sum(one != LEFT_OUT for one in limits_of_exits)
        return PlanCost(
            accuracy=float(np.mean(right)),
            latency_ms=float(np.mean(ms)),
            p95_latency_ms=float(np.percentile(ms, 95)),
            energy_mj=float(np.mean(mj)),
            bytes_sent=float(np.mean(sent)),
            peak_bytes=100 + 10 * used,
        )

    def costs(self, *, asks_early: bool) -> list[PlanCost]:
        """Of all combinations."""
        grids = []
        for exit_ in self.exits:
            values = np.unique(exit_.confidence).tolist()
            asks = [0.0, *values] if asks_early else [0.0]
            pairs = itertools.product([*values, UNREACHABLE_CONFIDENCE], asks)
            grids.append([(threshold, ask_below) for threshold, ask_below in pairs if ask_below <= threshold])
        return [
            self.cost(limits_of_exits, hard, decider)
            for limits_of_exits in itertools.product(*grids)
            for decider, ease in enumerate(self.end.eases)
            for hard in range(len(np.unique(ease)) + 1)
        ]

    def best(self, requirement: Requirement, *, asks_early: bool = False, **options):
        options = {"power": POWER, "peak_bytes": 100, "exit_bytes": [10] * len(self.exits)} | options
        grid = options.pop("grid", Grid.of(self.exits, self.end.eases, asks_early=asks_early))
        return best_thresholds(self.exits, self.end, requirement, grid=grid, **options)

    def cost_of(self, found) -> PlanCost:
        chosen = {choice.exit: (choice.threshold, choice.ask_below) for choice in found.exits}
        return self.cost([chosen.get(one.choice.exit, LEFT_OUT) for one in self.exits], found.hard_eases, found.decider)


def best_of(costs: list[PlanCost], requirement: Requirement) -> float | None:
    return max((requirement.value(cost) for cost in costs if not requirement.misses(cost)), default=None)


@pytest.mark.parametrize(
    ("exits", "count", "asks_early", "deciders"),
    [(0, 20, False, 2), (1, 25, False, 1), (2, 14, False, 1), (1, 25, True, 2), (2, 7, True, 1)],
)
@pytest.mark.parametrize("seed", range(3))
def test_the_best_of_all_combinations_is_found(exits, count, asks_early, deciders, seed):
    world = World(seed, exits=exits, count=count, deciders=deciders)
    costs = world.costs(asks_early=asks_early)
    for name, requirement in REQUIREMENTS.items():
        expected, found = best_of(costs, requirement), world.best(requirement, asks_early=asks_early)
        assert (found is None) == (expected is None), name
        if expected is None:
            continue
        assert found.is_exact
        assert found.value == pytest.approx(expected), name
        cost = world.cost_of(found)
        assert requirement.value(cost) == pytest.approx(expected), name
        assert not requirement.misses(cost), name


def test_asking_from_an_exit_is_chosen_where_it_saves_the_rest_of_the_path():
    world = World(1, exits=1, count=60)
    world.exits = [replace(world.exits[0], confidence=np.where(world.exits[0].right, 0.9, 0.3))]
    requirement = Requirement(accuracy=0.85, optimise="latency_ms")
    late, early = world.best(requirement), world.best(requirement, asks_early=True)
    assert early.value > late.value
    assert [choice.ask_below for choice in early.exits] == [0.9]
    assert early.hard_eases == 0
    assert world.cost_of(early).latency_ms == pytest.approx(-early.value)


def test_the_percentile_is_that_of_the_samples_one_by_one():
    random = np.random.default_rng(4)
    counts = random.integers(0, 5, (6, 30)).astype(float)
    counts[0] += 90 - counts.sum(axis=0)
    milliseconds = random.uniform(0, 10, (6, 30))
    expected = [
        np.percentile(np.repeat(ms, samples.astype(int)), 95)
        for ms, samples in zip(milliseconds.T, counts.T, strict=True)
    ]
    np.testing.assert_allclose(percentile(milliseconds, counts), expected)


def test_three_exits_too_and_bounds_spare_most_combinations():
    world = World(5, exits=3, count=8)
    requirement = REQUIREMENTS["latency"]
    found = world.best(requirement)
    assert found.value == pytest.approx(best_of(world.costs(asks_early=False), requirement))
    combinations = math.prod(1 + len(np.unique(one.confidence)) for one in world.exits[:-1])
    assert found.steps < combinations / 2


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
    short = world.best(requirement, effort=Effort(whole.steps + 1))
    assert whole.is_exact
    assert not short.is_exact
    assert short.value == whole.value
    assert world.best(requirement, effort=Effort(0)) is None


def test_fewer_thresholds_are_a_part_of_all():
    world = World(2, exits=2, count=200)
    requirement, grid = REQUIREMENTS["latency"], Grid.of(world.exits, world.end.eases, most=3)
    few, every = world.best(requirement, grid=grid), world.best(requirement, asks_early=True)
    assert all(len(one) <= 3 for one in (*grid.thresholds, *grid.asks, *grid.hard_eases))
    around = grid.around(few.exits, few.decider, few.hard_eases, world.exits, world.end.eases[0], most=6)
    finer = world.best(requirement, grid=around)
    assert few.value <= finer.value <= every.value
    assert few.value < every.value
    confidences = [set(one.confidence) for one in world.exits]
    assert all(any(choice.threshold in one for one in confidences) for choice in few.exits)


def test_however_many_exits_there_are_a_search_takes_no_more_steps_than_it_may():
    world, requirement, effort = World(3, exits=8, count=150), Requirement(latency_ms=12.0), Effort(60)
    found = world.best(requirement, grid=Grid.of(world.exits, world.end.eases, most=5), effort=effort)
    assert effort.left == 0
    assert not found.is_exact
    assert not requirement.misses(world.cost_of(found))
    assert requirement.value(world.cost_of(found)) == pytest.approx(found.value)
