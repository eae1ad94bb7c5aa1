from __future__ import annotations

import numpy as np
import pytest

from device_sdk.errors import BudgetError, InfeasibleBudgetError
from device_sdk.policies.costs.evidence import Evidence, Network
from device_sdk.policies.costs.expected_cost import expected_cost
from device_sdk.policies.planning.planner import Planner, PromisedPlans, Trial
from device_sdk.supernet.cost import CostModel, EdgeCost, Uplink
from device_sdk.supernet.goal import Requirement
from device_sdk.supernet.paths import enumerate_subnets
from device_sdk.supernet.plan import RemoteRef

SERVER, CLASSES = RemoteRef("big"), 3
NETWORK = Network(uplink=Uplink(10.0, 2.0), answer_ms={SERVER: 1.0}, input_bytes=500)


@pytest.fixture
def draw(elastic_supernet):
    """Planners with promises, of so many samples that choose and that test; and what a plan's accuracy really is."""
    supernet = elastic_supernet(3)
    subnet = supernet.original
    costs = CostModel({edge: EdgeCost(1.0, 1.0, 100, 10) for edge in supernet.edges})

    def evidence(random, count: int) -> Evidence:
        labels = random.integers(0, CLASSES, count)

        def logits(skill: float):
            found = random.normal(size=(count, CLASSES))
            found[np.arange(count), labels] += skill
            return found.astype(np.float32)

        return Evidence(labels, {subnet: logits(1.5)}, servers={SERVER: logits(4.0)})

    everything = evidence(np.random.default_rng(99), 50_000)

    def made(seed: int, choosing: int, testing: int) -> PromisedPlans:
        random = np.random.default_rng(seed)
        chosen_on = evidence(random, choosing)
        planner = Planner(supernet, chosen_on, costs, [subnet], servers=[SERVER])
        seen, held = (Trial(supernet, some, costs) for some in (chosen_on, evidence(random, testing)))
        return PromisedPlans(planner, seen, held)

    return made, lambda plan: expected_cost(supernet, plan, everything, costs).accuracy


REQUIREMENT = Requirement(accuracy=0.9, certainty=0.9, coverage=1.0, optimise="latency_ms")


@pytest.mark.slow
def test_the_promised_accuracy_holds_on_new_samples_as_often_as_stated(draw):
    made, true_accuracy = draw
    kept = [
        true_accuracy(made(seed, 100, 150).nearest(REQUIREMENT, NETWORK).plan) >= 0.9
        for seed in range(60)
        if not made(seed, 100, 150).nearest(REQUIREMENT, NETWORK).misses
    ]
    assert np.mean(kept) >= 0.9 - 2 * (0.9 * 0.1 / len(kept)) ** 0.5
    assert len(kept) > 40


def test_a_promise_costs_latency_and_says_what_it_rests_on(draw):
    planner = draw[0](1, 300, 300)
    without = planner.best(Requirement(accuracy=0.9, coverage=1.0, optimise="latency_ms"), NETWORK)
    choice = planner.best(REQUIREMENT, NETWORK)
    assert without.promise is None
    assert choice.cost.latency_ms >= without.cost.latency_ms
    assert choice.promise.samples == 300
    assert choice.promise.least_accuracy >= 0.9


@pytest.fixture
def rivals(elastic_supernet):
    """A slow subnet and a quick one that is right for ``kept`` of what the other is; with ``max_drop`` between them."""
    supernet = elastic_supernet(3)
    slow = supernet.original
    quick = min(enumerate_subnets(supernet, limit=50), key=lambda one: len(one.edges))
    costs = CostModel({edge: EdgeCost(1.0, 1.0, 100, 10) for edge in supernet.edges})

    def made(kept: float, count: int, max_drop: float) -> PromisedPlans:
        random = np.random.default_rng(1)

        def trial(count: int) -> Trial:
            labels = random.integers(0, CLASSES, count)
            right = random.uniform(size=count) < 0.8
            also = right & (random.uniform(size=count) < kept)
            answers = [np.where(one, labels, (labels + 1) % CLASSES) for one in (right, also)]
            ends = {
                one: np.eye(CLASSES, dtype=np.float32)[own] for one, own in zip((slow, quick), answers, strict=True)
            }
            return Trial(supernet, Evidence(labels, ends), costs, (slow, max_drop))

        seen, held = trial(count), trial(count)
        return PromisedPlans(Planner(supernet, seen.evidence, costs, [slow, quick]), seen, held)

    return made, slow, quick


def test_a_drop_is_promised_in_pairs_with_the_network_that_it_is_measured_from(rivals):
    made, slow, quick = rivals
    wanted = Requirement(optimise="latency_ms", accuracy=0.7, certainty=0.9, coverage=1.0)
    assert made(1.0, 200, 0.02).best(wanted).plan.subnet == quick  # the accuracy alone would be unsure by 4 points
    assert made(0.97, 200, 0.02).best(wanted).plan.subnet == slow
    assert made(0.97, 200, 0.02).best(wanted).promise.wrong == 0


def test_what_a_drop_is_measured_from_needs_no_test(rivals):
    made, slow, _ = rivals
    wanted = Requirement(optimise="latency_ms", accuracy=0.7, certainty=0.9, coverage=1.0)
    assert made(0.5, 10, 0.02).best(wanted).plan.subnet == slow


def test_samples_that_choose_do_not_promise(draw):
    with pytest.raises(InfeasibleBudgetError, match="accuracy 0"):
        draw[0](1, 300, 0).best(REQUIREMENT, NETWORK)


def test_an_accuracy_that_too_few_samples_prove_is_not_promised(draw):
    planner = draw[0](1, 300, 15)
    with pytest.raises(InfeasibleBudgetError, match="accuracy 0"):
        planner.best(REQUIREMENT, NETWORK)
    assert planner.nearest(REQUIREMENT, NETWORK).misses["accuracy"] < 0.9


def test_limits_that_no_plan_keeps_are_missed_with_a_promise_too(draw):
    choice = draw[0](1, 200, 200).nearest(
        Requirement(accuracy=0.9, certainty=0.9, latency_ms=1e-6, optimise="latency_ms"), NETWORK
    )
    assert "latency_ms" in choice.misses


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        ({"accuracy": 0.9, "certainty": 1.0}, "certainty is 1"),
        ({"peak_bytes": 5, "certainty": 0.9}, "accuracy below 1"),
        ({"accuracy": 1.0, "certainty": 0.9}, "accuracy below 1"),
    ],
)
def test_promises_that_make_no_sense_are_refused(limits, says):
    with pytest.raises(BudgetError, match=says):
        Requirement(**limits)
