"""Batch-wise group evaluation of subnets with reuse of shared prefixes (AdaptiveNet §5.2, DFS-Evaluate)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from device_sdk.cost import CostModel
from device_sdk.errors import ClosedError, DataError, InputError, UsageError
from device_sdk.graph import Edge, Subnet, Supernet
from device_sdk.runtimes.port import Array, LoadedStretch
from device_sdk.search.prefix_tree import PrefixNode, build_tree, evaluation_cost

Load = Callable[[tuple[Edge, ...]], LoadedStretch]


class PrefixTreeEvaluator:
    """The share of samples that a subnet classifies as labelled; implements the search's ``Evaluator``.

    Every edge runs in a session of its own, so that accuracies are bit-identical with and without reuse. A
    subnet is evaluated once; its accuracy is remembered. Not thread-safe. ``close`` frees the sessions.

    ``inputs``: [count, *shape of cut point 0], prepared; ``labels``: [count] class indices. The output of the
    last cut point is [batch, classes] (its last tensor, if it has several). At most ``cache_bytes`` of
    features are kept at a time, and at most ``max_sessions`` sessions (all edges' by default).

    Counters over all calls: ``edge_runs`` (one edge on one batch), ``edge_runs_without_reuse`` (what
    evaluating the same subnets one by one takes), ``peak_cached_bytes``.

    Raises:
        DataError: there are no samples.
        InputError: inputs and labels differ in number.
        UsageError: a size that makes no sense.
    """

    def __init__(
        self,
        supernet: Supernet,
        load: Load,
        inputs: Array,
        labels: npt.NDArray[np.int64],
        cost_model: CostModel,
        batch: int = 64,
        cache_bytes: int = 64_000_000,
        reuse: bool = True,
        max_sessions: int | None = None,
    ) -> None:
        if len(inputs) != len(labels):
            raise InputError(f"there are {len(inputs)} samples and {len(labels)} labels")
        if not len(inputs):
            raise DataError("there are no samples to evaluate subnets on")
        if batch < 1 or cache_bytes < 0 or (max_sessions is not None and max_sessions < 1):
            raise UsageError("batch and max_sessions must be at least 1 and cache_bytes at least 0")
        self._supernet = supernet
        self._sessions = _Sessions(load, limit=max_sessions)
        self._inputs, self._labels = inputs, labels
        self._cost_model = cost_model
        self._batch = batch
        self._cache_bytes = cache_bytes if reuse else 0
        self._known: dict[Subnet, float] = {}
        self._cached_bytes = 0
        self.edge_runs = 0
        self.edge_runs_without_reuse = 0
        self.peak_cached_bytes = 0

    def accuracies(self, subnets: Sequence[Subnet]) -> list[float]:
        """See the port.

        Raises:
            UsageError: one of the subnets is not a path of the supernet.
            RuntimeFailedError: a block did not load or run.
            ClosedError: the evaluator was closed.
        """
        unknown = [subnet for subnet in dict.fromkeys(subnets) if subnet not in self._known]
        if unknown:
            self._evaluate(unknown)
        return [self._known[subnet] for subnet in subnets]

    def close(self) -> None:
        """Free all sessions. May be called twice."""
        self._sessions.close()

    def _evaluate(self, subnets: Sequence[Subnet]) -> None:
        for subnet in subnets:
            self._supernet.check(subnet)
        edge_latency_ms = self._cost_model.edge_latency_ms
        tree = build_tree(
            self._supernet,
            subnets,
            edge_latency_ms=edge_latency_ms,
            batch=min(self._batch, len(self._inputs)),
            cache_bytes=self._cache_bytes,
        )
        correct = dict.fromkeys(subnets, 0)
        runs_without_reuse = evaluation_cost(tree, edge_latency_ms).edge_runs_without_reuse
        for first in range(0, len(self._inputs), self._batch):
            samples = slice(first, first + self._batch)
            for child in tree.children:
                self._visit(child, [self._inputs[samples]], self._labels[samples], correct)
            self.edge_runs_without_reuse += runs_without_reuse
        self._known.update((subnet, right / len(self._labels)) for subnet, right in correct.items())

    def _visit(self, node: PrefixNode, features: list[Array], labels: Array, correct: dict[Subnet, int]) -> None:
        """Run ``node``'s stretch on the parent's features, then its children on what comes out."""
        for edge in node.stretch:
            features = self._sessions.get(edge).run(features)
            self.edge_runs += 1
        if not node.children:
            correct[Subnet(node.prefix)] += int(np.count_nonzero(features[-1].argmax(axis=-1) == labels))
            return
        size = sum(feature.nbytes for feature in features)
        self._cached_bytes += size
        self.peak_cached_bytes = max(self.peak_cached_bytes, self._cached_bytes)
        try:
            for child in node.children:
                self._visit(child, features, labels, correct)
        finally:
            self._cached_bytes -= size


class _Sessions:
    """Loaded edges, the least recently used closed first once there are more than ``limit``."""

    def __init__(self, load: Load, *, limit: int | None) -> None:
        self._load = load
        self._limit = limit
        self._loaded: OrderedDict[Edge, LoadedStretch] | None = OrderedDict()

    def get(self, edge: Edge) -> LoadedStretch:
        if self._loaded is None:
            raise ClosedError("the evaluator was closed")
        if edge in self._loaded:
            self._loaded.move_to_end(edge)
            return self._loaded[edge]
        if self._limit is not None and len(self._loaded) >= self._limit:
            self._loaded.popitem(last=False)[1].close()
        session = self._load((edge,))
        self._loaded[edge] = session
        return session

    def close(self) -> None:
        for session in (self._loaded or {}).values():
            session.close()
        self._loaded = None
