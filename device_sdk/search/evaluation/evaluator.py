"""Batch-wise group evaluation of subnets with reuse of shared prefixes (AdaptiveNet §5.2, DFS-Evaluate)."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from device_sdk.data.inputs import Inputs, as_inputs
from device_sdk.errors import ClosedError, DataError, InputError, UsageError
from device_sdk.execution.loaded_segments import corrected
from device_sdk.runtimes.port import Array, LoadedStretch
from device_sdk.search.evaluation.prefix_tree import (
    FeatureCache,
    Prefix,
    PrefixNode,
    build_tree,
    evaluation_cost,
    prefix_worth,
)
from device_sdk.search.evaluation.workers import Workers
from device_sdk.search.port import never_stop
from device_sdk.supernet.cost import CostModel
from device_sdk.supernet.plan import Edge, Prior, Subnet
from device_sdk.supernet.supernet import Supernet
from device_sdk.tasks import AnswerTask
from device_sdk.tasks.classification import Accuracy
from device_sdk.tasks.port import Scores, Targets

Load = Callable[[tuple[Edge, ...]], LoadedStretch]

_PARENTS = 64  # at most this many of the best subnets are expected to have children in the next group
LOGITS_BYTES = 16_000_000  # of stored logits: 80 subnets on 100 samples of 1,000 classes
_FLOAT16_MAX = float(np.finfo(np.float16).max)


class PrefixTreeEvaluator:
    """Evaluates subnets on samples with targets; implements the search's ``Evaluator``.

    A group is evaluated batch by batch, depth first over the tree of its prefixes, so that a shared prefix runs once.
    Features that later groups will probably need are cached. Every edge runs in its own session, with and without
    reuse, so that results are bit-identical. Results are memoised. Not thread-safe: ``workers`` batches at a time are
    evaluated in threads of its own, with equal results. ``close`` frees all.

    ``inputs``: the samples, or an array [count, *shape of cut point 0] of prepared ones; ``labels``: targets [count, …]
    of ``task``, by default class indices. Answers are the last cut point's last tensor [batch, *output]. At most
    ``cache_bytes`` of features outlive the edge run that makes or reads them, and at most ``max_sessions`` sessions are
    open (all edges' by default). ``load``: makes one edge ready to run at every input size; one session serves all.

    Counters over all calls: ``edge_runs`` (one edge on one batch), ``edge_runs_without_reuse`` (what evaluating the
    same subnets one by one takes), ``peak_cached_bytes``.

    Raises:
        DataError: there are no samples.
        InputError: inputs and labels differ in number.
        UsageError: a size is out of range.
    """

    def __init__(
        self,
        supernet: Supernet,
        load: Load,
        inputs: Inputs | Array,
        labels: Targets,
        cost_model: CostModel,
        batch: int = 64,
        cache_bytes: int = 64_000_000,
        reuse: bool = True,
        max_sessions: int | None = None,
        logits_bytes: int = LOGITS_BYTES,
        workers: int = 1,
        task: AnswerTask | None = None,
    ) -> None:
        if len(inputs) != len(labels):
            raise InputError(f"there are {len(inputs)} samples and {len(labels)} labels")
        if not len(inputs):
            raise DataError("there are no samples to evaluate subnets on")
        if batch < 1 or cache_bytes < 0 or (max_sessions is not None and max_sessions < 1):
            raise UsageError("batch and max_sessions must be at least 1 and cache_bytes at least 0")
        if workers < 1 or (workers > 1 and max_sessions is not None):
            raise UsageError("workers must be at least 1, and 1 where sessions are closed for others")
        self._supernet = supernet
        self._sessions = _Sessions(load, limit=max_sessions)
        self._inputs, self._labels = as_inputs(inputs), labels
        self._task = task or Accuracy(supernet.cut_points[-1].tensors[-1].shape[-1])
        self._cost_model = cost_model
        self._batch = batch
        self._cache_bytes = cache_bytes if reuse else 0
        self._cache = FeatureCache(self._cache_bytes)
        self._worth: dict[Prefix, float] = {}
        self._answers: dict[Subnet, _Answers] = {}
        self._logits: OrderedDict[Subnet, Array] = OrderedDict()  # float16 [count, classes], the oldest first
        self._logits_bytes = logits_bytes
        self._order = np.arange(len(labels))
        self._references: dict[int, _Reference] = {}  # by batch: of the full model, without a prior
        self._prior: Prior | None = None
        self._touched: set[int] = set()  # batches on which at least one subnet was evaluated
        self._workers = Workers(workers)
        self._recording = threading.Lock()
        self.edge_runs = 0
        self.edge_runs_without_reuse = 0

    @property
    def peak_cached_bytes(self) -> int:
        """Peak size of the feature cache."""
        return self._cache.peak_bytes

    @property
    def sample_count(self) -> int:
        """See the port."""
        return len(self._labels)

    @property
    def batch(self) -> int:
        """See the port."""
        return self._batch

    def accuracies(self, subnets: Sequence[Subnet], *, should_stop: Callable[[], bool] = never_stop) -> list[float]:
        """See the port; raises what ``correct`` does."""
        scores = self.scores(subnets, slice(None), should_stop=should_stop)
        return [float(row.sum(dtype=np.float64)) / self.sample_count for row in scores]

    def logits(self, subnets: Sequence[Subnet]) -> list[Array]:
        """Logits of each subnet on all samples, in the order in which they were given: float16 [count, classes].

        Logits are stored as far as ``logits_bytes`` allows; subnets whose logits were evicted are evaluated again.
        Raises what ``correct`` does.
        """
        restored = np.argsort(self._order)
        return [self._logits_of(subnet)[restored] for subnet in subnets]

    def full_model_logits(self) -> tuple[Array, npt.NDArray[np.int64]]:
        """Logits of the full model [count, classes], without a prior, and the labels [count] in the same order."""
        self._workers.each(range(self._batch_count), self._refer_to, never_stop)
        return self._of_full_model("answers"), self._labels

    def _of_full_model(self, name: str) -> Array:
        """A field of the references to the full model, of all batches so far in turn."""
        return np.concatenate([getattr(self._references[batch], name) for batch in sorted(self._references)])

    def use_prior(self, prior: Prior | None) -> None:
        """Judge all answers under ``prior`` from now on.

        Raises:
            UsageError: something was evaluated without it.
        """
        if self._answers:
            raise UsageError("a prior must be set before subnets are evaluated")
        self._prior = prior

    def _logits_of(self, subnet: Subnet) -> Array:
        known = self._answers.get(subnet)
        if subnet not in self._logits or known is None or len(known.batches) < self._batch_count:
            self._answers.pop(subnet, None)
            self._logits.pop(subnet, None)
            self.scores([subnet], slice(None))
        return self._logits[subnet]

    def _store_logits(self, subnet: Subnet, samples: slice, logits: Array) -> None:
        """Keep the logits of ``samples``; the oldest subnets are evicted first, never ``subnet`` itself."""
        if subnet not in self._logits:
            if self._answers[subnet].batches:
                return  # evicted after other batches
            self._logits[subnet] = np.zeros((self.sample_count, logits.shape[-1]), dtype=np.float16)
        self._logits[subnet][samples] = np.clip(logits, -_FLOAT16_MAX, _FLOAT16_MAX)
        size = self._logits[subnet].nbytes
        while len(self._logits) > 1 and len(self._logits) * size > self._logits_bytes:
            oldest = next(other for other in self._logits if other != subnet)
            del self._logits[oldest]

    @property
    def _batch_count(self) -> int:
        return math.ceil(self.sample_count / self._batch)

    def order_by_margin(self, *, should_stop: Callable[[], bool] = never_stop) -> None:
        """See the port; raises what ``correct`` does."""
        if self._answers:
            return
        batches = range(self._batch_count)
        self._workers.each(batches, self._refer_to, should_stop)
        order = np.argsort(np.abs(self.full_model_margins()), kind="stable")
        answers, compared, margins = (self._of_full_model(name)[order] for name in ("answers", "compared", "margins"))
        places = {batch: self._samples(batch) for batch in batches}
        self._references = {
            batch: _Reference(answers[place], compared[place], margins[place]) for batch, place in places.items()
        }
        self._order, self._labels = self._order[order], self._labels[order]

    def scores(
        self, subnets: Sequence[Subnet], samples: slice, *, should_stop: Callable[[], bool] = never_stop
    ) -> Scores:
        """See the port. Whole batches are evaluated, also where ``samples`` has a part of one.

        Raises:
            UsageError: one of the subnets is not a path of the supernet.
            RuntimeFailedError: a block did not load or run.
            ClosedError: the evaluator was closed.
            EvaluationStopped: ``should_stop`` returned True.
        """
        for subnet in subnets:
            if subnet not in self._answers:
                self._supernet.check(subnet)
        for subnet in subnets:
            self._answers.setdefault(subnet, _Answers.none(self.sample_count))
        indices = range(self.sample_count)[samples]
        self._evaluate(list(dict.fromkeys(subnets)), sorted({index // self._batch for index in indices}), should_stop)
        rows = [self._answers[subnet].scores[samples] for subnet in subnets]
        return np.stack(rows) if rows else np.zeros((0, len(indices)), dtype=np.float32)

    def margins(self, subnets: Sequence[Subnet], samples: slice) -> npt.NDArray[np.float64]:
        """See the port."""
        rows = [self._answers[subnet].margins[samples] for subnet in subnets]
        return np.array(rows, dtype=np.float64).reshape(len(subnets), -1)

    def distances(self, subnets: Sequence[Subnet], samples: slice) -> npt.NDArray[np.float64]:
        """See the port."""
        return np.array([self._answers[subnet].distances[samples].mean() for subnet in subnets], dtype=np.float64)

    def full_model_margins(self) -> npt.NDArray[np.float64]:
        """See the port. The full model runs once per batch; ``edge_runs`` does not count it."""
        if not self._task.classifies:
            return self._of_full_model("margins").astype(np.float64)
        labels = np.concatenate([self._labels[self._samples(batch)] for batch in sorted(self._references)])
        logits = corrected(self._of_full_model("answers"), self._prior)
        return self._task.margins(logits, labels).astype(np.float64)

    def margin_scale(self) -> float:
        """See the port."""
        return self._task.margin_scale(self.full_model_margins(), self.sample_count)

    def release(self) -> None:
        """Free all sessions and features; they are loaded again on demand. Results are kept."""
        self._sessions.release()
        self._cache.clear()

    def close(self) -> None:
        """Free all sessions, features and threads. Idempotent."""
        self._workers.close()
        self._sessions.close()
        self._cache.clear()

    def _evaluate(self, subnets: list[Subnet], batches: list[int], should_stop: Callable[[], bool]) -> None:
        """Evaluate each subnet on those of ``batches`` that it has no results for."""
        groups = {batch: tuple(one for one in subnets if batch not in self._answers[one].batches) for batch in batches}
        trees = {group: self._tree(group) for group in groups.values() if group}
        self._touched |= {batch for batch in batches if groups[batch]}
        if trees:
            self._value_features(subnets)

        def evaluate(batch: int) -> None:
            self._evaluate_batch(batch, groups[batch], trees[groups[batch]])

        self._workers.each([batch for batch in batches if groups[batch]], evaluate, should_stop)

    def _evaluate_batch(self, batch: int, group: tuple[Subnet, ...], tree: PrefixNode) -> None:
        self._refer_to(batch)
        prepared: dict[tuple[int, ...], Array] = {}
        for child in sorted(tree.children, key=lambda child: child.prefix[0].input_size):
            size = child.prefix[0].input_size
            if size not in prepared:
                prepared = {size: self._inputs_of(batch, size)}
            self._visit(child, [prepared[size]], batch)
        cost = evaluation_cost(tree, self._cost_model.edge_latency_ms)
        with self._recording:
            self.edge_runs_without_reuse += cost.edge_runs_without_reuse
            for subnet in group:
                self._answers[subnet].batches.add(batch)

    def _samples(self, batch: int) -> slice:
        return slice(batch * self._batch, (batch + 1) * self._batch)

    def _inputs_of(self, batch: int, input_size: tuple[int, ...] = ()) -> Array:
        return self._inputs.take(self._order[self._samples(batch)], input_size)

    def _tree(self, group: tuple[Subnet, ...]) -> PrefixNode:
        return build_tree(
            self._supernet,
            group,
            edge_latency_ms=self._cost_model.edge_latency_ms,
            batch=min(self._batch, self.sample_count),
            cache_bytes=self._cache_bytes,
        )

    def _visit(self, node: PrefixNode, above: list[Array], batch: int) -> None:
        """Run ``node``'s stretch on its parent's features, then its children on the result."""
        features = self._run(node, above, batch)
        if not node.children:
            samples = self._samples(batch)
            answers = self._answers[Subnet(node.prefix)]
            outputs, targets = corrected(features[-1], self._prior), self._labels[samples]
            answers.scores[samples] = self._task.scores(outputs, targets)
            answers.margins[samples] = self._task.margins(outputs, targets)
            # a prior adds the same to both
            distances = self._task.compared(features[-1]) - self._references[batch].compared
            answers.distances[samples] = (distances**2).mean(axis=-1)
            if self._task.classifies:
                with self._recording:
                    self._store_logits(Subnet(node.prefix), samples, outputs)
            return
        key = (batch, node.prefix)
        if self._cache.keep(key, features, worth=self._worth.get(node.prefix, 0.0), pin=True):
            try:
                for child in node.children:
                    self._visit(child, features, batch)
            finally:
                self._cache.unpin(key)
            return
        del features  # larger than the tree assumed: every child runs the stretch again
        for child in node.children:
            self._visit(replace(child, stretch=node.stretch + child.stretch), above, batch)

    def _refer_to(self, batch: int) -> None:
        """Run the full model on ``batch`` unless its logits are stored."""
        if batch in self._references:
            return
        features = [self._inputs_of(batch)]
        for edge in self._supernet.original.edges:
            features = self._sessions.get(edge).run(features)
        answers, labels = features[-1], self._labels[self._samples(batch)]
        compared = np.array(self._task.compared(answers))
        if self._task.classifies:  # nothing of the runtime stays alive
            self._references[batch] = _Reference(answers.copy(), compared, np.zeros(len(answers), np.float32))
        else:
            nothing = np.zeros((len(answers), 0), np.float32)
            self._references[batch] = _Reference(nothing, compared, self._task.margins(answers, labels))

    def _run(self, node: PrefixNode, above: list[Array], batch: int) -> list[Array]:
        """The features at ``node``, computed from its longest cached prefix."""
        features, done = above, len(node.prefix) - len(node.stretch)
        for length in range(len(node.prefix), done, -1):
            kept = self._cache.get((batch, node.prefix[:length]))
            if kept is not None:
                features, done = kept, length
                break
        with self._recording:
            self.edge_runs += len(node.prefix) - done
        for number in range(done, len(node.prefix)):
            features = self._sessions.get(node.prefix[number]).run(features)
            prefix = node.prefix[: number + 1]
            if prefix in self._worth and prefix != node.prefix:
                self._cache.keep((batch, prefix), features, worth=self._worth[prefix])
        return features

    def _value_features(self, group: Sequence[Subnet]) -> None:
        """Predict which features the group after this one will need, and revalue the cache."""
        if not self._cache_bytes:
            return
        self._worth = prefix_worth(
            self._expected_children(group),
            edge_latency_ms=self._cost_model.edge_latency_ms,
            feature_bytes=self._feature_bytes,
            room_bytes=self._cache_bytes // len(self._touched),
        )
        self._cache.revalue(lambda prefix: self._worth.get(prefix, 0.0))

    def _expected_children(self, group: Sequence[Subnet]) -> dict[Subnet, float]:
        """``len(group)`` expected children, spread equally over the better half of evaluated subnets and the group."""
        evaluated = sorted(
            (subnet for subnet, answers in self._answers.items() if answers.batches),
            key=lambda subnet: self._answers[subnet].accuracy(self._batch),
            reverse=True,
        )
        parents = dict.fromkeys((*evaluated[: min(_PARENTS, (len(evaluated) + 1) // 2)], *group))
        return dict.fromkeys(parents, len(group) / len(parents))

    def _feature_bytes(self, edge: Edge) -> int:
        return self._supernet.ends(edge)[1].nbytes * min(self._batch, self.sample_count)


@dataclass(frozen=True)
class _Reference:
    """The full model's answers to one batch, as far as they are needed.

    ``answers``: [samples, classes] of a classifier, whose margins depend on the prior; of others no values, but
    ``margins`` [samples]. ``compared``: [samples, values].
    """

    answers: Array
    compared: Array
    margins: Scores


@dataclass
class _Answers:
    """A subnet's results: the evaluated batches, and per sample [count] score, margin and distance.

    ``distances``: mean squared difference of the compared values from the full model's.
    """

    scores: Scores
    margins: npt.NDArray[np.float32]
    distances: npt.NDArray[np.float32]
    batches: set[int] = field(default_factory=set)

    @classmethod
    def none(cls, sample_count: int) -> _Answers:
        scores, margins, distances = np.zeros((3, sample_count), dtype=np.float32)
        return cls(scores, margins, distances)

    def accuracy(self, batch: int) -> float:
        """Accuracy on the samples evaluated so far, in batches of ``batch``."""
        evaluated = sum(min(batch, len(self.scores) - number * batch) for number in self.batches)
        return float(self.scores.sum(dtype=np.float64)) / evaluated


class _Sessions:
    """LRU cache of loaded edges: beyond ``limit``, the least recently used session is closed."""

    def __init__(self, load: Load, *, limit: int | None) -> None:
        self._load = load
        self._limit = limit
        self._loaded: OrderedDict[Edge, LoadedStretch] | None = OrderedDict()
        self._lock = threading.Lock()

    def get(self, edge: Edge) -> LoadedStretch:
        with self._lock:
            return self._get(edge)

    def _get(self, edge: Edge) -> LoadedStretch:
        if self._loaded is None:
            raise ClosedError("the evaluator was closed")
        edge = edge.at(())
        if edge in self._loaded:
            self._loaded.move_to_end(edge)
            return self._loaded[edge]
        if self._limit is not None and len(self._loaded) >= self._limit:
            self._loaded.popitem(last=False)[1].close()
        session = self._load((edge,))
        self._loaded[edge] = session
        return session

    def release(self) -> None:
        for session in (self._loaded or {}).values():
            session.close()
        (self._loaded or {}).clear()

    def close(self) -> None:
        self.release()
        self._loaded = None
