"""Route of private samples through a plan: place, correctness and cost of each answer. Pure."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from device_sdk.errors import UsageError
from device_sdk.execution.plan_segments import answering_exits
from device_sdk.offload.packing import BITS, packet_bytes
from device_sdk.policies.costs.evidence import Evidence, Network
from device_sdk.runtimes.port import Array
from device_sdk.supernet.blocks import CutPoint
from device_sdk.supernet.cost import CostModel, PlanCost, Power
from device_sdk.supernet.deciders.port import hard, leaving
from device_sdk.supernet.plan import Abstain, Ask, Cascade, Decider, Edge, Plan, RemoteRef, Split, Subnet
from device_sdk.supernet.supernet import Supernet

Correct = npt.NDArray[np.bool_]
Credit = npt.NDArray[np.bool_] | npt.NDArray[np.float64]
Milliseconds = npt.NDArray[np.float64]


@dataclass(frozen=True)
class RemoteCall:
    """Call to a server for one sample. Times are None where the server, or the link to it, is unknown.

    ``packing_ms``: time on the device to pack the request.
    """

    size_bytes: int
    transfer_ms: float | None
    server_ms: float | None
    packing_ms: float = 0.0


NO_CALL = RemoteCall(0, 0.0, 0.0)


@dataclass(frozen=True)
class Asking:
    """Effect of handing hard samples on, to a server or to the second path of a cascade.

    ``correct``: what each sample then counts, 0 to 1 [count], None if unknown. ``here_ms``: milliseconds of the second
    path on this device; ``apart_ms``: that every sample takes longer at the end, hard or not, since the path is run in
    two parts; ``peak_bytes``: of both paths, None where it stays that of the first.
    """

    correct: Credit | None
    call: RemoteCall = NO_CALL
    here_ms: float = 0.0
    apart_ms: float = 0.0
    peak_bytes: int | None = None

    @property
    def at_server(self) -> bool:
        """True if a server is asked."""
        return self.peak_bytes is None


def _tail_call(
    cut: CutPoint,
    tail: tuple[Edge, ...],
    network: Network | None,
    bits: tuple[int, ...] | None = None,
    per_channel: bool = False,
) -> RemoteCall:
    size = packet_bytes(cut, tail, batch=1, bits=bits, per_channel=per_channel)  # deflated it is no larger
    if network is None:
        return RemoteCall(size, None, None)
    size += network.overhead_bytes
    server, handling, values = network.server, network.handling, sum(spec.size for spec in cut.tensors)
    server_ms = None
    if server is not None and all(edge in server.edge_costs for edge in tail):
        server_ms = server.latency_along_ms(tail) + values * handling.unpacking_ms_per_value
    # real calls may take less per byte than the measured uplink says, but never less than the way there and back
    transfer_ms = max(network.uplink.transfer_ms(size) + handling.beside_codec_ms(size), network.uplink.round_trip_ms)
    return RemoteCall(size, transfer_ms, server_ms, values * handling.packing_ms_per_value)


def _input_call(server: RemoteRef, network: Network | None) -> RemoteCall:
    if network is None:
        return RemoteCall(0, None, None)
    size = network.request_bytes.get(server, network.input_bytes)
    return RemoteCall(size, network.uplink.transfer_ms(size), network.answer_ms.get(server))


class Route:
    """Route of all samples through a plan: masks of open and of correct samples, and times. [count] each.

    ``open``: the sample reaches the end, since no exit answers it or asks a server; ``device_ms``, ``transfer_ms`` and
    ``server_ms``: the parts of its latency; ``logits``: of the end [count, classes]; ``tried_ms``: overhead of the
    call, and latency of all branches that are tried before the end.
    """

    def __init__(self, supernet: Supernet, plan: Plan, evidence: Evidence, cost_model: CostModel) -> None:
        self._supernet, self._plan, self._evidence, self._costs = supernet, plan, evidence, cost_model
        count = evidence.count
        self.open = np.ones(count, dtype=bool)
        self.correct: Credit = np.zeros(count, dtype=float if evidence.margin_scale else bool)
        self.device_ms, self.transfer_ms, self.server_ms = np.zeros((3, count))
        self.bytes_sent = np.zeros(count)
        self._taken = [choice for choice in plan.exits if choice.decides]
        self.tried_ms = cost_model.call_overhead_ms
        self._logits: Array | None = None
        self._asked_early = self._asked = np.zeros(count, dtype=bool)
        self._abstained = self._second = np.zeros(count, dtype=bool)
        self._peak_bytes: int | None = None
        self.accuracy_known = self.latency_known = True

    @classmethod
    def to_end(
        cls,
        supernet: Supernet,
        plan: Plan,
        evidence: Evidence,
        cost_model: CostModel,
        network: Network | None = None,
    ) -> Route:
        """The route through exits and the path to the end, here or at a server, before hard samples are singled out."""
        route = cls(supernet, plan, evidence, cost_model)
        route.take_exits()
        if plan.split is not None:
            route.cross(plan.split, network)
        else:
            route.reach_end()
        return route

    @property
    def subnet(self) -> Subnet:
        """The plan's subnet."""
        return self._plan.subnet

    @property
    def logits(self) -> Array:
        """Logits of the end, [count, classes]."""
        assert self._logits is not None
        return self._logits

    def take_exits(self) -> None:
        ends = [block.end for _, block in self._supernet.walk(self._plan.subnet)]
        for choice in self._taken:
            before = self._plan.subnet.edges[: ends.index(self._supernet.exit(choice.exit).position) + 1]
            logits = self._found(self._evidence.exits, (before, choice.exit, choice.rendition), f"exit {choice.exit}")
            self.tried_ms += self._costs.exit_latency_ms(choice, self._plan.input_size)
            answers, asks = (self.open & one for one in leaving(choice, logits))
            self.device_ms[answers | asks] = self._costs.reach_ms(before) + self.tried_ms
            self.correct[answers] = self._evidence.credit(logits)[answers]
            self._asked_early = self._asked_early | asks
            self.open &= ~(answers | asks)

    def reach_end(self) -> None:
        self._logits = self._found(self._evidence.ends, self._plan.subnet, "the subnet")
        self.device_ms[self.open] = self._costs.latency_ms(self._plan.subnet) + self.tried_ms
        self.correct[self.open] = self._evidence.credit(self._logits)[self.open]

    def cross(self, split: Split, network: Network | None) -> None:
        if split.is_whole:
            self._logits = self._found(self._evidence.servers, split.server, f"the server's {split.server}")
            self._asked = self._asked | self.open
        else:
            self._logits = self._received(split)
        self.correct[self.open] = self._evidence.credit(self._logits)[self.open]
        head_ms, call = self.crossing(split, network)
        self.device_ms[self.open] = head_ms + self.tried_ms
        self._send(self.open, call)

    def _received(self, split: Split) -> Array:
        """Logits of the split's tail; from 8 bits up, those of the same path without quantisation.

        Of ranges per channel there is no evidence: they are taken to lose what one range loses, which is more.
        """
        path = Subnet(self._head(split.position) + split.tail)
        if min(split.bits) >= BITS:
            return self._found(self._evidence.ends, path, "the split's path")
        return self._found(self._evidence.received, (path, split.position, split.bits), f"a split in {split.bits} bits")

    def crossing(self, split: Split, network: Network | None) -> tuple[float, RemoteCall]:
        """Milliseconds per sample on the device before the split, without ``tried_ms``, and the call to the server.

        Both are the same for every set of exits.
        """
        if split.is_whole:
            return 0.0, _input_call(split.server, network)
        head = self._head(split.position)
        own_ms = self._costs.latency_along_ms(head) if head else 0.0
        call = _tail_call(self._supernet.cut_points[split.position], split.tail, network, split.bits, split.per_channel)
        return own_ms + call.packing_ms, call

    def crossed(self, split: Split, network: Network | None) -> Route:
        """A copy that runs everything behind the exits at a server; this route stays as it is."""
        other = copy.copy(self)
        for name in ("correct", "device_ms", "transfer_ms", "server_ms", "bytes_sent"):
            setattr(other, name, getattr(self, name).copy())
        other.cross(split, network)
        return other

    def _head(self, position: int) -> tuple[Edge, ...]:
        edges = self._supernet.walk(self._plan.subnet)
        return tuple(edge for edge, block in edges if block.end <= position)

    def abstain(self, policy: Abstain) -> None:
        self.device_ms[self.open] += self.deciding_ms(policy.decider)
        self._abstained = self._hard(policy)

    def deciding_ms(self, decider: Decider) -> float:
        """Milliseconds of the decision for each open sample, which the route ``to_end`` does not include."""
        return self._costs.deciding_ms(decider)

    def decided(self, decider: Decider, apart_ms: float = 0.0) -> Route:
        """A copy with the time of the decision, and ``apart_ms``, added to its open samples.

        Bit for bit as ``abstain``, ``ask`` and ``cascade`` add it.
        """
        found = copy.copy(self)
        found.device_ms = self.device_ms + (self.deciding_ms(decider) + apart_ms) * self.open
        return found

    def ask(self, policy: Ask, network: Network | None) -> None:
        self._asked = asked = self._asked_early | self._hard(policy)
        asking = self.asking(policy, network)
        self.device_ms[self.open] += self.deciding_ms(policy.decider)
        self.device_ms[asked] += asking.call.packing_ms
        self._send(asked, asking.call)
        if asking.correct is not None:
            self.correct[asked] = asking.correct[asked]
            if self._asked_early.any():  # an exit's answer is not pooled with the server's
                servers = self._evidence.credit(self._evidence.servers[policy.server])
                self.correct[self._asked_early] = servers[self._asked_early]
        elif asked.any():
            self.accuracy_known = False

    def cascade(self, policy: Cascade) -> None:
        self._second = second = self._hard(policy)
        found = self.cascading(policy)
        self.device_ms[self.open] += self.deciding_ms(policy.decider) + found.apart_ms
        self.device_ms[second] += found.here_ms
        assert found.correct is not None
        self.correct[second] = found.correct[second]
        self._peak_bytes = found.peak_bytes

    @property
    def latency_ms(self) -> Milliseconds:
        """End-to-end latency, without the times that are unknown."""
        return self.device_ms + self.transfer_ms + self.server_ms

    @property
    def peak_bytes(self) -> int:
        """Memory on the device: the subnet or its head, the exits that answer by confidence, the fallback's."""
        if self._peak_bytes is not None:
            return self._peak_bytes
        here = Subnet(self._supernet.edges_here(self._plan))
        exits = map(self._costs.exit_bytes, answering_exits(self._plan))
        return (self._costs.peak_bytes(here) if here.edges else 0) + sum(exits)

    def energy_mj(self, power: Power) -> Milliseconds:
        """Energy of the device (HI Eq. 4)."""
        return power.active_w * self.device_ms + power.radio_w * self.transfer_ms + power.waiting_w * self.server_ms

    def cost(self, power: Power | None = None) -> PlanCost:
        """The mean over all samples."""
        count, answered = self._evidence.count, self.answered
        known_ms = self.latency_ms if self.latency_known else None
        return PlanCost(
            accuracy=float(self.correct[answered].mean()) if self.accuracy_known and answered.any() else None,
            latency_ms=None if known_ms is None else float(known_ms.mean()),
            p95_latency_ms=None if known_ms is None else float(np.percentile(known_ms, 95)),
            bytes_sent=float(self.bytes_sent.mean()),
            peak_bytes=self.peak_bytes,
            energy_mj=None if power is None or known_ms is None else float(self.energy_mj(power).mean()),
            share_early=1 - float((self.open | self._asked_early).mean()),
            share_asked=self.share_asked,
            share_asked_early=float(np.count_nonzero(self._asked_early)) / count,
            share_abstained=float(np.count_nonzero(self._abstained)) / count,
            share_second=float(np.count_nonzero(self._second)) / count,
        )

    @property
    def share_asked(self) -> float:
        """The share of the samples that a server's model is asked about, so far."""
        return float(np.count_nonzero(self._asked)) / self._evidence.count

    @property
    def answered(self) -> Correct:
        """Mask of the samples that get an answer."""
        return ~self._abstained

    def _hard(self, policy: Abstain | Ask | Cascade) -> Correct:
        return self.open & hard(policy.decider, self.logits)

    def asking(self, policy: Ask, network: Network | None) -> Asking:
        """Effect of asking by ``policy``, if every sample were sent."""
        if policy.sends == "input":
            logits, call = self._evidence.asked(policy.server, self.logits), _input_call(policy.server, network)
        else:
            logits = self._evidence.ends.get(Subnet(self._head(policy.sends) + policy.tail))
            call = _tail_call(self._supernet.cut_points[policy.sends], policy.tail, network)
        return Asking(None if logits is None else self._evidence.credit(logits), call)

    def cascading(self, policy: Cascade) -> Asking:
        """Effect of the cascade's second path, if every sample took it.

        Both paths stay loaded; one runs at a time.
        """
        logits = self._found(self._evidence.ends, policy.subnet, "the cascade's second path")
        rest = self._supernet.second_edges(msgspec.structs.replace(self._plan, hard=policy))
        apart_ms = self._costs.exit_overhead_ms if policy.position else 0.0
        here_ms = self._costs.part_latency_ms(rest, policy.subnet.edges) + self._costs.call_overhead_ms
        if policy.subnet.input_size != self.subnet.input_size:
            here_ms += self._evidence.prepare_ms.get(policy.subnet.input_size, 0.0)
        peak_bytes = self.peak_bytes + self._costs.peak_bytes(Subnet(rest))
        return Asking(self._evidence.credit(logits), here_ms=here_ms, apart_ms=apart_ms, peak_bytes=peak_bytes)

    def _send(self, samples: Correct, call: RemoteCall) -> None:
        self.bytes_sent[samples] += call.size_bytes
        if call.transfer_ms is None or call.server_ms is None:
            self.latency_known &= not samples.any()
        else:
            self.transfer_ms[samples] += call.transfer_ms
            self.server_ms[samples] += call.server_ms

    @staticmethod
    def _found(logits: Mapping[object, Array] | Mapping, key: object, what: str) -> Array:  # type: ignore[type-arg]
        if key not in logits:
            raise UsageError(f"the evidence has no answers of {what}")
        return logits[key]
