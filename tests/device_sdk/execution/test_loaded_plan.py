from __future__ import annotations

import msgspec
import numpy as np
import pytest

from device_sdk.bundles.bundle import Bundle
from device_sdk.errors import UsageError
from device_sdk.execution.loaded_plan import LoadedPlan
from device_sdk.execution.outcome import AFTER_FAILURE, AT_END, AT_SERVER, UNANSWERED
from device_sdk.execution.paging import least_memory_cap_bytes
from device_sdk.execution.plan_segments import segments
from device_sdk.fragments.composition import Stretch
from device_sdk.profiling.plans import mean_latencies_ms
from device_sdk.runtimes import OnnxRuntime
from device_sdk.runtimes.port import Array, LoadedStretch, StopSignal
from device_sdk.supernet.deciders.port import confidence
from device_sdk.supernet.plan import (
    ANY_SERVER,
    UNREACHABLE_CONFIDENCE,
    Ask,
    Edge,
    ExitChoice,
    MaxConfidence,
    Plan,
    RemoteRef,
    Split,
    Subnet,
)


def divided(position, bits=8, *, blocks=5):
    """A split at ``position`` whose tail is that of the original path."""
    tail = tuple(Edge(f"o{number}") for number in range(max(position, 0), blocks))
    return Split(position, (bits,), tail, RemoteRef("any:tail"))


class CountingRuntime(OnnxRuntime):
    """ONNX Runtime that notes how many samples each segment was run on."""

    def __init__(self) -> None:
        super().__init__(threads=1)
        self.samples: list[list[int]] = []

    def taking_turns(self):
        return self

    def load(self, stretch: Stretch) -> LoadedStretch:
        loaded, seen = super().load(stretch), []
        self.samples.append(seen)

        class Counting:
            def run(self, inputs: list[Array]) -> list[Array]:
                seen.append(len(inputs[0]))
                return loaded.run(inputs)

            def run_until(self, inputs: list[Array], stop: StopSignal) -> list[Array] | None:
                seen.append(len(inputs[0]))
                return loaded.run_until(inputs, stop)

            def close(self) -> None:
                loaded.close()

        return Counting()


@pytest.fixture
def tensor(bundle, tiny_bundle):
    from device_sdk.session.samples import SampleChecker

    return SampleChecker(bundle.manifest).prepare(tiny_bundle.images)


@pytest.fixture
def original(bundle):
    return bundle.supernet.original


def plan_with(subnet: Subnet, *exits: tuple[str, float]) -> Plan:
    return Plan(subnet, exits=tuple(ExitChoice(name, threshold) for name, threshold in exits))


def whole(bundle: Bundle, runtime: OnnxRuntime, edges: tuple[Edge, ...], exit_: str | None, tensor: Array) -> Array:
    """The answer of an exit, or of the end, run as one model from the input on."""
    choice = ExitChoice(exit_, UNREACHABLE_CONFIDENCE) if exit_ else None
    return runtime.load(bundle.stretch(edges, choice)).run([tensor])[-1]


def test_without_exits_a_plan_is_its_subnet(bundle, runtime, original, tensor):
    outcome = LoadedPlan(bundle, runtime, Plan(original)).run(tensor)
    assert np.array_equal(outcome.output, whole(bundle, runtime, original.edges, None, tensor))
    assert not outcome.answered_by.any()


def test_sure_samples_leave_and_the_others_go_on(bundle, runtime, original, tensor):
    at_exit = whole(bundle, runtime, original.edges[:2], "x2-pooled", tensor)
    at_end = whole(bundle, runtime, original.edges, None, tensor)
    threshold = float(np.median(confidence(at_exit)))
    outcome = LoadedPlan(bundle, runtime, plan_with(original, ("x2-pooled", threshold))).run(tensor)
    early = confidence(at_exit) >= threshold
    assert 0 < early.sum() < len(early)
    assert np.array_equal(outcome.answered_by == 0, early)
    np.testing.assert_allclose(outcome.output[early], at_exit[early], atol=1e-5)
    np.testing.assert_allclose(outcome.output[~early], at_end[~early], atol=1e-5)


def test_what_follows_a_taken_exit_is_never_computed(bundle, original, tensor):
    runtime = CountingRuntime()
    at_exit = whole(bundle, OnnxRuntime(threads=1), original.edges[:2], "x2-pooled", tensor)
    threshold = float(np.median(confidence(at_exit)))
    loaded = LoadedPlan(bundle, runtime, plan_with(original, ("x2-pooled", threshold)))
    loaded.run(tensor)
    staying = int(np.count_nonzero(confidence(at_exit) < threshold))
    assert runtime.samples == [[len(tensor)], [staying]]


def asking_plan(original, low: float, high: float, ask: Ask) -> Plan:
    return Plan(original, (ExitChoice("x2-pooled", high, ask_below=low),), hard=ask)


@pytest.fixture
def thirds(bundle, original, tensor):
    """Of the confidences at x2-pooled."""
    at_exit = whole(bundle, OnnxRuntime(threads=1), original.edges[:2], "x2-pooled", tensor)
    return [float(one) for one in np.quantile(confidence(at_exit), [1 / 3, 2 / 3])]


def test_what_asks_at_an_exit_leaves_the_path_and_can_go_on_there(bundle, original, tensor, thirds):
    runtime = CountingRuntime()
    at_exit = whole(bundle, OnnxRuntime(threads=1), original.edges[:2], "x2-pooled", tensor)
    at_end = whole(bundle, OnnxRuntime(threads=1), original.edges, None, tensor)
    sure = confidence(at_exit)
    asks, on = sure < thirds[0], (sure >= thirds[0]) & (sure < thirds[1])
    loaded = LoadedPlan(bundle, runtime, asking_plan(original, *thirds, Ask(MaxConfidence(0.5), ANY_SERVER)))
    outcome = loaded.run(tensor, asks=True)
    assert runtime.samples == [[len(tensor)], [on.sum()]]
    [waiting] = outcome.asking
    assert waiting.samples.tolist() == np.flatnonzero(asks).tolist()
    np.testing.assert_allclose(outcome.output[asks], at_exit[asks], atol=1e-5)
    gone_on = loaded.go_on(outcome)
    assert runtime.samples == [[len(tensor)], [on.sum(), asks.sum()]]
    np.testing.assert_allclose(gone_on.output[on | asks], at_end[on | asks], atol=1e-5)
    assert np.array_equal(gone_on.answered_by, np.where(on | asks, 1 + AT_END, 0))
    assert not gone_on.asking
    assert (outcome.answered_by[asks] == 0).all()  # the first outcome stays as it was


def test_where_no_server_can_be_asked_nothing_leaves_to_ask(bundle, original, tensor, runtime, thirds):
    plan = asking_plan(original, *thirds, Ask(MaxConfidence(0.5), ANY_SERVER))
    silent = LoadedPlan(bundle, runtime, plan).run(tensor)
    plain = LoadedPlan(bundle, runtime, plan_with(original, ("x2-pooled", thirds[1]))).run(tensor)
    assert not silent.asking
    assert np.array_equal(silent.answered_by, plain.answered_by)
    assert np.array_equal(silent.output, plain.output)


def test_an_exit_may_ask_without_answering(bundle, original, tensor, runtime, thirds):
    plan = asking_plan(original, thirds[0], UNREACHABLE_CONFIDENCE, Ask(MaxConfidence(0.5), ANY_SERVER))
    outcome = LoadedPlan(bundle, runtime, plan).run(tensor, asks=True)
    assert 0 < len(outcome.asking[0].samples) < len(tensor)
    everything = asking_plan(original, UNREACHABLE_CONFIDENCE, UNREACHABLE_CONFIDENCE, plan.hard)
    loaded = LoadedPlan(bundle, runtime, everything)
    outcome = loaded.run(tensor, asks=True)
    assert len(outcome.asking[0].samples) == len(tensor)
    at_end = whole(bundle, runtime, original.edges, None, tensor)
    np.testing.assert_allclose(loaded.go_on(outcome).output, at_end, atol=1e-5)


def test_activations_of_the_cut_point_of_an_exit_are_kept_for_what_asks_there(bundle, original, tensor, thirds):
    runtime = OnnxRuntime(threads=1)
    tail = tuple(Edge(f"o{number}") for number in range(2, 5))
    plan = asking_plan(original, *thirds, Ask(MaxConfidence(0.5), RemoteRef("any:tail"), 2, tail))
    outcome = LoadedPlan(bundle, runtime, plan).run(tensor, asks=True)
    [waiting] = outcome.asking
    for kept, own in zip(outcome.kept.of(waiting.samples), waiting.tensors, strict=True):
        assert np.array_equal(kept, own)


def test_a_batch_that_leaves_as_a_whole_ends_there(bundle, original, tensor):
    runtime = CountingRuntime()
    loaded = LoadedPlan(bundle, runtime, plan_with(original, ("x1-pooled", 0.0), ("x3-pooled", 0.5)))
    outcome = loaded.run(tensor)
    assert runtime.samples == [[len(tensor)]]  # nothing behind it is even loaded
    assert not outcome.answered_by.any()


def test_an_exit_that_is_never_sure_enough_changes_nothing(bundle, runtime, original, tensor):
    outcome = LoadedPlan(bundle, runtime, plan_with(original, ("x2-pooled", UNREACHABLE_CONFIDENCE))).run(tensor)
    assert np.all(outcome.answered_by == 1)
    np.testing.assert_allclose(outcome.output, whole(bundle, runtime, original.edges, None, tensor), atol=1e-5)


def test_answers_do_not_depend_on_the_batch(bundle, runtime, original, tensor):
    at_exit = whole(bundle, runtime, original.edges[:1], "x1-pooled", tensor)
    threshold = float(np.median(confidence(at_exit)))
    loaded = LoadedPlan(bundle, runtime, plan_with(original, ("x1-pooled", threshold), ("x3-pooled", 0.9)))
    together = loaded.run(tensor)
    for at in range(0, len(tensor), 7):
        alone = loaded.run(tensor[at : at + 1])
        assert alone.answered_by[0] == together.answered_by[at]
        np.testing.assert_allclose(alone.output[0], together.output[at], atol=1e-5)


def test_exits_lie_behind_merged_blocks_too(bundle, runtime, tensor):
    subnet = Subnet((Edge("o0"), Edge("m1-3"), Edge("o3"), Edge("o4")))
    loaded = LoadedPlan(bundle, runtime, plan_with(subnet, ("x3-pooled", 0.0)))
    expected = whole(bundle, runtime, subnet.edges[:2], "x3-pooled", tensor)
    np.testing.assert_allclose(loaded.run(tensor).output, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("subnet", "exits", "said"),
    [
        (("o0", "m1-3", "o3", "o4"), ["x2-pooled"], "does not pass cut point 2"),
        (("o0", "o1", "o2", "o3", "o4"), ["x2-pooled", "x2-untrained"], "one at a cut point"),
        (("o0", "o1", "o2", "o3", "o4"), ["x3-pooled", "x1-pooled"], "follow each other"),
        (("o0", "o1", "o2", "o3", "o4"), ["x9"], "there is no exit x9"),
        (("o0", "o1", "o2"), [], "ends at cut point 3"),
    ],
)
def test_a_plan_that_does_not_fit_the_graph_is_refused(bundle, runtime, subnet, exits, said):
    plan = plan_with(Subnet(tuple(Edge(block) for block in subnet)), *((name, 0.5) for name in exits))
    with pytest.raises(UsageError, match=said):
        LoadedPlan(bundle, runtime, plan)


def test_segments_end_at_exits(bundle, original):
    found = segments(bundle.supernet, plan_with(original, ("x1-pooled", 0.5), ("x3-pooled", 0.5)))
    assert [(" ".join(map(str, one.edges)), one.exit and one.exit.exit, one.split) for one in found] == [
        ("o0", "x1-pooled", False),
        ("o1 o2", "x3-pooled", False),
        ("o3 o4", None, False),
    ]


def test_segments_end_at_the_split(bundle, original):
    plan = plan_with(original, ("x1-pooled", 0.5))

    def shown(position):
        found = segments(bundle.supernet, msgspec.structs.replace(plan, split=divided(position)))
        return [(" ".join(map(str, one.edges)), one.exit is not None, one.split) for one in found]

    assert shown(3) == [("o0", True, False), ("o1 o2", False, True), ("o3 o4", False, False)]
    assert shown(1) == [("o0", True, True), ("o1 o2 o3 o4", False, False)]


@pytest.mark.parametrize("position", [0, 2, 4])
def test_a_tail_goes_on_elsewhere(bundle, runtime, original, tensor, position):
    seen = []

    def remote(features):
        seen.append(features[0])
        edges = [edge for edge, block in bundle.supernet.walk(original) if block.start >= position]
        return runtime.load(bundle.stretch(edges)).run(features)[-1]

    outcome = LoadedPlan(bundle, runtime, Plan(original, split=divided(position))).run(tensor, remote)
    assert np.all(outcome.answered_by == AT_SERVER)
    np.testing.assert_allclose(outcome.output, whole(bundle, runtime, original.edges, None, tensor), atol=1e-5)
    assert seen[0].shape[1:] == bundle.supernet.cut_points[position].tensors[0].shape


@pytest.mark.parametrize("position", [0, 2])
def test_a_tail_that_fails_goes_on_here(bundle, runtime, original, tensor, position):
    outcome = LoadedPlan(bundle, runtime, Plan(original, split=divided(position))).run(tensor, lambda _: None)
    assert np.all(outcome.answered_by == AFTER_FAILURE)
    np.testing.assert_allclose(outcome.output, whole(bundle, runtime, original.edges, None, tensor), atol=1e-5)


def test_without_a_server_a_split_plan_runs_here(bundle, runtime, original, tensor):
    outcome = LoadedPlan(bundle, runtime, Plan(original, split=divided(2))).run(tensor)
    assert np.all(outcome.answered_by == AT_END)


def test_only_samples_that_no_exit_answered_travel(bundle, runtime, original, tensor):
    at_exit = whole(bundle, runtime, original.edges[:1], "x1-pooled", tensor)
    threshold = float(np.median(confidence(at_exit)))
    plan = msgspec.structs.replace(plan_with(original, ("x1-pooled", threshold)), split=divided(3))
    sent = []

    def remote(features):
        sent.append(len(features[0]))
        return np.zeros((len(features[0]), 3), np.float32)

    outcome = LoadedPlan(bundle, runtime, plan).run(tensor, remote)
    early = confidence(at_exit) >= threshold
    assert sent == [np.count_nonzero(~early)]
    assert np.array_equal(outcome.answered_by, np.where(early, 0, 1 + AT_SERVER))
    assert not outcome.output[~early].any()


@pytest.mark.alone
def test_mean_latency_falls_when_samples_leave_early(bundle, runtime, original, tensor):
    leaving = LoadedPlan(bundle, runtime, plan_with(original, ("x1-pooled", 0.0)))
    staying = LoadedPlan(bundle, runtime, Plan(original))
    early_ms, whole_ms = mean_latencies_ms([leaving, staying], tensor[:20], rounds=5)
    assert 0 < early_ms < whole_ms


@pytest.mark.parametrize(
    ("split", "said"),
    [
        (divided(5), "cannot be split at cut point 5"),
        (divided(2), "cannot be split at cut point 2"),
        (divided(-1), "cannot be split"),
        (divided(1, 9), "not in 9"),
        (divided(1), "lies behind the split"),
    ],
)
def test_a_split_that_does_not_fit_is_refused(bundle, runtime, split, said):
    subnet = Subnet((Edge("o0"), Edge("m1-3"), Edge("o3"), Edge("o4")))
    plan = msgspec.structs.replace(plan_with(subnet, ("x3-pooled", 0.5)), split=split)
    with pytest.raises(UsageError, match=said):
        LoadedPlan(bundle, runtime, plan)


# Splits without the rest of the subnet


def head(fallback, position=3, *exits):
    split = msgspec.structs.replace(divided(position), fallback=fallback)
    return Plan(Subnet(tuple(Edge(f"o{number}") for number in range(5))), exits=exits, split=split)


LAST = ExitChoice("x2-pooled", UNREACHABLE_CONFIDENCE)


def test_nothing_behind_the_split_of_a_head_is_loaded(bundle, tensor):
    runtime = CountingRuntime()
    plan = LoadedPlan(bundle, runtime, head("abstain"))
    assert len(runtime.samples) == 1
    served = plan.run(tensor, lambda features: np.ones((len(features[0]), 3), np.float32))
    assert set(served.answered_by) == {AT_SERVER}
    unanswered = plan.run(tensor, lambda features: None)
    assert set(unanswered.answered_by) == {UNANSWERED}
    assert unanswered.output.shape == (len(tensor), 3)
    assert np.isnan(unanswered.output).all()
    assert not plan.has_steps
    with pytest.raises(UsageError, match="answers nothing here without its server"):
        plan.stepped()


def test_the_branch_of_the_fallback_runs_only_when_the_server_does_not_answer(bundle, tensor):
    runtime = CountingRuntime()
    plan = LoadedPlan(bundle, runtime, head("exit", 3, LAST))
    plan.run(tensor, lambda features: np.ones((len(features[0]), 3), np.float32))
    assert runtime.samples[-1] == []
    failed = plan.run(tensor, lambda features: None)
    assert runtime.samples[-1] == [len(tensor)]
    assert set(failed.answered_by) == {1 + AFTER_FAILURE}
    alone = LoadedPlan(bundle, runtime, Plan(head("exit").subnet, (ExitChoice("x2-pooled", 0.0),)))
    np.testing.assert_allclose(failed.output, alone.run(tensor).output, atol=1e-5)


@pytest.mark.parametrize("position", [2, 3], ids=["at the cut", "before the cut"])
def test_an_exit_that_answers_some_samples_stands_in_for_the_server_on_the_others(bundle, tensor, position):
    every = LoadedPlan(bundle, OnnxRuntime(threads=1), Plan(head("exit").subnet, (ExitChoice("x2-pooled", 0.0),)))
    at_exit = every.run(tensor).output
    threshold = float(np.median(confidence(at_exit)))
    plan = LoadedPlan(bundle, OnnxRuntime(threads=1), head("exit", position, ExitChoice("x2-pooled", threshold)))
    sent = []
    failed = plan.run(tensor, lambda features: sent.append(len(features[0])))
    sure = confidence(at_exit) >= threshold
    assert sent == [np.count_nonzero(~sure)]
    assert (failed.answered_by == np.where(sure, 0, 1 + AFTER_FAILURE)).all()
    np.testing.assert_allclose(failed.output, at_exit, atol=1e-5)


@pytest.mark.parametrize("cap_bytes", [None, 1], ids=["no cap", "any cap"])
def test_a_head_split_at_the_input_loads_nothing(bundle, tensor, cap_bytes):
    runtime = CountingRuntime()
    plan = LoadedPlan(bundle, runtime, head("abstain", 0), memory_cap_bytes=cap_bytes)
    assert runtime.samples == []
    assert set(plan.run(tensor).answered_by) == {UNANSWERED}


def test_under_a_cap_a_head_runs_in_pages_with_its_fallback(bundle, tensor):
    plan = head("exit", 3, LAST)
    cap_bytes = round(1.1 * least_memory_cap_bytes(bundle, plan, batch=len(tensor)))
    paged = LoadedPlan(bundle, OnnxRuntime(threads=1, lean=True), plan, memory_cap_bytes=cap_bytes, batch=len(tensor))
    failed = paged.run(tensor, lambda features: None)
    whole = LoadedPlan(bundle, OnnxRuntime(threads=1), plan).run(tensor, lambda features: None)
    np.testing.assert_allclose(failed.output, whole.output, atol=1e-5)
    assert paged.stepped().run(tensor, stop=StopSignal()).output.shape == failed.output.shape
