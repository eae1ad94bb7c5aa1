from __future__ import annotations

import math
import random
from dataclasses import replace

import msgspec
import pytest

from device_sdk.errors import BudgetError, InfeasibleBudgetError
from device_sdk.policies.confirmation import Confirmation
from device_sdk.profiling.timing import Latency, Ratio
from device_sdk.search.port import Candidate
from device_sdk.supernet.cost import Budget, Cost, CostModel, EdgeCost
from device_sdk.supernet.plan import Edge, Plan, Subnet

FULL = Subnet((Edge("full"),))
TRUE_MS = {"full": 10.0, "a": 7.0, "b": 5.0, "c": 4.0, "d": 2.0}  # when nothing else runs
ACCURACY = {"full": 0.9, "a": 0.85, "b": 0.8, "c": 0.7, "d": 0.4}


def subnet(name: str) -> Subnet:
    return Subnet((Edge(name),))


class Device:
    """Measures with noise; ``load`` slows everything down, ``noise`` is the relative error of one measurement."""

    def __init__(
        self, *, load: float = 1.0, noise: float = 0.003, seed: int = 0, tail: float = 1.0, **other_ms: float
    ) -> None:
        self.load, self.noise, self.tail, self.true_ms = load, noise, tail, TRUE_MS | other_ms
        self.random, self.measured = random.Random(seed), []

    def __call__(self, subnets, as_served):
        self.measured += [one.edges[0].block for one in subnets]
        found = []
        for one in subnets:
            ms = self.true_ms[one.edges[0].block] * self.load * math.exp(self.random.gauss(0, self.noise))
            ratio = self.true_ms[one.edges[0].block] / self.true_ms[subnets[0].edges[0].block]
            ratio *= math.exp(self.random.gauss(0, self.noise))
            tail_ms = ms * self.tail if as_served else None
            found.append(
                Latency(
                    median_ms=ms,
                    p95_ms=ms,
                    p25_ms=ms,
                    p75_ms=ms,
                    runs=9,
                    ratio=Ratio(ratio, self.noise),
                    other_ms=tail_ms,
                )
            )
        return found


def costs(**wrong: float) -> CostModel:
    """Predictions that are right, but for a factor by name."""
    latencies = {name: ms * wrong.get(name, 1.0) for name, ms in TRUE_MS.items()}
    return CostModel({Edge(name): EdgeCost(ms, ms, 10, 10) for name, ms in latencies.items()})


def confirmation(device: Device, budget: Budget, *, model: CostModel | None = None, original_ms: float = 10.0):
    return Confirmation(FULL, model or costs(), budget, device, original_ms=original_ms, clock=lambda: 0.0)


def pool(model: CostModel | None = None, names: str = "abcd") -> list[Candidate]:
    model = model or costs()
    return [Candidate(Plan(subnet(name)), model.cost(subnet(name)), ACCURACY[name]) for name in names]


@pytest.mark.parametrize(("budget_ms", "name"), [(7.6, "a"), (5.6, "b"), (4.6, "c"), (3.0, "d")])
@pytest.mark.parametrize("load", [1.0, 1.7, 3.0])
def test_load_does_not_change_the_choice(budget_ms, name, load):
    for seed in range(20):
        device = Device(load=load, noise=0.003 if load == 1 else 0.02, seed=seed)
        found = confirmation(device, Budget(latency_ms=budget_ms)).best(pool())
        assert found.candidate.subnet == subnet(name)
        assert found.measured_ms == pytest.approx(TRUE_MS[name], rel=0.1)
        assert found.slowdown == pytest.approx(load, rel=0.15)


@pytest.mark.parametrize("wrong", [{"b": 0.7}, {"b": 1.12}, {"a": 0.6, "b": 1.2, "c": 0.8, "d": 1.5}])
def test_wrong_predictions_do_not_change_the_choice(wrong):
    model = costs(**wrong)
    found = confirmation(Device(), Budget(latency_ms=5.2), model=model).best(pool(model))
    assert found.candidate.subnet == subnet("b")
    assert found.probability > 0.99


def test_only_candidates_that_may_matter_are_measured():
    device = Device()
    confirmation(device, Budget(latency_ms=5.2)).best(pool())
    assert len(device.measured) <= 8
    assert "a" not in device.measured


def test_the_search_aims_at_what_really_fits():
    slower_than_predicted = costs(b=0.8, c=0.8, d=0.8)
    aimed = confirmation(Device(), Budget(latency_ms=5.0), model=slower_than_predicted)
    rungs = [subnet("b"), subnet("c")]
    budget = aimed.aim(rungs, rungs)
    assert budget.latency_ms == pytest.approx(5.0 * 0.8, rel=0.05)
    assert confirmation(Device(), Budget(memory_mb=1.0)).aim(rungs, rungs) == Budget(memory_mb=1.0)


def test_the_rung_of_the_largest_input_that_fits_corrects_the_aim():
    """Only its rendition is slower than predicted; a rung over the budget does not count."""
    aimed = confirmation(Device(), Budget(latency_ms=5.1), model=costs(a=0.5, b=0.8))
    budget = aimed.aim([subnet("c"), subnet("b"), subnet("a")], [subnet("a"), subnet("b"), subnet("c")])
    assert budget.latency_ms == pytest.approx(5.1 * 0.8, rel=0.02)


def test_without_a_rung_near_the_budget_the_search_aims_at_the_budget():
    assert confirmation(Device(), Budget(latency_ms=5.0)).aim([], []).latency_ms == pytest.approx(5.0, rel=0.03)


def test_the_search_aims_lower_where_the_best_of_its_finds_is_too_slow_and_the_others_are_much_worse():
    """Predictions of what the search proposes are low, those of the rungs not."""
    model = costs(b=0.8)
    aimed = confirmation(Device(), Budget(latency_ms=4.2), model=model)
    near = [replace(one, accuracy=0.79) if one.subnet == subnet("c") else one for one in pool(model, "bcd")]
    assert aimed.aim_lower(near, Budget(latency_ms=4.2)) is None  # c keeps it and is about as good as b
    lower = aimed.aim_lower(pool(model, "bd"), Budget(latency_ms=4.2))
    assert lower.latency_ms == pytest.approx(4.2 * 0.8, rel=0.02)
    assert aimed.aim_lower(pool(model, "d"), lower) is None
    assert aimed.aim_lower([], lower) is None


def test_without_a_latency_budget_there_is_no_lower_aim():
    device = Device()
    aimed = confirmation(device, Budget(memory_mb=1.0))
    before = len(device.measured)
    assert aimed.aim_lower(pool(), Budget(memory_mb=1.0)) is None
    assert aimed.aim_lower(pool(), Budget(latency_ms=5.0)) is None
    assert len(device.measured) == before


def test_between_equal_chances_the_more_accurate_is_taken_never_the_last_one_left():
    """All lie around the budget and measure so badly that nothing is ever sure."""
    for seed in range(20):
        device = Device(noise=0.1, seed=seed, a=5.05, b=5.0, c=4.95)
        found = confirmation(device, Budget(latency_ratio=0.5)).best(pool(names="abc"))
        assert 0.1 < found.probability <= 1.0
        if found.probability < 0.5:
            assert len(device.measured) > 15, "measured again and again before it was taken"


def test_candidates_that_are_all_slower_than_predicted_do_not_use_up_the_measurements():
    """Twenty near copies are predicted to fit and do not; a slightly less accurate one does, and is taken."""
    shared, own_ms = Edge("shared"), {f"copy{place}": 1.0 for place in range(20)}
    model = CostModel({edge: EdgeCost(ms, ms, 10, 10) for edge, ms in {shared: 4.0, Edge("full"): 10.0}.items()})
    model = msgspec.structs.replace(
        model,
        edge_costs={**model.edge_costs, **{Edge(name): EdgeCost(ms, ms, 10, 10) for name, ms in own_ms.items()}}
        | {Edge("next"): EdgeCost(4.6, 4.6, 10, 10), Edge("small"): EdgeCost(2.0, 2.0, 10, 10)},
    )
    copies = [Candidate(Plan(one := Subnet((shared, Edge(name)))), model.cost(one), 0.85) for name in own_ms]
    others = [
        Candidate(Plan(one := subnet(name)), model.cost(one), accuracy)
        for name, accuracy in {"next": 0.84, "small": 0.4}.items()
    ]
    device = Device(shared=5.9, next=4.7, small=2.2)
    found = confirmation(device, Budget(latency_ms=5.1), model=model).best([*copies, *others])
    assert found.candidate.subnet == subnet("next")
    assert device.measured.count("shared") <= 9


def test_one_that_surely_keeps_the_budget_is_preferred_to_one_that_may():
    for seed in range(20):
        found = confirmation(Device(noise=5e-4, seed=seed), Budget(latency_ms=7.0 / 1.02 * 1.003)).best(pool())
        assert found.candidate.subnet == subnet("b")
        assert found.probability > 0.9


def test_a_budget_that_nothing_keeps_names_the_nearest():
    with pytest.raises(InfeasibleBudgetError, match=r"no subnet ran in 1\.5 ms; the fastest candidate took") as caught:
        confirmation(Device(), Budget(latency_ms=1.5)).best(pool())
    assert caught.value.nearest == ("d",)
    assert caught.value.nearest_latency_ms == pytest.approx(2.0, rel=0.05)
    with pytest.raises(InfeasibleBudgetError):
        confirmation(Device(), Budget(latency_ms=1.5)).require_chance(subnet("d"), 1)


def test_a_profile_that_promises_the_impossible_is_not_believed():
    with pytest.raises(InfeasibleBudgetError):
        confirmation(Device(), Budget(latency_ms=0.1), original_ms=0.01).best(pool())


def test_a_percentile_is_kept_by_slower_calls_than_the_median():
    device = Device(tail=1.3)
    found = confirmation(device, Budget(latency_ms=6.0, percentile=95.0)).best(pool())
    assert found.candidate.subnet == subnet("c")  # 5.2 ms; b has 6.5
    assert found.measured_ms == pytest.approx(5.2, rel=0.03)
    assert found.median_ms == pytest.approx(4.0, rel=0.03)


def test_a_ratio_refers_to_the_full_model_in_the_same_circumstances():
    found = confirmation(Device(load=2.0), Budget(latency_ratio=0.52))
    assert found.budget.latency_ms == pytest.approx(5.2, rel=0.03)
    assert found.best(pool()).candidate.subnet == subnet("b")


def test_without_a_latency_the_most_accurate_within_the_memory_is_measured_once():
    device = Device()
    found = confirmation(device, Budget(memory_mb=1.0)).best(pool())
    assert found.candidate.subnet == subnet("a")
    assert found.probability == 1.0
    with pytest.raises(BudgetError, match="the search was stopped before"):
        confirmation(device, Budget(memory_mb=1e-6)).best(pool())


def test_time_that_is_up_ends_the_measuring_with_the_best_guess():
    times = iter([0.0, 100.0, 200.0])
    late = Confirmation(FULL, costs(), Budget(latency_ms=5.5), Device(), original_ms=10.0, clock=lambda: next(times))
    assert late.best(pool()).candidate.subnet == subnet("b")


def test_the_full_model_itself_may_be_the_choice():
    everything = [*pool(), Candidate(Plan(FULL), Cost(latency_ms=10.0, peak_bytes=20), 0.9)]
    assert confirmation(Device(), Budget(latency_ms=12.0)).best(everything).candidate.subnet == FULL
