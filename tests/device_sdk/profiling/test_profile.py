from __future__ import annotations

import contextlib
import hashlib

import msgspec
import numpy as np
import pytest

from device_sdk.bundles.runnable import golden_inputs
from device_sdk.errors import MeasurementError, RuntimeFailedError, UsageError
from device_sdk.execution.workspace import Workspace
from device_sdk.profiling.profile import FORMAT, Profile, measure_subnets, profile
from device_sdk.profiling.stretches import Timing
from device_sdk.profiling.timing import current_conditions
from device_sdk.progress import SilentProgress
from device_sdk.supernet.plan import Edge, ExitChoice, Subnet

pytestmark = pytest.mark.alone

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
        self.gains_ms = {}  # by fragment: what composing it with others saves beyond that

    def clock(self):
        return self.now_ns

    waits_for_threads = False

    def taking_turns(self):
        return self

    def load(self, stretch):
        names = [hashlib.sha256(fragment).hexdigest() for fragment in stretch.fragments]
        times = [self._times_ms[name] for name in names if name in self._times_ms]
        self.open += 1
        gain = sum(self.gains_ms.get(name, 0.0) for name in names)
        latency_ms = times[0] if len(times) == 1 else 0.8 * sum(times) + 0.05 - gain
        return ClockedStretch(self, stretch.outputs, latency_ms)


class ClockedStretch:
    def __init__(self, runtime, outputs, latency_ms):
        self._runtime, self._outputs, self._latency_ms = runtime, outputs, latency_ms

    def run(self, inputs):
        self._runtime.now_ns += round(self._latency_ms * NANOSECONDS)
        self._runtime.shapes.add(tuple(array.shape for array in inputs))
        return [np.zeros((len(inputs[0]), *spec.shape), np.float32) for spec in self._outputs]

    def run_until(self, inputs, stop):
        return self.run(inputs)

    def close(self):
        self._runtime.open -= 1


class FailingRuntime(ClockedRuntime):
    waits_for_threads = False

    def taking_turns(self):
        return self

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
    return profile(Workspace(bundle, clocked), progress=SilentProgress(), clock=clocked.clock)


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


def test_an_exit_that_is_tried_costs_its_branch_and_the_overhead(measured):
    model = msgspec.structs.replace(measured, exit_overhead_ms=0.5).cost_model()
    choice = ExitChoice("x2-pooled", threshold=0.9)
    assert model.exit_latency_ms(choice) == model.exit_costs["x2-pooled", "fp32", ()].latency_ms + 0.5


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
        profile(Workspace(bundle, FailingRuntime({})), progress=SilentProgress())


def test_a_real_profile_has_plausible_numbers(bundle, runtime):
    measured = profile(Workspace(bundle, runtime), progress=SilentProgress())
    model = measured.cost_model()
    assert {one.edge for one in measured.edges} == set(bundle.supernet.edges)
    for one in measured.edges:
        assert 0 < one.cost.latency_ms <= one.cost.p95_latency_ms
        assert one.cost.resident_bytes + one.cost.working_bytes < 50_000_000
    assert measured.scale > 0
    for one in measured.fitted:
        assert model.latency_ms(one.subnet) > 0
    assert measured.original_ms > 0
    assert model.edge_costs[Edge("m1-4")].latency_ms < model.edge_costs[Edge("o1")].latency_ms


def test_whole_subnets_are_timed_in_the_order_asked_for_and_freed(bundle, clocked, times_ms):
    subnets = [Subnet((Edge("o0"), Edge("m1-4"), Edge("o4"))), bundle.supernet.original]
    latencies = measure_subnets(Workspace(bundle, clocked), subnets, Timing(rounds=3, clock=clocked.clock))
    expected = [0.8 * sum(times_ms[edge] for edge in subnet.edges) + 0.05 for subnet in subnets]
    assert [one.median_ms for one in latencies] == pytest.approx(expected, rel=1e-5)
    assert clocked.open == 0


def test_everything_is_timed_on_the_golden_inputs_of_its_start(measured, bundle, clocked):
    assert clocked.shapes == {
        tuple(array.shape for array in golden_inputs(cut, seed=0, batch=1)) for cut in bundle.supernet.cut_points[:-1]
    }


def test_a_batch_is_measured_as_one_and_needs_its_own_profile(bundle, times_ms):
    runtime = ClockedRuntime({bundle.supernet.rendition(edge).blob: time for edge, time in times_ms.items()})
    measured = profile(Workspace(bundle, runtime), progress=SilentProgress(), batch=3, clock=runtime.clock)
    assert {shape[0] for shapes in runtime.shapes for shape in shapes} == {3}
    assert measured.batch == 3
    assert not measured.valid_for(bundle, runtime)
    assert measured.valid_for(bundle, runtime, batch=3)
    working = {one.edge: one.cost.working_bytes for one in measured.edges}
    assert working[Edge("o1")] == 3 * 2 * bundle.supernet.cut_points[1].nbytes


def test_a_batch_of_nothing_is_refused(bundle, clocked):
    with pytest.raises(UsageError, match="batch is 0"):
        profile(Workspace(bundle, clocked), progress=SilentProgress(), batch=0)


@pytest.mark.parametrize("changed", ["device", "power_mode", "driver"])
def test_a_profile_is_not_valid_under_other_conditions(measured, bundle, clocked, changed):
    other = msgspec.structs.replace(current_conditions(), **{changed: "another"})
    assert not measured.valid_for(bundle, clocked, conditions=other)
    assert measured.valid_for(bundle, clocked, conditions=measured.conditions)


def test_a_stored_profile_is_read_again_and_one_of_another_format_is_not(measured):
    stored = msgspec.json.encode(measured)
    assert msgspec.json.decode(stored, type=Profile) == measured
    with pytest.raises(msgspec.ValidationError, match="format"):
        msgspec.json.decode(stored.replace(b'"format":%d' % FORMAT, b'"format":1'), type=Profile)


def test_what_the_line_misses_is_the_edges_own(bundle, times_ms):
    """An edge that gains more than the others by being composed gets a factor of its own."""
    runtime = ClockedRuntime({bundle.supernet.rendition(edge).blob: time for edge, time in times_ms.items()})
    special = bundle.supernet.rendition(Edge("m1-4")).blob
    runtime.gains_ms[special] = 0.4
    model = profile(Workspace(bundle, runtime), progress=SilentProgress(), clock=runtime.clock).cost_model()
    for middle in (("m1-4",), ("o1", "o2", "o3"), ("m1-3", "o3")):
        subnet = Subnet(tuple(map(Edge, ("o0", *middle, "o4"))))
        expected = 0.8 * sum(times_ms[edge] for edge in subnet.edges) + 0.05 - 0.4 * ("m1-4" in middle)
        assert model.latency_ms(subnet) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("step_ns", [0, -1000])
def test_a_clock_that_stands_still_or_runs_backwards_gives_no_profile(bundle, clocked, step_ns):
    now_ns = [0]

    def clock():
        now_ns[0] += step_ns
        return now_ns[0]

    with pytest.raises(MeasurementError, match="clock") as caught:
        profile(Workspace(bundle, clocked), progress=SilentProgress(), clock=clock)
    assert caught.value.hint
    assert clocked.open == 0


def test_a_clock_that_jumps_now_and_then_changes_nothing(bundle, times_ms):
    runtime = ClockedRuntime({bundle.supernet.rendition(edge).blob: time for edge, time in times_ms.items()})
    reads = [0]

    def clock():  # every 50th reading sets the clock a minute back or an hour ahead for good
        reads[0] += 1
        if reads[0] % 50 == 0:
            runtime.now_ns += 3_600_000_000_000 if reads[0] % 100 else -60_000_000_000
        return runtime.now_ns

    measured = profile(Workspace(bundle, runtime), progress=SilentProgress(), clock=clock)
    assert {one.edge: one.cost.latency_ms for one in measured.edges} == times_ms
    assert (measured.scale, measured.offset_ms) == pytest.approx((0.8, 0.05), rel=1e-5)


class Amounts:
    """Progress that adds up what is done. Implements the progress port."""

    def __init__(self):
        self.done = self.total = 0.0

    @contextlib.contextmanager
    def task(self, name, total):
        self.total += total
        yield self

    def advance(self, amount=1.0):
        self.done += amount

    def note(self, text):
        pass


def test_progress_ends_where_it_said(bundle, clocked):
    progress = Amounts()
    profile(Workspace(bundle, clocked), progress=progress, clock=clocked.clock)
    assert progress.done == pytest.approx(progress.total)
