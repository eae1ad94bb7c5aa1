"""Four networks, the last with the others as its exits, on one graph: what planners choose from stored logits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.promises.kinds import Places
from device_sdk.policies.costs.evidence import Evidence, Network
from device_sdk.policies.deciding.thresholds import choose_exits
from device_sdk.policies.exits.placed_exits import DROPS
from device_sdk.policies.joint_thresholds.plans import exit_samples
from device_sdk.runtimes.port import Array
from device_sdk.supernet.blocks import Block, CutPoint, Exit, Golden, Rendition, TensorSpec
from device_sdk.supernet.cost import CostModel, EdgeCost, Uplink
from device_sdk.supernet.deciders.port import confidence
from device_sdk.supernet.plan import UNREACHABLE_CONFIDENCE, Edge, ExitChoice, RemoteRef, Subnet
from device_sdk.supernet.supernet import Supernet

FULL_MS = 10.0  # of the last network
SERVER = RemoteRef("ensemble")
NETWORK = Network(uplink=Uplink(10.0, 5.0), answer_ms={SERVER: 10.0}, input_bytes=2500)
_BYTES = 1000


@dataclass(frozen=True)
class World:
    """``networks``: logits [count, classes] by name, from the quickest to the slowest; ``shares``: of its latency.

    The last network is a path of as many blocks as there are networks; each other one is a block of its own, and an
    exit that is reached in its own time and costs nothing further. A server answers with all networks' mean logits.
    """

    networks: Mapping[str, Array]
    shares: Mapping[str, float]
    labels: npt.NDArray[np.int64]

    @property
    def quicker(self) -> list[str]:
        """All networks but the last."""
        return list(self.networks)[:-1]

    @property
    def full(self) -> Subnet:
        """The last network."""
        return Subnet(tuple(Edge(f"full{at}") for at in range(len(self.networks))))

    @property
    def subnets(self) -> list[Subnet]:
        """All networks."""
        return [*(Subnet((Edge(name),)) for name in self.quicker), self.full]

    @property
    def exits(self) -> list[ExitChoice]:
        """The exits of the last network."""
        return [ExitChoice(name, UNREACHABLE_CONFIDENCE) for name in self.quicker]

    def supernet(self) -> Supernet:
        """The graph. Nothing of it can run."""
        one = (Rendition("fp32", "none", "0" * 64, 1, Golden((), 0.0)),)
        last = len(self.networks)
        cuts = [CutPoint(at, (TensorSpec(f"cut_{at}", (4,)),)) for at in range(last + 1)]
        blocks = [Block(f"full{at}", at, at + 1, "original", 0, 0, one) for at in range(last)]
        blocks += [Block(name, 0, last, "merged", 0, 0, one) for name in self.quicker]
        exits = [Exit(name, at + 1, "pooled", 0, 0, one) for at, name in enumerate(self.quicker)]
        return Supernet(cuts, blocks, exits)

    def costs(self) -> CostModel:
        """Milliseconds in proportion to the networks' work."""
        reached_ms = [FULL_MS * share for share in self.shares.values()]
        steps_ms = np.diff([0.0, *reached_ms]).tolist()
        edges = {Edge(f"full{at}"): step_ms for at, step_ms in enumerate(steps_ms)}
        edges |= {Edge(name): FULL_MS * self.shares[name] for name in self.quicker}
        return CostModel(
            {edge: EdgeCost(own_ms, own_ms, _BYTES, _BYTES) for edge, own_ms in edges.items()},
            exit_costs={(name, "fp32", ()): EdgeCost(0.0, 0.0, _BYTES, _BYTES) for name in self.quicker},
        )

    def evidence(self, places: Places) -> Evidence:
        """All answers to the samples at ``places``."""
        logits = {name: found[places] for name, found in self.networks.items()}
        ends = {Subnet((Edge(name),)): logits[name] for name in self.quicker} | {self.full: [*logits.values()][-1]}
        exits = {(self.full.edges[: at + 1], name, "fp32"): logits[name] for at, name in enumerate(self.quicker)}
        mean = np.stack([*logits.values()]).mean(axis=0)
        return Evidence(self.labels[places], ends=ends, exits=exits, servers={SERVER: mean})

    def exit_sets(self, evidence: Evidence, drops: tuple[float, ...]) -> list[tuple[ExitChoice, ...]]:
        """Exits with thresholds for each of ``drops`` and the usual ones, as ``adapt`` calibrates them."""
        supernet, costs = self.supernet(), self.costs()
        samples = [exit_samples(supernet, evidence, costs, self.full, one) for one in self.exits]
        end = evidence.ends[self.full]
        right, sure = evidence.right(end), confidence(end)
        found = [
            tuple(
                choose_exits(samples, right_at_end=right, confidence_at_end=sure, full_ms=FULL_MS, accuracy_drop=drop)
            )
            for drop in (*drops, *DROPS)
        ]
        return [one for one in dict.fromkeys(found) if one]


def best_alone(world: World, evidence: Evidence, limit_ms: float) -> float:
    """The accuracy of the most accurate network within a latency, in hindsight."""
    costs = world.costs()
    fitting = [one for one in world.subnets if costs.latency_ms(one) <= limit_ms]
    return max(float(evidence.right(evidence.ends[one]).mean()) for one in fitting)
