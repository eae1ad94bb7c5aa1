"""The prefix tree: which features to keep while a group of subnets is evaluated.

Pure: the evaluator executes it. A node is a prefix that several subnets share and whose output is cached; a leaf is a
subnet. In depth-first order the live features are at most those of one chain from the root. Source: AdaptiveNet §5.2
and Algorithm 1, BuildTree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from device_sdk.supernet.plan import Edge, Subnet
from device_sdk.supernet.supernet import Supernet


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
