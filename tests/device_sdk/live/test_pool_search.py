from __future__ import annotations

import pytest

from device_sdk.data.preprocessing import prepare
from device_sdk.errors import InfeasibleBudgetError
from device_sdk.execution.workspace import Workspace
from device_sdk.live.pool_search import PoolSearch
from device_sdk.policies.gathering import AdaptationSettings, stand_in_labels
from device_sdk.progress import SilentProgress
from device_sdk.search.nearby import latency_range_ms
from device_sdk.supernet.cost import Budget


@pytest.fixture
def inputs(tiny_bundle, bundle):
    return prepare(tiny_bundle.images[:20], bundle.manifest.preprocessing, input_shape=(3, 20, 20))


@pytest.fixture
def search(bundle, runtime, slow_profile, tiny_bundle, inputs):
    labels = tiny_bundle.labels[:20]
    return PoolSearch(Workspace(bundle, runtime), slow_profile.cost_model(), inputs, labels, AdaptationSettings())


def test_the_pool_reaches_from_the_fastest_subnet_to_the_slowest(search, bundle, slow_profile):
    found = search.fill(Budget(latency_ms=150.0), time_limit_s=60.0, progress=SilentProgress())
    latencies = [one.cost.latency_ms for one in found]
    fastest_ms, slowest_ms = latency_range_ms(bundle.supernet, slow_profile.cost_model())
    assert (min(latencies), max(latencies)) == (fastest_ms, slowest_ms)
    assert any(one.subnet == bundle.supernet.original for one in found)


def test_a_memory_limit_leaves_rungs_out_and_ends_nothing(search):
    budget = Budget(latency_ms=150.0, memory_mb=4.5)
    found = search.fill(budget, time_limit_s=60.0, progress=SilentProgress())
    assert any(budget.fits_memory(one.cost.peak_bytes) for one in found)


def test_a_search_at_one_budget_says_when_nothing_fits(search):
    arguments = {"time_limit_s": 60.0, "cancelled": lambda: False, "progress": SilentProgress()}
    assert any(one.cost.latency_ms <= 60.0 for one in search.search(Budget(latency_ms=60.0), **arguments))
    with pytest.raises(InfeasibleBudgetError):
        search.search(Budget(latency_ms=1.0), **arguments)


def test_the_full_models_answers_stand_in_for_labels(bundle, runtime, inputs, tiny_bundle):
    found, _ = stand_in_labels(Workspace(bundle, runtime), inputs, batch=8, use_prior=False)
    assert found.tolist() == tiny_bundle.labels[:20].tolist()
