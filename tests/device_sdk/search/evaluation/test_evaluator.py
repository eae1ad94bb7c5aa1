from __future__ import annotations

import weakref
import zlib

import numpy as np
import pytest

from device_sdk.data.preprocessing import prepare
from device_sdk.errors import ClosedError, DataError, InputError, RuntimeFailedError, UsageError
from device_sdk.random_source import SplitMix64
from device_sdk.search import PrefixTreeEvaluator
from device_sdk.search.port import EvaluationStopped
from device_sdk.supernet.paths import enumerate_subnets, sample_uniformly
from device_sdk.supernet.plan import Edge, Subnet

VALUES = 8


class MatrixStretch:
    """A block that multiplies by a matrix of its own; with several tensors it also mixes them."""

    def __init__(self, edge):
        seed = zlib.crc32(str(edge).encode())
        self._matrix = np.random.default_rng(seed).normal(size=(VALUES, VALUES)).astype(np.float32)
        self.closed = False

    def run(self, inputs):
        if self.closed:
            raise RuntimeFailedError("the stretch was closed")
        outputs = [np.tanh(value @ self._matrix) for value in inputs]
        return outputs if len(outputs) == 1 else [*outputs[1:], outputs[0] + outputs[1]]

    def close(self):
        self.closed = True


class MatrixRuntime:
    """Loads matrix blocks, one edge at a time; knows which are open."""

    def __init__(self):
        self.loaded = []

    def load(self, edges):
        (edge,) = edges
        self.loaded.append((edge, MatrixStretch(edge)))
        return self.loaded[-1][1]

    @property
    def open(self):
        return [edge for edge, stretch in self.loaded if not stretch.closed]


class TwoTensorRuntime(MatrixRuntime):
    """The first block makes two tensors of one."""

    def load(self, edges):
        stretch = super().load(edges)
        if edges[0].block == "o0" or edges[0].block.startswith("m0_"):
            stretch = _Doubling(stretch)
        return stretch


class _Doubling:
    def __init__(self, inner):
        self._inner = inner

    def run(self, inputs):
        (output,) = self._inner.run(inputs)
        return [output, output + 1]

    def close(self):
        self._inner.close()


class DoublingRuntime(MatrixRuntime):
    """Its features are twice as large as the supernet says."""

    def load(self, edges):
        return _Doubles(super().load(edges))


class _Doubles:
    def __init__(self, inner):
        self._inner = inner

    def run(self, inputs):
        return [value.astype(np.float64) for value in self._inner.run(inputs)]

    def close(self):
        self._inner.close()


class AuditedRuntime(MatrixRuntime):
    """Counts, whenever a block begins to run, the bytes of all outputs that somebody has kept.

    The input of a run counts unless it is gone when the next begins: then nobody kept it.
    """

    def __init__(self):
        super().__init__()
        self.outputs = []
        self._read, self._alive = [], 0
        self.peak_bytes = 0

    def load(self, edges):
        return _Audited(super().load(edges), self)

    def settle(self):
        gone = sum(nbytes for one, nbytes in self.outputs if one() is None and one in self._read)
        self.peak_bytes = max(self.peak_bytes, self._alive - gone)
        self.outputs = [(one, nbytes) for one, nbytes in self.outputs if one() is not None]
        self._alive = sum(nbytes for _, nbytes in self.outputs)

    def begins(self, inputs):
        self.settle()
        self._read = [one for one, _ in self.outputs if any(one() is value for value in inputs)]


class _Audited:
    def __init__(self, inner, audit):
        self._inner, self._audit = inner, audit

    def run(self, inputs):
        self._audit.begins(inputs)
        outputs = self._inner.run(inputs)
        self._audit.outputs += [(weakref.ref(value), value.nbytes) for value in outputs]
        return outputs

    def close(self):
        self._inner.close()


@pytest.fixture
def samples():
    random = np.random.default_rng(0)
    return random.normal(size=(50, VALUES)).astype(np.float32), random.integers(0, VALUES, 50)


@pytest.fixture
def make_evaluator(uniform_costs, samples):
    def make(supernet, *, runtime=None, **settings):
        runtime = runtime or MatrixRuntime()
        return PrefixTreeEvaluator(supernet, runtime.load, *samples, uniform_costs(supernet), **settings)

    return make


@pytest.fixture
def supernet(elastic_supernet):
    return elastic_supernet(7, values=VALUES)


@pytest.fixture
def subnets(supernet):
    return list(dict.fromkeys(sample_uniformly(supernet, count=25, random=SplitMix64(1))))


def accuracy_alone(subnet, runtime, samples):
    inputs, labels = samples
    values = [inputs]
    for edge in subnet.edges:
        values = runtime.load((edge,)).run(values)
    return float(np.mean(values[-1].argmax(axis=1) == labels))


def test_accuracy_is_the_share_of_samples_classified_as_labelled(make_evaluator, supernet, subnets, samples):
    found = make_evaluator(supernet, batch=16).accuracies(subnets)
    assert found == [accuracy_alone(subnet, MatrixRuntime(), samples) for subnet in subnets]
    assert len(set(found)) > 1


@pytest.mark.parametrize("batch", [1, 7, 64])
def test_reuse_changes_the_work_and_not_the_result(make_evaluator, supernet, subnets, batch):
    reusing = make_evaluator(supernet, batch=batch)
    plain = make_evaluator(supernet, batch=batch, reuse=False)
    assert reusing.accuracies(subnets) == plain.accuracies(subnets)
    batches = -(-50 // batch)
    assert plain.edge_runs == plain.edge_runs_without_reuse
    assert plain.edge_runs == batches * sum(len(subnet.edges) for subnet in subnets)
    assert reusing.edge_runs_without_reuse == plain.edge_runs
    assert reusing.edge_runs < 0.8 * plain.edge_runs
    assert plain.peak_cached_bytes == 0 < reusing.peak_cached_bytes


@pytest.mark.parametrize("features", [0, 1, 2, 3, 100])
def test_cached_features_stay_within_the_cap(make_evaluator, supernet, subnets, features):
    cache_bytes = features * 16 * VALUES * 4 + 1
    evaluator = make_evaluator(supernet, batch=16, cache_bytes=cache_bytes)
    assert evaluator.accuracies(subnets) == make_evaluator(supernet).accuracies(subnets)
    assert evaluator.peak_cached_bytes <= cache_bytes
    assert (evaluator.peak_cached_bytes > 0) == (features > 0)


def test_a_subnet_is_evaluated_once(make_evaluator, supernet, subnets):
    evaluator = make_evaluator(supernet)
    first = evaluator.accuracies([*subnets, *subnets])
    runs = evaluator.edge_runs
    assert first == evaluator.accuracies(subnets) * 2
    assert evaluator.edge_runs == runs
    assert evaluator.accuracies([]) == []


def test_which_samples_are_right_adds_up_to_the_accuracy(make_evaluator, supernet, subnets, samples):
    evaluator = make_evaluator(supernet, batch=16)
    assert evaluator.sample_count == 50
    correct = evaluator.scores(subnets, slice(None))
    assert (correct.shape, correct.dtype) == ((len(subnets), 50), np.float32)
    assert [float(row.mean(dtype=np.float64)) for row in correct] == evaluator.accuracies(subnets)
    assert evaluator.scores([], slice(0, 10)).shape == (0, 10)
    assert evaluator.scores(subnets, slice(7, 7)).shape == (len(subnets), 0)


def test_samples_can_be_asked_for_in_parts(make_evaluator, supernet, subnets):
    whole, parts = make_evaluator(supernet, batch=16), make_evaluator(supernet, batch=16)
    pieces = [parts.scores(subnets, piece) for piece in (slice(0, 5), slice(5, 16), slice(16, 33), slice(33, None))]
    assert np.array_equal(np.concatenate(pieces, axis=1), whole.scores(subnets, slice(None)))
    assert parts.edge_runs_without_reuse == whole.edge_runs_without_reuse


def test_a_race_pays_only_for_the_batches_that_each_subnet_ran(make_evaluator, supernet, subnets):
    evaluator = make_evaluator(supernet, batch=16, reuse=False)
    evaluator.scores(subnets, slice(0, 16))
    survivors = subnets[:3]
    found = evaluator.accuracies(survivors)
    assert found == make_evaluator(supernet).accuracies(survivors)
    once, rest = (sum(len(one.edges) for one in group) for group in (subnets, survivors))
    assert evaluator.edge_runs == once + 3 * rest


def logits_of(subnet, samples):
    values, runtime = [samples[0]], MatrixRuntime()
    for edge in subnet.edges:
        values = runtime.load((edge,)).run(values)
    return values[-1]


def margins_of(logits, labels):
    others = np.where(np.arange(VALUES) == labels[:, None], -np.inf, logits).max(axis=1)
    return logits[np.arange(len(labels)), labels] - others


def test_margins_are_the_labels_logits_above_the_largest_others(make_evaluator, supernet, subnets, samples):
    evaluator = make_evaluator(supernet, batch=16)
    correct = evaluator.scores(subnets, slice(None))
    margins = evaluator.margins(subnets, slice(None))
    expected = [margins_of(logits_of(one, samples), samples[1]) for one in subnets]
    np.testing.assert_allclose(margins, expected, rtol=1e-4, atol=1e-6)
    assert np.array_equal(correct, margins > 0)
    full = margins_of(logits_of(supernet.original, samples), samples[1])
    np.testing.assert_allclose(evaluator.full_model_margins(), full, rtol=1e-4, atol=1e-6)


def test_margins_on_some_samples_need_no_others(make_evaluator, supernet, subnets):
    some, every = make_evaluator(supernet, batch=16), make_evaluator(supernet, batch=16)
    some.scores(subnets, slice(0, 16))
    every.scores(subnets, slice(None))
    assert np.array_equal(some.margins(subnets, slice(0, 16)), every.margins(subnets, slice(0, 16)))
    assert len(some.full_model_margins()) == 16


def test_samples_on_which_the_full_model_is_least_sure_can_come_first(make_evaluator, supernet, subnets, samples):
    plain, ordered = make_evaluator(supernet, batch=16), make_evaluator(supernet, batch=16)
    ordered.order_by_margin()
    order = np.argsort(np.abs(margins_of(logits_of(supernet.original, samples), samples[1])))
    assert np.array_equal(ordered.scores(subnets, slice(None)), plain.scores(subnets, slice(None))[:, order])
    expected = plain.margins(subnets, slice(None))[:, order]  # other batches: on some processors, other rounding
    np.testing.assert_allclose(ordered.margins(subnets, slice(None)), expected, rtol=1e-3, atol=1e-4)


def test_once_something_was_evaluated_the_order_stays(make_evaluator, supernet, subnets):
    evaluator = make_evaluator(supernet, batch=16)
    before = evaluator.scores(subnets[:1], slice(None))
    evaluator.order_by_margin()
    assert np.array_equal(evaluator.scores(subnets[:1], slice(None)), before)


def test_ordering_can_be_stopped(make_evaluator, supernet, subnets):
    evaluator, other = make_evaluator(supernet, batch=16), make_evaluator(supernet, batch=16)
    with pytest.raises(EvaluationStopped):
        evaluator.order_by_margin(should_stop=lambda: True)
    assert np.array_equal(evaluator.scores(subnets, slice(None)), other.scores(subnets, slice(None)))


def test_an_evaluation_stops_between_batches_and_goes_on_later(make_evaluator, supernet, subnets):
    evaluator = make_evaluator(supernet, batch=16)
    asked = []

    def third_time():
        asked.append(evaluator.edge_runs_without_reuse)
        return len(asked) == 3

    with pytest.raises(EvaluationStopped):
        evaluator.accuracies(subnets, should_stop=third_time)
    edges = sum(len(subnet.edges) for subnet in subnets)
    assert asked == [0, edges, 2 * edges]
    assert evaluator.scores(subnets, slice(0, 32), should_stop=lambda: True).shape == (len(subnets), 32)
    assert evaluator.accuracies(subnets) == make_evaluator(supernet).accuracies(subnets)
    assert evaluator.edge_runs_without_reuse == 4 * edges


def generations(supernet):
    """Groups of which each shares prefixes with the one before: half a parent's way, then another."""
    groups, random = [], SplitMix64(5)
    parents = sample_uniformly(supernet, count=4, random=random)
    for _ in range(4):
        groups.append(parents)
        others = sample_uniformly(supernet, count=8, random=random)
        children = {_crossed(supernet, parent, other) for parent in parents for other in others}
        seen = {None, *(subnet for group in groups for subnet in group)}
        parents = sorted(children - seen)[::5][:6]
    return groups


def _crossed(supernet, first, second):
    """The beginning of ``first`` and the end of ``second``, if both pass a cut point in the middle."""
    ends = {supernet.block(edge.block).end: place for place, edge in enumerate(first.edges)}
    for place, edge in enumerate(second.edges):
        start = supernet.block(edge.block).start
        if start in ends and start >= supernet.output_index // 2:
            return Subnet((*first.edges[: ends[start] + 1], *second.edges[place:]))
    return None


def test_features_outlive_their_group_where_later_ones_share_them(make_evaluator, elastic_supernet):
    supernet = elastic_supernet(9, values=VALUES)
    lasting, plain = make_evaluator(supernet, batch=16), make_evaluator(supernet, batch=16, reuse=False)
    runs_of_their_own = 0
    for group in generations(supernet):
        assert lasting.accuracies(group) == plain.accuracies(group)
        fresh = make_evaluator(supernet, batch=16)
        fresh.accuracies(group)
        runs_of_their_own += fresh.edge_runs
    assert lasting.edge_runs < 0.9 * runs_of_their_own


@pytest.mark.parametrize("features", [0, 1, 2, 3, 5, 9, 30])
def test_no_more_features_than_the_cap_are_ever_alive(make_evaluator, elastic_supernet, features):
    supernet = elastic_supernet(9, values=VALUES)
    cap_bytes = features * 16 * VALUES * 4
    audited = AuditedRuntime()
    evaluator = make_evaluator(supernet, runtime=audited, batch=16, cache_bytes=cap_bytes)
    for group in generations(supernet):
        evaluator.accuracies(group)
    evaluator.scores(generations(supernet)[0], slice(0, 1))
    audited.settle()
    assert (audited.peak_bytes > 0) == (features > 0)
    assert audited.peak_bytes <= evaluator.peak_cached_bytes <= cap_bytes
    evaluator.close()
    audited.settle()
    assert audited.outputs == []


def test_features_larger_than_foreseen_stay_within_the_cap(make_evaluator, elastic_supernet):
    supernet = elastic_supernet(9, values=VALUES)
    cap_bytes = 2 * 16 * VALUES * 4  # room for one
    evaluator = make_evaluator(supernet, runtime=DoublingRuntime(), batch=16, cache_bytes=cap_bytes)
    plain = make_evaluator(supernet, runtime=DoublingRuntime(), batch=16, reuse=False)
    for group in generations(supernet):
        assert evaluator.accuracies(group) == plain.accuracies(group)
    assert 0 < evaluator.peak_cached_bytes <= cap_bytes


def test_on_a_real_bundle_answers_with_reuse_are_those_without(tiny_bundle, bundle, runtime, uniform_costs):
    supernet = bundle.supernet
    subnets = list(enumerate_subnets(supernet, limit=1000))
    inputs = prepare(tiny_bundle.images, bundle.manifest.preprocessing, input_shape=(3, 20, 20))
    found = [
        PrefixTreeEvaluator(
            supernet,
            lambda edges: runtime.load(bundle.stretch(edges)),
            inputs,
            tiny_bundle.labels,
            uniform_costs(supernet),
            batch=32,
            reuse=reuse,
        )
        for reuse in (True, False)
    ]
    reusing, plain = (one.scores(subnets, slice(None)) for one in found)
    assert np.array_equal(reusing, plain)
    assert not plain.all()
    assert found[0].edge_runs < 0.8 * found[1].edge_runs


def test_cut_points_of_several_tensors_are_passed_on_together(build_supernet, make_evaluator, samples):
    supernet = build_supernet(4, [(0, 2), (1, 3), (2, 4)], tensors=2, values=VALUES)
    subnets = list(enumerate_subnets(supernet, limit=100))
    found = make_evaluator(supernet, runtime=TwoTensorRuntime(), batch=16).accuracies(subnets)
    assert found == [accuracy_alone(subnet, TwoTensorRuntime(), samples) for subnet in subnets]


def test_what_was_released_is_loaded_again_and_gives_the_same_answers(make_evaluator, supernet, subnets):
    runtime = MatrixRuntime()
    evaluator = make_evaluator(supernet, runtime=runtime, batch=16)
    evaluator.accuracies(subnets[:2])
    evaluator.release()
    assert runtime.open == []
    assert evaluator.accuracies(subnets) == make_evaluator(supernet, batch=16).accuracies(subnets)


def test_each_edge_is_loaded_once_and_closed_in_the_end(make_evaluator, supernet, subnets):
    runtime = MatrixRuntime()
    evaluator = make_evaluator(supernet, runtime=runtime, batch=16)
    evaluator.accuracies(subnets)
    used = {edge for subnet in subnets for edge in subnet.edges}
    assert sorted(edge for edge, _ in runtime.loaded) == sorted(used)
    evaluator.close()
    evaluator.close()
    assert runtime.open == []
    assert evaluator.accuracies(subnets[:1])  # known
    with pytest.raises(ClosedError):
        evaluator.accuracies(list(enumerate_subnets(supernet, limit=100)))


def test_a_session_limit_closes_the_least_recently_used(make_evaluator, supernet, subnets):
    runtime = MatrixRuntime()
    evaluator = make_evaluator(supernet, runtime=runtime, max_sessions=3)
    assert evaluator.accuracies(subnets) == make_evaluator(supernet).accuracies(subnets)
    assert len(runtime.open) == 3


def test_a_path_that_is_none_is_refused_before_anything_runs(make_evaluator, supernet):
    evaluator = make_evaluator(supernet)
    with pytest.raises(UsageError, match="starts at cut point"):
        evaluator.accuracies([supernet.original, Subnet((Edge("o0"), Edge("o2")))])
    assert evaluator.edge_runs == 0


def test_samples_and_labels_must_match_and_exist(uniform_costs, supernet, samples):
    inputs, labels = samples
    costs = uniform_costs(supernet)
    with pytest.raises(InputError, match="50 samples and 49 labels"):
        PrefixTreeEvaluator(supernet, MatrixRuntime().load, inputs, labels[1:], costs)
    with pytest.raises(DataError, match="no samples"):
        PrefixTreeEvaluator(supernet, MatrixRuntime().load, inputs[:0], labels[:0], costs)


@pytest.mark.parametrize("settings", [{"batch": 0}, {"cache_bytes": -1}, {"max_sessions": 0}])
def test_sizes_that_make_no_sense_are_refused(make_evaluator, supernet, settings):
    with pytest.raises(UsageError):
        make_evaluator(supernet, **settings)


def test_logits_are_those_of_the_subnet_alone_in_the_order_of_the_samples(make_evaluator, supernet, subnets, samples):
    evaluator = make_evaluator(supernet, batch=16)
    evaluator.order_by_margin()
    evaluator.accuracies(subnets[:3])
    for subnet, found in zip(subnets[:3], evaluator.logits(subnets[:3]), strict=True):
        values = [samples[0]]
        for edge in subnet.edges:
            values = MatrixRuntime().load((edge,)).run(values)
        assert found.dtype == np.float16
        np.testing.assert_allclose(found, values[-1], atol=2e-3)


def test_logits_beyond_the_byte_cap_are_evicted_and_computed_again(make_evaluator, supernet, subnets):
    whole = make_evaluator(supernet, batch=16)
    tight = make_evaluator(supernet, batch=16, logits_bytes=1)
    tight.accuracies(subnets)
    runs = tight.edge_runs
    for found, expected in zip(tight.logits(subnets[:4]), whole.logits(subnets[:4]), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert tight.edge_runs > runs
    assert tight.accuracies(subnets) == whole.accuracies(subnets)


@pytest.mark.parametrize("cache_bytes", [0, 10_000, 64_000_000])
def test_batches_in_parallel_change_no_result(make_evaluator, supernet, subnets, cache_bytes):
    alone, together = (make_evaluator(supernet, batch=4, cache_bytes=cache_bytes, workers=count) for count in (1, 4))
    for one in (alone, together):
        one.order_by_margin()
    for start in range(0, len(subnets), 5):
        group = subnets[start : start + 5]
        np.testing.assert_array_equal(together.scores(group, slice(None)), alone.scores(group, slice(None)))
    np.testing.assert_array_equal(together.margins(subnets, slice(None)), alone.margins(subnets, slice(None)))
    assert together.edge_runs_without_reuse == alone.edge_runs_without_reuse


@pytest.mark.parametrize("workers", [1, 4])
def test_a_closed_one_keeps_its_results_and_evaluates_nothing_more(make_evaluator, supernet, subnets, workers):
    evaluator = make_evaluator(supernet, workers=workers)
    known = evaluator.accuracies(subnets[:3])
    evaluator.close()
    assert evaluator.accuracies(subnets[:3]) == known
    with pytest.raises(ClosedError):
        evaluator.accuracies(subnets[3:])


def test_workers_and_a_limit_of_sessions_exclude_each_other(make_evaluator, supernet):
    with pytest.raises(UsageError, match="workers"):
        make_evaluator(supernet, workers=2, max_sessions=3)
