"""Which prefixes' features are worth keeping for the groups to come.

Pure. A later group is expected to be children of the subnets that did best: a child goes its parent's way up to an
edge that is any of the parent's edges equally likely (AdaptiveNet §5.1 replaces a random branch), and needs the feature
of the longest kept prefix on that way.
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
    """What keeping a feature saves per byte, for the prefixes that are worth a place in ``room_bytes``.

    ``children``: how many children each parent is expected to have in the next group; ``feature_bytes``: of what an
    edge puts out. Worth = predicted latency that is saved × probability that a child needs the feature / its bytes.
    Greedy: prefixes enter in the order of their worth, and what enters lessens what its shorter and longer neighbours
    still save. AdaptiveNet §5.2 (BuildTree) weighs by latency × share, without bytes and neighbours.
    """
    known = _known_prefixes(children, edge_latency_ms, feature_bytes)
    kept: dict[Prefix, float] = {}

    def worth(prefix: Prefix) -> float:
        one = known[prefix]
        below = _kept_below(prefix, kept)
        saved_ms = one.latency_ms - (known[below].latency_ms if below else 0.0)
        return saved_ms * one.needed / one.nbytes

    waiting = [(-one.latency_ms * one.needed / one.nbytes, prefix) for prefix, one in known.items()]
    heapq.heapify(waiting)
    while waiting:
        _, prefix = heapq.heappop(waiting)
        if known[prefix].nbytes > room_bytes:
            continue
        now = worth(prefix)
        if waiting and -now > waiting[0][0]:  # lessened since it was put there: back into the queue
            heapq.heappush(waiting, (-now, prefix))
            continue
        if now <= 0:
            break
        kept[prefix] = now
        room_bytes -= known[prefix].nbytes
        _serve(prefix, known, kept)
    return kept


@dataclass
class _Known:
    latency_ms: float
    nbytes: int
    users: float = 0.0  # children that are expected to start from here or further on

    @property
    def needed(self) -> float:
        """Probability that there is such a child."""
        return -math.expm1(-self.users)


def _known_prefixes(
    children: Mapping[Subnet, float],
    edge_latency_ms: Callable[[Edge], float],
    feature_bytes: Callable[[Edge], int],
) -> dict[Prefix, _Known]:
    """The prefixes of the parents, whole subnets left out."""
    known: dict[Prefix, _Known] = {}
    for parent, count in children.items():
        latency_ms = 0.0
        for length in range(1, len(parent.edges)):
            edge = parent.edges[length - 1]
            latency_ms += edge_latency_ms(edge)
            prefix = parent.edges[:length]
            if prefix not in known:
                known[prefix] = _Known(latency_ms, feature_bytes(edge))
            known[prefix].users += count * (1 - length / len(parent.edges))
    return known


def _kept_below(prefix: Prefix, kept: Mapping[Prefix, float]) -> Prefix:
    """The longest kept prefix that is shorter than ``prefix``."""
    for length in range(len(prefix) - 1, 0, -1):
        if prefix[:length] in kept:
            return prefix[:length]
    return ()


def _serve(prefix: Prefix, known: Mapping[Prefix, _Known], kept: Mapping[Prefix, float]) -> None:
    """Who starts from ``prefix`` from now on uses no shorter one, down to the next that is kept."""
    served = known[prefix].users
    for length in range(len(prefix) - 1, 0, -1):
        shorter = known[prefix[:length]]
        shorter.users = max(shorter.users - served, 0.0)
        if prefix[:length] in kept:
            return
