"""A base and a global subnet of one bundle: costs, the plan, and what cannot be kept."""

from __future__ import annotations

import numpy as np
import pytest

from device_sdk.errors import InfeasibleBudgetError, InputError, UsageError
from device_sdk.execution.workspace import Workspace
from device_sdk.policies.hybrid.choice import choose_hybrid, energy_costs, latency_costs, macs_costs
from device_sdk.policies.hybrid.joint_search import JointSettings
from device_sdk.supernet.cost import Power, Uplink
from device_sdk.supernet.deciders.port import hard
from device_sdk.supernet.plan import Ask


@pytest.fixture(scope="module")
def workspace(bundle, runtime):
    return Workspace(bundle, runtime)


@pytest.fixture(scope="module")
def samples(bundle):
    inputs = np.random.default_rng(0).normal(0, 1, (60, *bundle.manifest.cut_points[0].tensors[0].shape))
    return inputs.astype(np.float32), np.arange(60) % len(bundle.manifest.task.class_names)


def choose(workspace, slow_profile, samples, limit, **settings):
    bundle = workspace.supernet
    costs = macs_costs(bundle)
    return choose_hybrid(
        workspace,
        ("tiny", "d" * 64),
        slow_profile.cost_model(),
        [bundle.original],
        *samples,
        limit * costs.base(bundle.original),
        costs,
        JointSettings(generations=2, children=3, **settings),
    )


def test_the_plan_asks_the_server_for_the_global_subnet_about_the_share_that_the_limit_allows(
    workspace, slow_profile, samples
):
    choice = choose(workspace, slow_profile, samples, 1.4)
    assert isinstance(choice.plan.hard, Ask)
    assert choice.plan.subnet == choice.pair.base
    path = ",".join(map(str, choice.pair.global_.edges))
    assert choice.plan.hard.server.model == f"tiny@{path}:images"
    assert choice.answered > 1
    workspace.supernet.check_plan(choice.plan)
    costs = macs_costs(workspace.supernet)
    expected = costs.base(choice.pair.base) + choice.pair.sent * costs.global_(choice.pair.global_)
    assert choice.pair.cost == pytest.approx(expected)


def test_everything_is_sent_where_the_limit_allows_it(workspace, slow_profile, samples):
    choice = choose(workspace, slow_profile, samples, 10.0)
    assert choice.pair.sent == 1.0
    assert hard(choice.plan.hard.decider, np.eye(3, dtype=np.float32) * 50).all()


def test_a_limit_that_no_base_keeps_names_the_cheapest(workspace, slow_profile, samples):
    with pytest.raises(InfeasibleBudgetError, match="the cheapest base takes"):
        choose(workspace, slow_profile, samples, 1e-6)


def test_labels_that_are_not_the_samples_are_refused(workspace, slow_profile, samples):
    with pytest.raises(InputError, match="60 samples and 59 labels"):
        choose(workspace, slow_profile, (samples[0], samples[1][:-1]), 1.0)


def test_costs_count_the_way_to_the_server(slow_profile, bundle):
    costs, original = slow_profile.cost_model(), bundle.supernet.original
    uplink = Uplink(8.0, round_trip_ms=5.0)
    here_ms = costs.latency_ms(original)
    found = latency_costs(costs, costs, uplink, input_bytes=1000)
    assert found.base(original) == here_ms
    assert found.global_(original) == pytest.approx(here_ms + 5.0 + 1.0)
    power = Power(active_w=2.0, radio_w=3.0, waiting_w=1.0)
    found = energy_costs(costs, costs, uplink, power, input_bytes=1000)
    assert found.base(original) == pytest.approx(2 * here_ms)
    assert found.global_(original) == pytest.approx(3 * 6.0 + here_ms)
    with pytest.raises(UsageError, match="power"):
        energy_costs(costs, costs, uplink, None, input_bytes=1000)
