"""The one cost model: costs of paths and plans, and limits on them.

Latency is additive over edges and then calibrated on whole subnets, since a composed graph saves what separate
blocks pay (AdaptiveNet §5.1 has the plain sum). Where neighbours run in different renditions, the conversion of the
tensor between them is added. Memory is the resident bytes of all blocks of the path plus the largest working set of
one of them.

Where neighbours run at different homes, crossing from one to the other is added, and the offset is that of the homes by
their shares of the latency.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import msgspec

from device_sdk.errors import BudgetError, UsageError
from device_sdk.supernet.plan import Decider, Edge, ExitChoice, Subnet, decider_kind

MB = 1_000_000  # bytes
_BITS_PER_MS_AND_MBPS = 1000.0
_MOST_SAVED = 0.9  # of the sum of the blocks, that composing them saves at several homes


class EdgeCost(msgspec.Struct, frozen=True):
    """Cost of one block in one rendition on this device, at the profile's batch size: alone, or its share of a subnet.

    ``resident_bytes`` as long as it is loaded, ``working_bytes`` while it runs.
    """

    latency_ms: float
    p95_latency_ms: float
    resident_bytes: int
    working_bytes: int


class Cost(msgspec.Struct, frozen=True):
    """Cost of a subnet that answers every sample by itself."""

    latency_ms: float
    peak_bytes: int


class PlanCost(msgspec.Struct, frozen=True, kw_only=True):
    """Expected cost of a plan per sample. ``None`` is unknown, never zero.

    ``latency_ms`` is the mean; ``bytes_sent`` too. ``accuracy``: of the samples that get an answer. ``share_early`` of
    the samples are answered by an exit, ``share_second`` by a cascade's second path. A server's model is asked about
    ``share_asked``: the hard ones, or all that reach the end of a plan that is answered there; ``share_asked_early`` of
    them are asked about from an exit. ``share_abstained`` get no answer.
    """

    accuracy: float | None
    latency_ms: float | None
    p95_latency_ms: float | None
    bytes_sent: float
    peak_bytes: int
    energy_mj: float | None = None
    share_early: float = 0.0
    share_asked: float = 0.0
    share_asked_early: float = 0.0
    share_abstained: float = 0.0
    share_second: float = 0.0

    @property
    def coverage(self) -> float:
        """The share of samples that get an answer."""
        return 1.0 - self.share_abstained


class Budget(msgspec.Struct, frozen=True):
    """Limits on the cost of a plan; at least one is set.

    ``latency_ms``: of one call with one sample, as the application sees it when nothing else runs on the device; or
    ``latency_ratio``: of the full model's latency in the same circumstances. ``percentile``: of the calls that the
    limit holds for; 50 is the median. ``calls_per_second``: the pace at which the application calls; caches are colder
    between rare calls. None: the pace of the last calls, if any. ``threads``: of a home; those with more are not used.

    Raises:
        BudgetError: nothing is limited, a limit is zero, negative or not a number, latency is limited twice, or the
            percentile does not lie between 0 and 100.
    """

    latency_ms: float | None = None
    memory_mb: float | None = None
    latency_ratio: float | None = None
    percentile: float = 50.0
    calls_per_second: float | None = None
    threads: int | None = None

    def __post_init__(self) -> None:
        if not self.limits_latency and self.memory_mb is None:
            raise BudgetError("the budget limits nothing", hint="set latency_ms, memory_mb or both")
        for name in ("latency_ms", "memory_mb", "latency_ratio", "calls_per_second"):
            limit = getattr(self, name)
            if limit is not None and not limit > 0:
                raise BudgetError(f"the budget's {name} is {limit:g}; it must be above zero")
        if self.latency_ms is not None and self.latency_ratio is not None:
            raise BudgetError("the budget has latency_ms and latency_ratio; one of them is enough")
        if self.threads is not None and self.threads < 1:
            raise BudgetError(f"the budget has {self.threads} threads; it must have at least 1")
        if not 0 < self.percentile < 100:
            raise BudgetError(f"the budget's percentile is {self.percentile:g}; it must lie between 0 and 100")

    @property
    def limits_latency(self) -> bool:
        """True if there is a latency limit of either kind."""
        return self.latency_ms is not None or self.latency_ratio is not None

    def resolved(self, full_ms: float) -> Budget:
        """The same with its latency in milliseconds, where the full model takes ``full_ms``."""
        if self.latency_ratio is None:
            return self
        return msgspec.structs.replace(self, latency_ms=self.latency_ratio * full_ms, latency_ratio=None)

    def fits(self, cost: Cost) -> bool:
        """True if ``cost`` is within the limits of latency and memory; see ``fits_latency``."""
        return self.fits_latency(cost.latency_ms) and self.fits_memory(cost.peak_bytes)

    def fits_latency(self, latency_ms: float) -> bool:
        """True if ``latency_ms`` is within that limit; a ``latency_ratio`` does not count until it is ``resolved``."""
        return self.latency_ms is None or latency_ms <= self.latency_ms

    def fits_memory(self, peak_bytes: int) -> bool:
        """True if ``peak_bytes`` is within the memory limit."""
        return self.memory_mb is None or peak_bytes <= self.memory_mb * MB


class CostModel(msgspec.Struct, frozen=True):
    """Predicts the cost of any subnet from the costs of its edges.

    ``latency_ms(subnet) = offset_ms + scale · Σ edge latency + Σ change_ms(neighbours)``, fitted on whole subnets.
    Changes never cost less than nothing, so the sum of edges alone is a lower bound.

    ``homes``: of an edge that names no home, the same edge at each of its homes. It then costs what it costs at the
    best of them in its path (``housed``). Without an entry it runs at the first home.
    """

    edge_costs: Mapping[Edge, EdgeCost]
    scale: float = 1.0
    offset_ms: float = 0.0
    exit_costs: Mapping[tuple[str, str, tuple[int, ...]], EdgeCost] = {}  # by exit, rendition and input size
    entry_change_ms: Mapping[Edge, float] = {}  # of an edge that follows one of another rendition
    exit_overhead_ms: float = 0.0  # of going on behind an exit that was tried, beyond its branch
    call_overhead_ms: float = 0.0  # of every call of a plan, beyond the models that it runs
    decision_ms: Mapping[str, float] = {}  # of deciding about a sample at the end, by kind of decider
    home_offset_ms: Mapping[str, float] = {}  # of a path at a home other than the first, in place of offset_ms
    crossing_ms: Mapping[tuple[str, Edge], float] = {}  # by the home before, and the edge at another one
    homes: Mapping[Edge, tuple[Edge, ...]] = {}

    def latency_ms(self, subnet: Subnet) -> float:
        """Predicted median latency at batch 1."""
        return self.latency_along_ms(subnet.edges)

    def latency_along_ms(self, edges: Iterable[Edge]) -> float:
        """Predicted latency of consecutive edges, run as one model at each home."""
        return self._named_ms(self._housed(tuple(edges)))

    def _named_ms(self, edges: Sequence[Edge]) -> float:
        changing = self.entry_change_ms or self.crossing_ms
        changes = sum(self.change_ms(before, after) for before, after in pairwise(edges)) if changing else 0
        return self._offset_ms(edges) + sum(self.scale * self.edge_costs[edge].latency_ms for edge in edges) + changes

    def _offset_ms(self, edges: Sequence[Edge]) -> float:
        """The offset of a path at its homes, by their shares of the latency of its edges."""
        if not self.home_offset_ms:
            return self.offset_ms
        own_ms = [self.edge_costs[edge].latency_ms for edge in edges]
        offsets_ms = [self.home_offset_ms.get(edge.home, self.offset_ms) for edge in edges]
        total_ms = sum(own_ms)
        if not total_ms > 0:
            return self.offset_ms
        mixed_ms = sum(own * offset for own, offset in zip(own_ms, offsets_ms, strict=True)) / total_ms
        return max(mixed_ms, -_MOST_SAVED * self.scale * total_ms)

    def knows(self, subnet: Subnet) -> bool:
        """True if the costs of all its edges are known."""
        return all(edge in self.edge_costs for edge in subnet.edges)

    def housed(self, subnet: Subnet) -> Subnet:
        """``subnet`` with each edge at the home that makes its path fastest; edges that name a home keep it.

        Exact for edges and changes between neighbours, by dynamic programming along the path.
        """
        return Subnet(self._housed(subnet.edges))

    def _housed(self, edges: tuple[Edge, ...]) -> tuple[Edge, ...]:
        if not self.homes or not edges:
            return edges
        choices = [self.homes.get(edge, (edge,)) for edge in edges]
        best: dict[Edge, tuple[float, tuple[Edge, ...]]]
        best = {edge: (self.scale * self.edge_costs[edge].latency_ms, (edge,)) for edge in choices[0]}
        for those in choices[1:]:
            reached = {}
            for edge in those:
                ways = ((ms + self.change_ms(before, edge), path) for before, (ms, path) in best.items())
                least_ms, path = min(ways)
                reached[edge] = (least_ms + self.scale * self.edge_costs[edge].latency_ms, (*path, edge))
            best = reached
        paths = [path for _, path in best.values()]  # the offset of homes may turn the order of the last few
        names = dict.fromkeys(edge.home for those in choices for edge in those)
        at_one = (tuple(next((e for e in those if e.home == name), those[0]) for those in choices) for name in names)
        return min((*paths, *at_one), key=self._named_ms)

    def at_best_homes(self, homes: Mapping[Edge, tuple[Edge, ...]]) -> CostModel:
        """The same for edges that may run at any of ``homes``; see there."""
        known = {edge: tuple(one for one in those if one in self.edge_costs) for edge, those in homes.items()}
        known = {edge: those for edge, those in known.items() if those and those != (edge,)}
        fastest = {
            edge: min((self.edge_costs[one] for one in those), key=lambda cost: cost.latency_ms)
            for edge, those in known.items()
        }
        return msgspec.structs.replace(self, homes=known, edge_costs={**fastest, **self.edge_costs})

    def part_latency_ms(self, part: Sequence[Edge], whole: Sequence[Edge]) -> float:
        """The latency of ``part`` of a path: its own edges, and their share of the offset of a ``whole`` path.

        The offset was fitted on whole paths. Where composing them saves time it is negative, and a short part that bore
        all of it would take no time.
        """
        if not part:
            return 0.0
        known = whole if all(edge in self.edge_costs for edge in whole) else part
        own, all_ = self._housed(tuple(part)), self._housed(tuple(known))
        own_ms, all_ms = (self._named_ms(edges) - self._offset_ms(edges) for edges in (own, all_))
        share = min(own_ms / all_ms, 1.0) if all_ms > 0 else 1.0
        return max(own_ms + share * self._offset_ms(all_), 0.0)

    def change_ms(self, before: Edge, after: Edge) -> float:
        """Milliseconds added where ``after`` has another rendition or home than ``before``; at least 0."""
        if before.home != after.home:
            return self.crossing_ms.get((before.home, after), 0.0)
        return 0.0 if before.rendition == after.rendition else self.entry_change_ms.get(after, 0.0)

    def exit_latency_ms(self, choice: ExitChoice, input_size: tuple[int, ...] = ()) -> float:
        """Latency that a tried exit adds to a sample that goes on: its branch, the decision, and a further session."""
        return self.exit_costs[choice.exit, choice.rendition, input_size].latency_ms + self.exit_overhead_ms

    def reach_ms(self, before: Iterable[Edge]) -> float:
        """Latency of the blocks up to an exit for a sample that leaves there, without any branches tried.

        No session follows, so the overhead of going on, which ``exit_latency_ms`` of this exit contains, is taken off.
        """
        return max(self.latency_along_ms(before) - self.exit_overhead_ms, 0.0)

    def deciding_ms(self, decider: Decider) -> float:
        """Latency of ``decider`` for a sample that reached the end; 0 where it was not measured."""
        return self.decision_ms.get(decider_kind(decider), 0.0)

    def exit_bytes(self, choice: ExitChoice) -> int:
        """Memory that an exit adds to a plan."""
        return self.exit_costs[choice.exit, choice.rendition, ()].resident_bytes

    def edge_latency_ms(self, edge: Edge) -> float:
        """The share of one edge in a composed subnet, next to neighbours of its own rendition and home."""
        if self.homes:
            return self.scale * min(self.edge_costs[one].latency_ms for one in self.homes.get(edge, (edge,)))
        return self.scale * self.edge_costs[edge].latency_ms

    def slowed(self, factor: float) -> CostModel:
        """The costs of a device ``factor`` times slower; memory stays the same.

        Raises:
            UsageError: a factor that is not above zero.
        """
        if not factor > 0:
            raise UsageError(f"the device's factor is {factor:g}; it must be above zero")
        return msgspec.structs.replace(
            self,
            scale=factor * self.scale,
            offset_ms=factor * self.offset_ms,
            exit_costs={
                key: msgspec.structs.replace(cost, latency_ms=factor * cost.latency_ms)
                for key, cost in self.exit_costs.items()
            },
            entry_change_ms={edge: factor * change_ms for edge, change_ms in self.entry_change_ms.items()},
            exit_overhead_ms=factor * self.exit_overhead_ms,
            call_overhead_ms=factor * self.call_overhead_ms,
            decision_ms={kind: factor * decision_ms for kind, decision_ms in self.decision_ms.items()},
            home_offset_ms={home: factor * offset_ms for home, offset_ms in self.home_offset_ms.items()},
            crossing_ms={entered: factor * crossing_ms for entered, crossing_ms in self.crossing_ms.items()},
        )

    def peak_bytes(self, subnet: Subnet) -> int:
        """Predicted peak memory beyond the bare runtime."""
        costs = [self.edge_costs[edge] for edge in subnet.edges]
        return sum(cost.resident_bytes for cost in costs) + max(cost.working_bytes for cost in costs)

    def cost(self, subnet: Subnet) -> Cost:
        """Predicted cost of a subnet that answers every sample by itself."""
        return Cost(latency_ms=self.latency_ms(subnet), peak_bytes=self.peak_bytes(subnet))


class Uplink(msgspec.Struct, frozen=True):
    """The link to the server: ``mbps`` (10⁶ bits per second) upwards, ``round_trip_ms`` for an empty request.

    Raises:
        UsageError: no bandwidth, or a negative round trip.
    """

    mbps: float
    round_trip_ms: float = 0.0

    def __post_init__(self) -> None:
        if not self.mbps > 0:
            raise UsageError(f"the uplink has {self.mbps:g} Mbit/s; it must be above zero")
        if not self.round_trip_ms >= 0:
            raise UsageError(f"the round trip takes {self.round_trip_ms:g} ms; it cannot be negative")

    @classmethod
    def typical(cls, name: str) -> Uplink:
        """A typical uplink, for plans before a network can be measured: one of ``UPLINKS``.

        Raises:
            UsageError: there is none of this name.
        """
        if name not in UPLINKS:
            raise UsageError(f"there is no network {name!r}", hint="known: " + ", ".join(UPLINKS))
        return UPLINKS[name]

    def transfer_ms(self, size_bytes: int) -> float:
        """Latency of a request of ``size_bytes`` on the link, its short answer included."""
        return self.round_trip_ms + 8 * size_bytes / (self.mbps * _BITS_PER_MS_AND_MBPS)


UPLINKS: Mapping[str, Uplink] = {
    "wifi": Uplink(40.0, 5.0),
    "lte": Uplink(10.0, 50.0),
    "3g": Uplink(1.5, 100.0),
    "ble": Uplink(0.7, 40.0),
    "lora": Uplink(0.005, 500.0),
}


class Power(msgspec.Struct, frozen=True, kw_only=True):
    """The stated power of a device in watts: computing, sending, and waiting for a server (HI Eq. 4).

    Raises:
        UsageError: a power is negative, or not finite.
    """

    active_w: float
    radio_w: float = 0.0
    waiting_w: float = 0.0

    def __post_init__(self) -> None:
        for name in ("active_w", "radio_w", "waiting_w"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise UsageError(f"{name} is {value:g}; it must be finite and at least 0")

    @property
    def source(self) -> str:
        """Description of this power, as the source of the energies computed from it."""
        return f"model: {self.active_w:g} W computing, {self.radio_w:g} W sending, {self.waiting_w:g} W waiting"
