"""Prefixes that subnets share: a tree of them, what each is worth keeping, and the features that are kept."""

from __future__ import annotations

import heapq
import itertools
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from device_sdk.runtimes.port import Array
from device_sdk.supernet.plan import Edge, Subnet
from device_sdk.supernet.supernet import Supernet

Prefix = tuple[Edge, ...]
Key = tuple[int, Prefix]  # batch number, edges that the batch has run through


@dataclass
class _Entry:
    features: list[Array]
    nbytes: int
    worth: float
    serial: int  # marks the entry's current item in the heap; older items are stale
    pinned: bool = False


class FeatureCache:
    """Holds all features that outlive one edge run.

    ``kept_bytes``, the sum of the arrays' sizes, never exceeds ``cap_bytes``: entries are evicted before one is added.
    Pinned entries are not evicted; of the others the least valuable is evicted first. An unpinned entry of value 0 is
    dropped at once. Thread-safe. Source: AdaptiveNet §5.2, there without persistence.
    """

    def __init__(self, cap_bytes: int) -> None:
        self._cap_bytes = cap_bytes
        self._entries: dict[Key, _Entry] = {}
        self._by_worth: list[tuple[float, int, Key]] = []  # a heap with lazy deletion of stale items
        self._serials = itertools.count()
        self._lock = threading.Lock()
        self.kept_bytes = 0
        self.peak_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> list[Array] | None:
        """The features cached under ``key``, or None."""
        with self._lock:
            entry = self._entries.get(key)
            return entry.features if entry else None

    def keep(self, key: Key, features: list[Array], *, worth: float, pin: bool = False) -> bool:
        """Cache ``features``; with ``pin`` until ``unpin``. Returns False if they do not fit.

        To make room, unpinned entries of lower value are evicted; for a pinned entry, any unpinned ones.
        """
        with self._lock:
            return self._keep(key, features, worth, pin=pin)

    def _keep(self, key: Key, features: list[Array], worth: float, *, pin: bool) -> bool:
        entry = self._entries.get(key)
        if entry is None:
            nbytes = sum(feature.nbytes for feature in features)
            if not self._make_room(nbytes, worth=None if pin else worth):
                return False
            entry = self._entries[key] = _Entry(features, nbytes, worth, next(self._serials))
            self.kept_bytes += nbytes
            self.peak_bytes = max(self.peak_bytes, self.kept_bytes)
        entry.pinned = entry.pinned or pin
        self._note(key, entry, worth)
        return True

    def unpin(self, key: Key) -> None:
        """Make a pinned entry evictable."""
        with self._lock:
            entry = self._entries[key]
            entry.pinned = False
            self._note(key, entry, entry.worth)

    def revalue(self, worth: Callable[[Prefix], float]) -> None:
        """Update the value of every entry, for instance at the start of a generation."""
        with self._lock:
            self._by_worth.clear()
            for key, entry in list(self._entries.items()):
                self._note(key, entry, worth(key[1]))

    def clear(self) -> None:
        """Drop everything."""
        self._entries.clear()
        self._by_worth.clear()
        self.kept_bytes = 0

    def _note(self, key: Key, entry: _Entry, worth: float) -> None:
        entry.worth, entry.serial = worth, next(self._serials)
        if entry.pinned:
            return
        if worth > 0:
            heapq.heappush(self._by_worth, (worth, entry.serial, key))
        else:
            self._drop(key)

    def _make_room(self, nbytes: int, *, worth: float | None) -> bool:
        """Evict unpinned entries until ``nbytes`` fit; if ``worth`` is given, only those of lower value."""
        while self.kept_bytes + nbytes > self._cap_bytes and self._by_worth:
            least, serial, key = self._by_worth[0]
            entry = self._entries.get(key)
            outdated = entry is None or entry.pinned or entry.serial != serial
            if not outdated and worth is not None and least >= worth:
                return False
            heapq.heappop(self._by_worth)
            if not outdated:
                self._drop(key)
        return self.kept_bytes + nbytes <= self._cap_bytes

    def _drop(self, key: Key) -> None:
        self.kept_bytes -= self._entries.pop(key).nbytes


def prefix_worth(
    children: Mapping[Subnet, float],
    *,
    edge_latency_ms: Callable[[Edge], float],
    feature_bytes: Callable[[Edge], int],
    room_bytes: int,
) -> dict[Prefix, float]:
    """Latency saved per byte, for the prefixes whose features are chosen for ``room_bytes`` of cache.

    ``children``: expected children per parent in the next group; ``feature_bytes``: size of an edge's output. Worth =
    predicted latency saved × probability that a child needs the feature / its bytes. Greedy: prefixes are chosen in
    order of worth, and each choice lowers the worth of shorter and longer prefixes on its path. AdaptiveNet §5.2
    (BuildTree) weighs by latency × share, without bytes and without this interaction.
    """
    stats = _prefix_stats(children, edge_latency_ms, feature_bytes)
    kept: dict[Prefix, float] = {}

    def worth(prefix: Prefix) -> float:
        stat = stats[prefix]
        below = _kept_below(prefix, kept)
        saved_ms = stat.latency_ms - (stats[below].latency_ms if below else 0.0)
        return saved_ms * stat.needed / stat.nbytes

    queue = [(-stat.latency_ms * stat.needed / stat.nbytes, prefix) for prefix, stat in stats.items()]
    heapq.heapify(queue)
    while queue:
        _, prefix = heapq.heappop(queue)
        if stats[prefix].nbytes > room_bytes:
            continue
        now = worth(prefix)
        if queue and -now > queue[0][0]:  # its worth fell since it was queued: queue it again
            heapq.heappush(queue, (-now, prefix))
            continue
        if now <= 0:
            break
        kept[prefix] = now
        room_bytes -= stats[prefix].nbytes
        _serve(prefix, stats, kept)
    return kept


@dataclass
class _PrefixStats:
    latency_ms: float
    nbytes: int
    users: float = 0.0  # expected children that share at least this prefix and start from no longer one

    @property
    def needed(self) -> float:
        """Probability of at least one such child (Poisson)."""
        return -math.expm1(-self.users)


def _prefix_stats(
    children: Mapping[Subnet, float],
    edge_latency_ms: Callable[[Edge], float],
    feature_bytes: Callable[[Edge], int],
) -> dict[Prefix, _PrefixStats]:
    """The proper prefixes of the parents."""
    stats: dict[Prefix, _PrefixStats] = {}
    for parent, count in children.items():
        latency_ms = 0.0
        for length in range(1, len(parent.edges)):
            edge = parent.edges[length - 1]
            latency_ms += edge_latency_ms(edge)
            prefix = parent.edges[:length]
            if prefix not in stats:
                stats[prefix] = _PrefixStats(latency_ms, feature_bytes(edge))
            stats[prefix].users += count * (1 - length / len(parent.edges))
    return stats


def _kept_below(prefix: Prefix, kept: Mapping[Prefix, float]) -> Prefix:
    """The longest chosen prefix that is shorter than ``prefix``."""
    for length in range(len(prefix) - 1, 0, -1):
        if prefix[:length] in kept:
            return prefix[:length]
    return ()


def _serve(prefix: Prefix, stats: Mapping[Prefix, _PrefixStats], kept: Mapping[Prefix, float]) -> None:
    """Children that start from ``prefix`` no longer use shorter prefixes, down to the next chosen one."""
    served = stats[prefix].users
    for length in range(len(prefix) - 1, 0, -1):
        shorter = stats[prefix[:length]]
        shorter.users = max(shorter.users - served, 0.0)
        if prefix[:length] in kept:
            return


@dataclass(frozen=True)
class PrefixNode:
    """A prefix of subnets; without children it is a whole subnet. The root is the empty prefix: the input."""

    prefix: tuple[Edge, ...]
    stretch: tuple[Edge, ...]  # the last edges, which run on the parent's feature
    children: tuple[PrefixNode, ...] = ()

    def nodes(self) -> Iterator[PrefixNode]:
        """All nodes below this one, depth first."""
        for child in self.children:
            yield child
            yield from child.nodes()


@dataclass(frozen=True)
class EvaluationCost:
    """Cost per batch of evaluating a tree, compared with evaluating its subnets separately."""

    edge_runs: int
    edge_runs_without_reuse: int
    latency_ms: float
    latency_without_reuse_ms: float

    @property
    def share_saved(self) -> float:
        """Predicted fraction of time that reuse saves, 0 to 1."""
        if not self.latency_without_reuse_ms:
            return 0.0
        return 1 - self.latency_ms / self.latency_without_reuse_ms


def build_tree(
    supernet: Supernet,
    subnets: Iterable[Subnet],
    *,
    edge_latency_ms: Callable[[Edge], float],
    batch: int,
    cache_bytes: int,
) -> PrefixNode:
    """The tree in which to evaluate ``subnets``; equal subnets share a leaf.

    Prefixes are cached in order of importance (predicted latency × share of subnets that have it) while the features
    along every chain fit ``cache_bytes``, for batches of ``batch`` samples. Each branch recomputes a prefix that is not
    cached.
    """
    distinct = tuple(dict.fromkeys(subnets))
    full = PrefixNode((), (), _branches(distinct, 0))

    def importance(node: PrefixNode) -> float:
        return sum(map(edge_latency_ms, node.prefix)) * _leaves(node) / len(distinct)

    def feature_bytes(node: PrefixNode) -> int:
        return supernet.ends(node.prefix[-1])[1].nbytes * batch

    shared = sorted((node for node in full.nodes() if node.children), key=importance, reverse=True)
    kept: dict[tuple[Edge, ...], int] = {}
    for node in shared:
        size = feature_bytes(node)
        above = sum(kept.get(node.prefix[:length], 0) for length in range(len(node.prefix)))
        if above + size + _largest_chain(node, kept) <= cache_bytes:
            kept[node.prefix] = size
    return replace(full, children=_keep_only(full, kept, ()))


def evaluation_cost(tree: PrefixNode, edge_latency_ms: Callable[[Edge], float]) -> EvaluationCost:
    """Edge runs and predicted latency of one batch through ``tree``, with and without reuse."""
    run = [edge for node in tree.nodes() for edge in node.stretch]
    alone = [edge for node in tree.nodes() if not node.children for edge in node.prefix]
    return EvaluationCost(
        edge_runs=len(run),
        edge_runs_without_reuse=len(alone),
        latency_ms=sum(map(edge_latency_ms, run)),
        latency_without_reuse_ms=sum(map(edge_latency_ms, alone)),
    )


def _branches(subnets: Sequence[Subnet], depth: int) -> tuple[PrefixNode, ...]:
    """The nodes below a prefix of ``depth`` edges that all ``subnets`` share, one per edge that follows."""
    groups: dict[Edge, list[Subnet]] = {}
    for subnet in subnets:
        groups.setdefault(subnet.edges[depth], []).append(subnet)
    nodes = []
    for group in groups.values():
        end = _shared_length(group)
        edges = group[0].edges
        children = _branches(group, end) if len(group) > 1 else ()
        nodes.append(PrefixNode(edges[:end], edges[depth:end], children))
    return tuple(nodes)


def _shared_length(subnets: Sequence[Subnet]) -> int:
    length = 0
    for edges in zip(*(subnet.edges for subnet in subnets), strict=False):
        if len(set(edges)) > 1:
            break
        length += 1
    return length


def _leaves(node: PrefixNode) -> int:
    return sum(not below.children for below in node.nodes())


def _largest_chain(node: PrefixNode, kept: dict[tuple[Edge, ...], int]) -> int:
    """The most bytes of kept features on a chain below ``node``."""
    chains = (kept.get(child.prefix, 0) + _largest_chain(child, kept) for child in node.children)
    return max(chains, default=0)


def _keep_only(
    node: PrefixNode, kept: dict[tuple[Edge, ...], int], recomputed: tuple[Edge, ...]
) -> tuple[PrefixNode, ...]:
    """The children of ``node`` with nodes that are not kept replaced by their own children."""
    children: list[PrefixNode] = []
    for child in node.children:
        stretch = (*recomputed, *child.stretch)
        if child.children and child.prefix not in kept:
            children += _keep_only(child, kept, stretch)
        else:
            children.append(replace(child, stretch=stretch, children=_keep_only(child, kept, ())))
    return tuple(children)
