"""What a plan is expected to cost per sample, from logits on private samples and a cost model. Pure.

One function judges every plan, whatever proposed it: subnets alone, exits, splits, abstention, asking a server. The
latency of asking is that of HI (Eq. 3): what runs here comes first, then the transfer and the server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from device_sdk.errors import UsageError
from device_sdk.execution.deciders import confidence, hard
from device_sdk.offload.packing import packet_bytes
from device_sdk.runtimes.port import Array
from device_sdk.supernet.cost import CostModel, PlanCost, Uplink
from device_sdk.supernet.plan import Abstain, Ask, Edge, Plan, RemoteRef, Split, Subnet
from device_sdk.supernet.supernet import Supernet

Correct = npt.NDArray[np.bool_]
Milliseconds = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Evidence:
    """Logits [count, classes] on the same private samples, and their ``labels`` [count].

    ``ends``: of whole paths, also of those whose rest a server runs; ``exits``: of an exit's branch, by the edges
    before it, its id and its rendition; ``servers``: of the server's models on the inputs.
    """

    labels: npt.NDArray[np.int64]
    ends: Mapping[Subnet, Array] = field(default_factory=dict)
    exits: Mapping[tuple[tuple[Edge, ...], str, str], Array] = field(default_factory=dict)
    servers: Mapping[RemoteRef, Array] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """The number of samples."""
        return len(self.labels)


@dataclass(frozen=True, kw_only=True)
class Network:
    """What lies between a device and its servers.

    ``server``: the cost model of the machine that runs tails; ``answer_ms``: how long a server's model takes for one
    input; ``input_bytes``: what a request with one input takes; ``overhead_bytes``: what a request adds to a packet.
    """

    uplink: Uplink
    server: CostModel | None = None
    answer_ms: Mapping[RemoteRef, float] = field(default_factory=dict)
    input_bytes: int = 0
    overhead_bytes: int = 0


def expected_cost(
    supernet: Supernet, plan: Plan, evidence: Evidence, cost_model: CostModel, network: Network | None = None
) -> PlanCost:
    """The cost of ``plan`` per sample, estimated from the evidence.

    Accuracy is that of the samples that get an answer. What a server adds is unknown (None) where nothing is known of
    the server or the way to it: its logits, its time.

    Raises:
        UsageError: the evidence lacks the logits of the plan's own path or of one of its exits.
    """
    route = _Route(supernet, plan, evidence, cost_model)
    route.take_exits()
    if plan.split is not None:
        route.cross(plan.split, network)
    else:
        route.reach_end()
    if isinstance(plan.hard, Abstain):
        route.abstain(plan.hard)
    elif isinstance(plan.hard, Ask):
        route.ask(plan.hard, network)
    return route.cost()


class _Route:
    """The way of all samples through a plan: which are open, which are right, how long each took."""

    def __init__(self, supernet: Supernet, plan: Plan, evidence: Evidence, cost_model: CostModel) -> None:
        self._supernet, self._plan, self._evidence, self._costs = supernet, plan, evidence, cost_model
        count = evidence.count
        self._open = np.ones(count, dtype=bool)  # no exit has answered them
        self._correct = np.zeros(count, dtype=bool)
        self._latency_ms = np.zeros(count)
        self._bytes_sent = np.zeros(count)
        self._tried_ms = 0.0  # of the branches so far
        self._logits: Array | None = None  # of the end
        self._asked = np.zeros(count, dtype=bool)
        self._abstained = np.zeros(count, dtype=bool)
        self._accuracy_known = self._latency_known = True

    def take_exits(self) -> None:
        ends = [block.end for _, block in self._supernet.walk(self._plan.subnet)]
        for choice in self._plan.exits:
            before = self._plan.subnet.edges[: ends.index(self._supernet.exit(choice.exit).position) + 1]
            logits = self._found(self._evidence.exits, (before, choice.exit, choice.rendition), f"exit {choice.exit}")
            self._tried_ms += self._costs.exit_latency_ms(choice, self._plan.input_size)
            answers = self._open & (confidence(logits) >= choice.threshold)
            self._latency_ms[answers] = self._costs.latency_along_ms(before) + self._tried_ms
            self._correct[answers] = self._right(logits)[answers]
            self._open &= ~answers

    def reach_end(self) -> None:
        self._logits = self._found(self._evidence.ends, self._plan.subnet, "the subnet")
        self._latency_ms[self._open] = self._costs.latency_ms(self._plan.subnet) + self._tried_ms
        self._correct[self._open] = self._right(self._logits)[self._open]

    def cross(self, split: Split, network: Network | None) -> None:
        edges = self._supernet.walk(self._plan.subnet)
        head = tuple(edge for edge, block in edges if block.end <= split.position)
        self._logits = self._found(self._evidence.ends, Subnet(head + split.tail), "the split's path")
        self._correct[self._open] = self._right(self._logits)[self._open]
        own_ms = (self._costs.latency_along_ms(head) if head else 0.0) + self._tried_ms
        self._latency_ms[self._open] = own_ms
        self._send_tail(self._open, split.position, split.tail, network, split.bits)

    def abstain(self, policy: Abstain) -> None:
        self._abstained = self._hard(policy)

    def ask(self, policy: Ask, network: Network | None) -> None:
        self._asked = asked = self._hard(policy)
        if policy.sends == "input":
            logits = self._evidence.servers.get(policy.server)
            self._send_input(asked, policy.server, network)
        else:
            edges = self._supernet.walk(self._plan.subnet)
            head = tuple(edge for edge, block in edges if block.end <= policy.sends)
            logits = self._evidence.ends.get(Subnet(head + policy.tail))
            self._send_tail(asked, policy.sends, policy.tail, network)
        if logits is not None:
            self._correct[asked] = self._right(logits)[asked]
        elif asked.any():
            self._accuracy_known = False

    def cost(self) -> PlanCost:
        count, answered = self._evidence.count, ~self._abstained
        known_ms = self._latency_ms if self._latency_known else None
        return PlanCost(
            accuracy=float(self._correct[answered].mean()) if self._accuracy_known and answered.any() else None,
            latency_ms=None if known_ms is None else float(known_ms.mean()),
            p95_latency_ms=None if known_ms is None else float(np.percentile(known_ms, 95)),
            bytes_sent=float(self._bytes_sent.mean()),
            peak_bytes=self._costs.peak_bytes(self._plan.subnet) + sum(map(self._costs.exit_bytes, self._plan.exits)),
            share_early=1 - float(self._open.mean()),
            share_asked=float(np.count_nonzero(self._asked)) / count,
            share_abstained=float(np.count_nonzero(self._abstained)) / count,
        )

    def _hard(self, policy: Abstain | Ask) -> Correct:
        assert self._logits is not None
        return self._open & hard(policy.decider, self._logits)

    def _send_tail(
        self,
        samples: Correct,
        position: int,
        tail: tuple[Edge, ...],
        network: Network | None,
        bits: Sequence[int] | None = None,
    ) -> None:
        cut = self._supernet.cut_points[position]
        size = packet_bytes(cut, tail, batch=1, bits=bits) + (network.overhead_bytes if network is not None else 0)
        server = network.server if network is not None else None
        known = server is not None and all(edge in server.edge_costs for edge in tail)
        server_ms = server.latency_along_ms(tail) if server is not None and known else None
        self._add_remote(samples, size, server_ms, network)

    def _send_input(self, samples: Correct, server: RemoteRef, network: Network | None) -> None:
        size = network.input_bytes if network is not None else 0
        self._add_remote(samples, size, network.answer_ms.get(server) if network is not None else None, network)

    def _add_remote(self, samples: Correct, size: int, server_ms: float | None, network: Network | None) -> None:
        self._bytes_sent[samples] += size
        if network is None or server_ms is None:
            self._latency_known &= not samples.any()
        else:
            self._latency_ms[samples] += network.uplink.transfer_ms(size) + server_ms

    def _right(self, logits: Array) -> Correct:
        return np.asarray(logits.argmax(axis=1) == self._evidence.labels)

    @staticmethod
    def _found(logits: Mapping[object, Array] | Mapping, key: object, what: str) -> Array:  # type: ignore[type-arg]
        if key not in logits:
            raise UsageError(f"the evidence has no answers of {what}")
        return logits[key]
