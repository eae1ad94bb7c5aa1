"""Ways to answer with a device and a server, and the methods that choose one for an uplink and a device."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

from benchmarks.auto_split.baselines import neurosurgeon
from benchmarks.auto_split.layer_graph import Layer, LayerGraph
from benchmarks.auto_split.problem import Link, SplitProblem
from benchmarks.support.minimum_cut import minimum_cut
from device_sdk.bundles.bundle import Bundle
from device_sdk.errors import UsageError
from device_sdk.offload.remote_model import IMAGES, JPEG
from device_sdk.offload.tail import TAIL
from device_sdk.policies.measured_splits.decision import SplitDecision, choose, ways
from device_sdk.policies.measured_splits.device_alone import DeviceAlone
from device_sdk.policies.measured_splits.fastest import MEASURED_S, DropJudge, SplitLimits, fastest
from device_sdk.policies.splitting.path_splits import JpegCoding, SplitCost
from device_sdk.supernet.cost import CostModel, Uplink
from device_sdk.supernet.plan import Edge, Plan, RemoteRef, Split, Subnet

FLOAT_BITS = 32  # original precision of what crosses; the bundles compute in float32
MAX_DROP = 0.01
CERTAINTY = 0.8  # of the drop, on private images
OURS, MIXED = "ours", "mixed"
BEST_HERE, BEST_SPLIT = "best on the device", "best split"  # ours among the ways of one kind: no baselines
RAW, JPEGS = "server only, raw", "server only, JPEG"
DEVICE = {"fp32": "device only", "int8": "uniform 8 bits", "w4": "uniform 4 bits", "w2": "uniform 2 bits"}


@dataclass(frozen=True)
class Way:
    """One division. ``rendition``: of the device's blocks; ``bits``: of tensors sent; ``tail``: edges at the server.

    ``sends``: ``nothing``, ``images`` (raw pixels), ``jpeg`` or ``activations``. ``head``: the device's blocks where
    they have several renditions, ``MIXED``. ``per_channel``, ``compress``: of packets.
    """

    rendition: str
    position: int
    sends: str
    bits: int = 0
    tail: tuple[Edge, ...] = ()
    head: tuple[Edge, ...] = ()
    per_channel: bool = False
    compress: bool = False

    @property
    def kind(self) -> str:
        """Side that computes: ``device``, ``server`` or ``split``."""
        return "device" if self.sends == "nothing" else "split" if self.position else "server"

    @property
    def title(self) -> str:
        """A few words for the table."""
        if self.sends == "nothing":
            return f"device, {self.rendition}"
        if not self.position:
            return f"server, {self.bits}-bit input" if self.bits else f"server, {self.sends}"
        coding = " per channel" * self.per_channel + " deflated" * self.compress
        return f"cut {self.position}, {self.rendition}, {self.bits} bits{coding} sent"


def along(bundle: Bundle, rendition: str) -> Subnet:
    """The full model in ``rendition``, where a block has it, else in float32."""
    edges = []
    for edge in bundle.supernet.original.edges:
        known = {one.name for one in bundle.supernet.block(edge.block).renditions}
        edges.append(Edge(edge.block, rendition if rendition in known else "fp32"))
    return Subnet(tuple(edges))


def subnet_of(bundle: Bundle, way: Way) -> Subnet:
    """The blocks of the device's part of ``way``, and behind it those of the full model, by way of its bottleneck."""
    path = bundle.supernet.through(along(bundle, "fp32" if way.head else way.rendition), way.position)
    assert path is not None, "the full model passes both ends of each bottleneck"
    return Subnet(way.head + path.edges[len(way.head) :]) if way.head else path


def whole_device(bundle: Bundle, rendition: str) -> Way:
    """The device alone."""
    return Way(rendition, bundle.supernet.output_index, "nothing")


def plan_of(bundle: Bundle, way: Way) -> Plan:
    """Plan of ``AdaptiveModel`` for ``way``; float32 crosses as 8 bits (``measuring`` slows the link instead)."""
    name, subnet = bundle.manifest.name, subnet_of(bundle, way)
    if way.sends == "nothing":
        return Plan(subnet)
    if way.sends != "activations":
        suffix = IMAGES if way.sends == "images" else JPEG
        return Plan(subnet, split=Split(0, (), (), RemoteRef(name + suffix, bundle.digest)))
    bits = (min(way.bits, 8),) * len(bundle.supernet.cut_points[way.position].tensors)
    server = RemoteRef(name + TAIL, bundle.digest)
    split = Split(way.position, bits, way.tail, server, per_channel=way.per_channel, compress=way.compress)
    return Plan(subnet, split=split)


def way_of(cost: SplitCost) -> Way:
    """The way that corresponds to a cost of ``choose``."""
    if cost.sends != "activations":
        return Way("fp32", 0, cost.sends)
    names = {edge.rendition for edge in cost.head} or {"fp32"}
    rendition, head = (names.pop(), ()) if len(names) == 1 else (MIXED, cost.head)
    if not cost.tail:
        return Way(rendition, cost.position, "nothing", head=head)
    return Way(rendition, cost.position, "activations", cost.bits[0], cost.tail, head, cost.per_channel, cost.compress)


class LossJudge(DropJudge, Protocol):
    """Measures the loss of a way too."""

    def decision(self) -> DropJudge:
        """The judge of one decision."""

    def keeps(self, way: Way, max_drop: float) -> bool:
        """True if ``way`` keeps the drop by what these images can tell."""

    def lost(self, way: Way) -> float:
        """Drop in the score by ``way`` against the full model."""


@dataclass(frozen=True)
class Known:
    """Measurements of both sides and the link between them, from which a way is chosen for any device factor.

    ``costs``: of this device; ``theirs``: of the server. ``judge``: of the score lost on private images.
    ``renditions``: that the bundle has; without ``w4`` only the tensors sent are in four bits. ``alone``: times whole
    paths in turns; ``left_s``: seconds that are left for measuring drops.
    """

    bundle: Bundle
    costs: CostModel
    theirs: CostModel
    decision: SplitDecision
    jpeg: JpegCoding
    judge: LossJudge
    renditions: tuple[str, ...]
    alone: DeviceAlone | None = None
    left_s: Callable[[], float] = lambda: MEASURED_S

    def chosen(self, factor: float, *, sends_input: bool = True) -> Mapping[str, Way]:
        """Ours: the fastest predicted way that loses at most a point, each of the device's blocks in any rendition.

        And the same among the ways of one kind, where one keeps the drop.
        """
        judge = self.judge.decision()
        limits = SplitLimits(max_drop=MAX_DROP, judge=judge, measured_s=max(0.0, self.left_s()))
        decision = self._decide(along(self.bundle, "fp32"), factor, limits, sends_input=sends_input)
        kinds: dict[str, Callable[[SplitCost], bool]] = {
            BEST_HERE: lambda cost: not cost.tail,
            BEST_SPLIT: lambda cost: bool(cost.tail and cost.head),
        }
        found = {}
        for name, is_kind in kinds.items():
            some = [cost for cost in decision.costs if is_kind(cost)]
            with contextlib.suppress(UsageError):  # nothing of this kind keeps the drop
                left = replace(limits, judge=self.judge.decision(), measured_s=max(0.0, self.left_s()))
                found[name] = way_of(fastest(some, along(self.bundle, "fp32"), left).best)
        return found | {OURS: way_of(decision.best)}

    def offered(self, factor: float, limits: SplitLimits, *, sends_input: bool) -> Sequence[SplitCost]:
        """All ways that compete under ``limits``."""
        return ways(
            self.bundle,
            along(self.bundle, "fp32"),
            self.costs.slowed(factor),
            self.theirs,
            self.decision.uplink,
            model_name=self.decision.server.model,
            sends_input=sends_input,
            handling=self.decision.handling.slowed(factor),
            limits=limits,
            jpeg=self.jpeg.slowed(factor),
        )

    def costs_of(self, rendition: str, factor: float) -> Sequence[SplitCost]:
        """Predictions of every position, in 8 bits."""
        return self._decide(along(self.bundle, rendition), factor, SplitLimits()).costs

    def _decide(self, subnet: Subnet, factor: float, limits: SplitLimits, *, sends_input: bool = True) -> SplitDecision:
        return choose(
            self.bundle,
            Plan(subnet),
            self.costs,
            self.theirs,
            self.decision.uplink,
            model_name=self.decision.server.model,
            source="the server's",
            handling=self.decision.handling,
            limits=limits,
            device_factor=factor,
            jpeg=self.jpeg,
            sends_input=sends_input,
            alone=self.alone if limits.may_lose else None,
        )

    def methods(self, factor: float, *, sends_input: bool = True) -> Mapping[str, Way]:
        """The way that each method chooses; without those that send the input where that may not be sent."""
        found = self._methods(factor, self.chosen(factor, sends_input=sends_input))
        return found if sends_input else {name: way for name, way in found.items() if way.kind != "server"}

    def _methods(self, factor: float, ours: Mapping[str, Way]) -> Mapping[str, Way]:
        problem, positions = self._problem(factor)
        cut = minimum_cut(problem, FLOAT_BITS)
        by_position = positions[len(cut.on_device)]
        return {
            RAW: Way("fp32", 0, "images"),
            JPEGS: Way("fp32", 0, "jpeg"),
            **{DEVICE[rendition]: whole_device(self.bundle, rendition) for rendition in self.renditions},
            "Neurosurgeon": self._at(positions[neurosurgeon(problem, FLOAT_BITS).position], "fp32", FLOAT_BITS),
            "DADS, QDMP": self._at(by_position, "fp32", FLOAT_BITS),
            "QDMP_E": self._at(by_position, "fp32", FLOAT_BITS),
            "QDMP + uniform 4 bits": self._at(by_position, "w4" if "w4" in self.renditions else "fp32", 4),
            **ours,
        }

    def _at(self, position: int, rendition: str, bits: int) -> Way:
        supernet = self.bundle.supernet
        if position == supernet.output_index:
            return whole_device(self.bundle, rendition)
        if not position:
            return Way("fp32", 0, "images")
        tail = tuple(edge for edge, block in supernet.walk(supernet.original) if block.start >= position)
        return Way(rendition, position, "activations", bits, tail)

    def _problem(self, factor: float) -> tuple[SplitProblem, list[int]]:
        """The blocks as a chain of layers: a bundle is divided at cut points alone. And the position after each."""
        ways = [cost for cost in self.costs_of("fp32", factor) if cost.sends == "activations"]
        values = [sum(spec.size for spec in self.bundle.supernet.cut_points[way.position].tensors) for way in ways]
        edges = self.bundle.supernet.original.edges
        layers = tuple(Layer(edge.block, (index,), values[index + 1]) for index, edge in enumerate(edges))
        device_ms = [after.device_ms - before.device_ms for before, after in pairwise(ways)]
        server_ms = [max(a.server_ms - b.server_ms, 0.0) for a, b in pairwise(ways)]
        uplink, handling = self.decision.uplink, self.decision.handling
        with_handling = Uplink(uplink.mbps, uplink.round_trip_ms + handling.call_ms)
        problem = SplitProblem(
            graph=LayerGraph(layers, input_values=values[0], input_bits=8),
            device=_MeasuredBlocks([max(ms, 0.0) for ms in device_ms]),
            server_ms=tuple(server_ms),
            link=Link(with_handling, overhead_bytes=ways[0].bytes_sent - values[0]),
            weight_errors=({},) * len(layers),
            activation_errors=({},) * (len(layers) + 1),
        )
        return problem, [way.position for way in ways]


@dataclass(frozen=True)
class _MeasuredBlocks:
    """Latencies of blocks as they were measured, whatever the bits."""

    ms: Sequence[float]

    def layer_ms(self, graph: LayerGraph, index: int, *bits: object) -> float:
        return self.ms[index - 1]
