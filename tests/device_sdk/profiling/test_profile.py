from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.errors import RuntimeFailedError
from device_sdk.execution.self_test import golden_inputs
from device_sdk.graph import Edge, Subnet
from device_sdk.profiling.profile import MeasuredSubnet, fit, measure_subnets, profile
from device_sdk.progress import SilentProgress

NANOSECONDS = 1_000_000


class ClockedRuntime:
    """A runtime whose runs take exactly what a table says, on a clock of its own. Implements the runtime port.

    A stretch of one block takes the time of its fragment, a longer one 0.8 of the sum and 0.05 ms.
    """

    identity = "clocked-1"

    def __init__(self, times_ms):
        self._times_ms = times_ms  # by the sha256 of the fragment
        self.now_ns = 0
        self.open = 0
        self.shapes = set()  # of the inputs of all runs

    def clock(self):
        return self.now_ns

    def load(self, stretch):
        names = [hashlib.sha256(fragment).hexdigest() for fragment in stretch.fragments]
        times = [self._times_ms[name] for name in names if name in self._times_ms]
        self.open += 1
        return ClockedStretch(self, times[0] if len(times) == 1 else 0.8 * sum(times) + 0.05)


class ClockedStretch:
    def __init__(self, runtime, latency_ms):
        self._runtime, self._latency_ms = runtime, latency_ms

    def run(self, inputs):
        self._runtime.now_ns += round(self._latency_ms * NANOSECONDS)
        self._runtime.shapes.add(tuple(array.shape for array in inputs))
        return list(inputs)

    def close(self):
        self._runtime.open -= 1


class FailingRuntime(ClockedRuntime):
    def load(self, stretch):
        raise RuntimeFailedError("no room")


@pytest.fixture(scope="module")
def times_ms(bundle):
    """0.5 ms for the first rendition, 0.75 ms for the next, and so on, by edge."""
    return {edge: 0.5 + 0.25 * number for number, edge in enumerate(bundle.supernet.edges)}


@pytest.fixture(scope="module")
def clocked(bundle, times_ms):
    return ClockedRuntime({bundle.supernet.rendition(edge).blob: time for edge, time in times_ms.items()})


@pytest.fixture(scope="module")
def measured(bundle, clocked):
    """The profile of the tiny bundle on the clocked runtime."""
    return profile(bundle, clocked, progress=SilentProgress(), clock=clocked.clock)


def test_a_profile_holds_every_edge_and_the_line_through_whole_subnets(measured, clocked, times_ms):
    assert {one.edge: one.cost.latency_ms for one in measured.edges} == times_ms
    assert {one.edge: one.cost.p95_latency_ms for one in measured.edges} == times_ms
    assert (measured.scale, measured.offset_ms) == pytest.approx((0.8, 0.05), rel=1e-5)
    assert clocked.open == 0


def test_its_cost_model_predicts_every_subnet(measured, times_ms):
    model = measured.cost_model()
    subnet = Subnet((Edge("o0"), Edge("o1", "int8"), Edge("m2-4"), Edge("o4")))
    expected = 0.8 * sum(times_ms[edge] for edge in subnet.edges) + 0.05
    assert model.latency_ms(subnet) == pytest.approx(expected, rel=1e-5)


def test_the_original_is_measured_first_and_every_fitted_subnet_once(measured, bundle):
    fitted = [one.subnet for one in measured.fitted]
    assert fitted[0] == bundle.supernet.original
    assert fitted[1] == Subnet((Edge("o0"), Edge("m1-4"), Edge("o4")))  # the cheapest
    assert len(set(fitted)) == len(fitted) == 8  # all there are
    assert measured.original_ms == measured.fitted[0].measured_ms


def test_memory_is_never_below_the_weights_and_the_tensors_at_the_ends(measured, bundle):
    for one in measured.edges:
        block = bundle.supernet.block(one.edge.block)
        ends = [bundle.supernet.cut_points[index] for index in (block.start, block.end)]
        assert one.cost.resident_bytes >= bundle.supernet.rendition(one.edge).size_bytes
        assert one.cost.working_bytes >= sum(cut.nbytes for cut in ends)


def test_a_profile_is_valid_for_its_bundle_and_runtime_only(measured, bundle, clocked, runtime):
    assert measured.valid_for(bundle, clocked)
    assert not measured.valid_for(bundle, runtime)


def test_a_runtime_that_fails_says_so(bundle):
    with pytest.raises(RuntimeFailedError, match="no room"):
        profile(bundle, FailingRuntime({}), progress=SilentProgress())


def test_a_real_profile_has_plausible_numbers(bundle, runtime):
    measured = profile(bundle, runtime, progress=SilentProgress())
    model = measured.cost_model()
    assert {one.edge for one in measured.edges} == set(bundle.supernet.edges)
    for one in measured.edges:
        assert 0 < one.cost.latency_ms <= one.cost.p95_latency_ms < 100
        assert one.cost.resident_bytes + one.cost.working_bytes < 50_000_000
    assert measured.scale > 0
    for one in measured.fitted:
        assert model.latency_ms(one.subnet) > 0
    assert 0 < measured.original_ms < 100
    assert model.edge_costs[Edge("m1-4")].latency_ms < model.edge_costs[Edge("o1")].latency_ms


def test_whole_subnets_are_timed_in_the_order_asked_for_and_freed(bundle, clocked, times_ms):
    subnets = [Subnet((Edge("o0"), Edge("m1-4"), Edge("o4"))), bundle.supernet.original]
    latencies = measure_subnets(bundle, clocked, subnets, rounds=3, clock=clocked.clock)
    expected = [0.8 * sum(times_ms[edge] for edge in subnet.edges) + 0.05 for subnet in subnets]
    assert [one.median_ms for one in latencies] == pytest.approx(expected, rel=1e-5)
    assert clocked.open == 0


def measured_on_a_line(sums_ms, *, scale, offset_ms):
    return [MeasuredSubnet(Subnet(()), total, scale * total + offset_ms) for total in sums_ms]


@given(
    sums_ms=st.lists(st.floats(0.1, 100), min_size=2, max_size=12).filter(lambda s: max(s) - min(s) > 0.06 * max(s)),
    scale=st.floats(0.3, 2.0),
    offset_share=st.floats(-0.5, 2.0),
)
def test_fit_recovers_an_exact_line(sums_ms, scale, offset_share):
    offset_ms = offset_share * scale * min(sums_ms)
    fitted = fit(measured_on_a_line(sums_ms, scale=scale, offset_ms=offset_ms))
    predicted = [fitted[0] * total + fitted[1] for total in sums_ms]
    assert fitted == pytest.approx((scale, offset_ms), rel=1e-4, abs=1e-4 * scale * max(sums_ms))
    assert predicted == pytest.approx([scale * total + offset_ms for total in sums_ms], rel=1e-6)


@pytest.mark.parametrize("sums_ms", [[2.0], [2.0, 2.0, 2.0], [2.0, 2.05, 2.09]])
def test_with_too_little_to_tell_them_apart_there_is_no_offset(sums_ms):
    assert fit(measured_on_a_line(sums_ms, scale=0.75, offset_ms=0.0)) == (pytest.approx(0.75), 0.0)


def test_a_line_that_falls_is_not_believed():
    falling = [MeasuredSubnet(Subnet(()), 1.0, 4.0), MeasuredSubnet(Subnet(()), 2.0, 1.0)]
    assert fit(falling) == (pytest.approx(np.median([4.0, 0.5])), 0.0)


def test_predictions_are_above_zero_for_everything_that_was_measured():
    steep = [
        MeasuredSubnet(Subnet(()), 1.0, 0.001),
        MeasuredSubnet(Subnet(()), 2.0, 3.0),
        MeasuredSubnet(Subnet(()), 3.0, 3.1),
    ]
    scale, offset_ms = fit(steep)
    assert scale > 0
    assert all(scale * one.blocks_ms + offset_ms > 0 for one in steep)


def test_everything_is_timed_on_the_golden_inputs_of_its_start(measured, bundle, clocked):
    assert clocked.shapes == {
        tuple(array.shape for array in golden_inputs(cut, seed=0, batch=1)) for cut in bundle.supernet.cut_points[:-1]
    }
