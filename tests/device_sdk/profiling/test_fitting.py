from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.profiling.fitting import MemoryFit, fit_latency, fit_line, fit_memory
from device_sdk.random_source import SplitMix64
from device_sdk.supernet.cost import CostModel, EdgeCost
from device_sdk.supernet.paths import sample_uniformly
from device_sdk.supernet.plan import Edge, Subnet


def on_a_line(sums_ms, *, scale, offset_ms):
    return sums_ms, [scale * total + offset_ms for total in sums_ms]


@given(
    sums_ms=st.lists(st.floats(0.1, 100), min_size=2, max_size=12).filter(lambda s: max(s) - min(s) > 0.06 * max(s)),
    scale=st.floats(0.3, 2.0),
    offset_share=st.floats(-0.5, 2.0),
)
def test_the_line_recovers_an_exact_line(sums_ms, scale, offset_share):
    offset_ms = offset_share * scale * min(sums_ms)
    fitted = fit_line(*on_a_line(sums_ms, scale=scale, offset_ms=offset_ms))
    predicted = [fitted[0] * total + fitted[1] for total in sums_ms]
    assert fitted == pytest.approx((scale, offset_ms), rel=1e-4, abs=1e-4 * scale * max(sums_ms))
    assert predicted == pytest.approx([scale * total + offset_ms for total in sums_ms], rel=1e-6)


@pytest.mark.parametrize("sums_ms", [[2.0], [2.0, 2.0, 2.0], [2.0, 2.05, 2.09]])
def test_with_too_little_to_tell_them_apart_there_is_no_offset(sums_ms):
    assert fit_line(*on_a_line(sums_ms, scale=0.75, offset_ms=0.0)) == (pytest.approx(0.75), 0.0)


def test_without_any_subnet_latencies_are_sums_of_blocks_and_with_one_it_sets_the_scale(elastic_supernet):
    supernet = elastic_supernet(3)
    blocks_ms = {edge: 1.0 + number for number, edge in enumerate(supernet.edges)}
    plain = fit_latency(supernet, blocks_ms, [], [])
    assert (plain.scale, plain.offset_ms, set(plain.factors.values()), plain.changes_ms) == (1.0, 0.0, {1.0}, {})
    total_ms = sum(blocks_ms[edge] for edge in supernet.original.edges)
    one = fit_latency(supernet, blocks_ms, [supernet.original], [0.7 * total_ms])
    assert (one.scale, one.offset_ms) == pytest.approx((0.7, 0.0))
    assert list(one.factors.values()) == pytest.approx([1.0] * len(blocks_ms))


def test_a_line_that_falls_is_not_believed():
    assert fit_line([1.0, 2.0], [4.0, 1.0]) == (pytest.approx(np.median([4.0, 0.5])), 0.0)


def test_predictions_are_above_zero_for_everything_that_was_measured():
    scale, offset_ms = fit_line([1.0, 2.0, 3.0], [0.001, 3.0, 3.1])
    assert scale > 0
    assert all(scale * total + offset_ms > 0 for total in (1.0, 2.0, 3.0))


def model_of(blocks_ms, fit):
    costs = {edge: EdgeCost(fit.factors[edge] * time, 0.0, 0, 0) for edge, time in blocks_ms.items()}
    return CostModel(costs, scale=fit.scale, offset_ms=fit.offset_ms, entry_change_ms=fit.changes_ms)


def drawn(supernet, count, *, seed):
    return list(dict.fromkeys(sample_uniformly(supernet, count=count, random=SplitMix64(seed))))


def errors(supernet, blocks_ms, truth_ms, *, fitted=24, noise=0.0):
    """Relative errors on subnets that were not fitted, of subnets that take ``truth_ms`` and noise."""
    random = np.random.default_rng(0)
    subnets = drawn(supernet, fitted, seed=1)
    measured = [truth_ms(one) * (1 + noise * random.standard_normal()) for one in subnets]
    model = model_of(blocks_ms, fit_latency(supernet, blocks_ms, subnets, measured))
    return np.array([model.latency_ms(one) / truth_ms(one) - 1 for one in drawn(supernet, 60, seed=2)]), model


def test_what_single_edges_save_in_a_composed_graph_is_found(elastic_supernet):
    """Each edge saves something of its own, up to a tenth; measured with an error of one percent."""
    supernet, random = elastic_supernet(10), np.random.default_rng(3)
    blocks_ms = {edge: random.uniform(0.5, 1.5) for edge in supernet.edges}
    shares = {edge: time * random.uniform(0.7, 0.9) for edge, time in blocks_ms.items()}

    def truth_ms(subnet):
        return 0.3 + sum(shares[edge] for edge in subnet.edges)

    wrong, _ = errors(supernet, blocks_ms, truth_ms, noise=0.01)
    assert np.median(np.abs(wrong)) < 0.015
    assert np.percentile(np.abs(wrong), 95) < 0.04


@pytest.fixture
def mixed(build_supernet):
    """A chain of eight blocks with two renditions each, of which int8 takes 0.6 of the time alone."""
    supernet = build_supernet(8, [(2, 4), (4, 7)], int8=[*(f"o{i}" for i in range(8)), "m2_4", "m4_7"])
    return supernet, {edge: 1.0 if edge.rendition == "fp32" else 0.6 for edge in supernet.edges}


def test_what_a_change_of_rendition_costs_is_found_and_is_no_edges_fault(mixed):
    supernet, blocks_ms = mixed

    def truth_ms(subnet):
        changes = sum(before.rendition != after.rendition for before, after in pairwise(subnet.edges))
        return sum(1.0 if edge.rendition == "fp32" else 0.45 for edge in subnet.edges) + 0.15 * changes

    wrong, model = errors(supernet, blocks_ms, truth_ms)
    assert np.abs(wrong).max() < 0.02
    assert model.change_ms(Edge("o0"), Edge("o1", "int8")) == pytest.approx(0.15, rel=0.1)
    assert model.change_ms(Edge("o0"), Edge("o1")) == 0
    whole = {name: Subnet(tuple(Edge(f"o{i}", name) for i in range(8))) for name in ("fp32", "int8")}
    assert model.latency_ms(whole["int8"]) == pytest.approx(8 * 0.45, rel=0.05)
    assert model.latency_ms(whole["fp32"]) == pytest.approx(8, rel=0.05)


def test_a_change_never_has_a_negative_price(mixed):
    supernet, blocks_ms = mixed

    def truth_ms(subnet):
        changes = sum(before.rendition != after.rendition for before, after in pairwise(subnet.edges))
        return 10 + sum(blocks_ms[edge] for edge in subnet.edges) - 0.1 * changes

    _, model = errors(supernet, blocks_ms, truth_ms)
    assert not model.entry_change_ms


@pytest.mark.parametrize("factor", [0.7, 1.5, 3, 1000])
def test_one_outlier_changes_next_to_nothing(elastic_supernet, factor):
    supernet = elastic_supernet(6)
    blocks_ms = dict.fromkeys(supernet.edges, 1.0)
    subnets = drawn(supernet, 24, seed=1)
    measured = [0.5 + 0.8 * len(one.edges) for one in subnets]
    measured[3] *= factor
    model = model_of(blocks_ms, fit_latency(supernet, blocks_ms, subnets, measured))
    for subnet in drawn(supernet, 40, seed=2):
        assert model.latency_ms(subnet) == pytest.approx(0.5 + 0.8 * len(subnet.edges), rel=0.03)


def memory_costs(supernet):
    random = np.random.default_rng(5)
    return {edge: EdgeCost(1, 1, int(random.integers(10**5, 10**6)), 1000) for edge in supernet.edges}


def test_peaks_that_follow_the_weights_are_recovered(elastic_supernet):
    supernet = elastic_supernet(5)
    costs = memory_costs(supernet)
    subnets = drawn(supernet, 20, seed=1)
    peaks = [round(5 * sum(costs[edge].resident_bytes for edge in one.edges)) + 700_000 + 1000 for one in subnets]
    fitted = fit_memory(costs, subnets, peaks)
    assert fitted.scale == pytest.approx(5, rel=1e-3)
    assert fitted.offset_bytes == pytest.approx(700_000, rel=1e-2)
    assert fit_memory(costs, subnets, [None, *peaks[1:]]).scale == pytest.approx(5, rel=1e-3)


def test_memory_is_never_predicted_below_what_must_be_there(elastic_supernet):
    supernet = elastic_supernet(4)
    subnets = drawn(supernet, 20, seed=1)
    for peaks in ([1] * len(subnets), [5 * 10**6 - 10**5 * number for number in range(len(subnets))]):
        fitted = fit_memory(memory_costs(supernet), subnets, peaks)
        assert fitted.scale >= 1
        assert fitted.offset_bytes >= 0


def test_without_any_measured_peak_the_lower_bound_stands(elastic_supernet):
    supernet = elastic_supernet(3)
    assert fit_memory(memory_costs(supernet), [supernet.original], [None]) == MemoryFit(1.0, 0)


def test_a_single_peak_gives_a_factor(elastic_supernet):
    supernet = elastic_supernet(3)
    costs = memory_costs(supernet)
    weights = sum(costs[edge].resident_bytes for edge in supernet.original.edges)
    fitted = fit_memory(costs, [supernet.original], [3 * weights + 1000])
    assert (fitted.scale, fitted.offset_bytes) == (pytest.approx(3), 0)
