from __future__ import annotations

import zlib

import numpy as np
import pytest

from device_sdk.errors import ClosedError, DataError, InputError, RuntimeFailedError, UsageError
from device_sdk.graph import Edge, Subnet
from device_sdk.paths import enumerate_subnets, sample_uniformly
from device_sdk.random_source import SplitMix64
from device_sdk.search import PrefixTreeEvaluator

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


def test_cut_points_of_several_tensors_are_passed_on_together(build_supernet, make_evaluator, samples):
    supernet = build_supernet(4, [(0, 2), (1, 3), (2, 4)], tensors=2, values=VALUES)
    subnets = list(enumerate_subnets(supernet, limit=100))
    found = make_evaluator(supernet, runtime=TwoTensorRuntime(), batch=16).accuracies(subnets)
    assert found == [accuracy_alone(subnet, TwoTensorRuntime(), samples) for subnet in subnets]


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
