"""Value of caching a prefix's features for later groups.

Pure. A later group is modelled as children of the best subnets. A child shares its parent's path up to an edge drawn
uniformly from the parent's edges (AdaptiveNet §5.1 replaces a random branch), and starts from the longest cached prefix
of that path.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from device_sdk.search.evaluation.feature_cache import Prefix
from device_sdk.supernet.plan import Edge, Subnet


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
