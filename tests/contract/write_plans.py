"""Writes plans.json: which plans are chosen from equal answers to private samples, and what they cost (see README.md).

Numbers of samples and times are dyadic, so that sums are exact and equally good plans are told apart alike. Logits come
from seeds. Fitted numbers agree to 1e-7, all others to 1e-9.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import msgspec
import numpy as np
from msgspec.structs import replace

from device_sdk.offload.remote_model import LogarithmicPool
from device_sdk.policies.costs.evidence import Evidence, Network
from device_sdk.policies.deciding.thresholds import choose_exits
from device_sdk.policies.joint_thresholds.plans import exit_samples
from device_sdk.policies.planning.front import make_front
from device_sdk.policies.planning.planner import Planner
from device_sdk.random_source import SplitMix64, uniform_floats
from device_sdk.runtimes.port import Array
from device_sdk.supernet.blocks import Block, CutPoint, Exit, Golden, Rendition, TensorSpec
from device_sdk.supernet.cost import CostModel, EdgeCost, Power, Uplink
from device_sdk.supernet.deciders.port import confidence
from device_sdk.supernet.goal import Requirement
from device_sdk.supernet.plan import UNREACHABLE_CONFIDENCE, Edge, ExitChoice, RemoteRef, Subnet, encode_plan
from device_sdk.supernet.supernet import Supernet

Json = dict[str, Any]
SERVER = RemoteRef("big:images", "ab" * 32)
POWER = Power(active_w=2.0, radio_w=4.0, waiting_w=0.5)
UPLINKS = (None, Uplink(16.0, 4.0), Uplink(1.0, 64.0), Uplink(512.0, 0.0))
DROPS = (0.01, 0.05)


def main(target: Path) -> None:
    """One case a line."""
    cases = [
        case(world(1, count=128, classes=4, exits=(1, 2, 3), cuts=4)),
        case(world(2, count=256, classes=10, exits=(2, 4), cuts=6, pool=(1.0, 0.5))),
        case(world(3, count=128, classes=4, exits=(1, 2, 3, 4, 5), cuts=6)),
        case(world(4, count=64, classes=3, exits=(), cuts=3)),
        case(world(5, count=128, classes=60, exits=(2,), cuts=4)),
        case(world(6, count=128, classes=4, exits=(1, 2), cuts=4, server=False)),
    ]
    target.write_text('{"cases": [\n' + ",\n".join(json.dumps(one) for one in cases) + "\n]}\n")


def world(
    seed: int,
    *,
    count: int,
    classes: int,
    exits: tuple[int, ...],
    cuts: int,
    server: bool = True,
    pool: tuple[float, float] | None = None,
) -> Json:
    """Three subnets that share no block, their exits, a server's model, and costs."""
    random = SplitMix64(seed)
    subnets = []
    for number, (name, cheaper) in enumerate((("o", 1), ("s", 2), ("m", 1 / 2))):
        starts = range(cuts) if name != "m" else range(0, cuts, cuts)
        edges = [
            {
                "block": f"{name}{start}",
                "start": start,
                "end": start + 1 if name != "m" else cuts,
                "latency_ms": (128 + random.below(128)) / 64 / cheaper,
                "resident_bytes": 100 + random.below(100),
                "working_bytes": 500 + random.below(100),
            }
            for start in starts
        ]
        skill = 6.0 - 1.5 * number  # in logits
        own = [] if name == "m" else [[f"x{at}", (at + cuts) * skill / (2 * cuts), draw(random)] for at in exits]
        subnets.append({"edges": edges, "skill": skill, "seed": draw(random), "exits": own})
    branches = [
        {"id": f"x{at}", "position": at, "latency_ms": (8 + random.below(16)) / 64, "bytes": 60 + random.below(40)}
        for at in exits
    ]
    return {
        "count": count,
        "classes": classes,
        "seed": draw(random),
        "cuts": cuts,
        "subnets": subnets,
        "exits": branches,
        "server": {"skill": 3.0, "seed": draw(random), "input_bytes": 2000, "answer_ms": 2.5} if server else None,
        "pool": pool,
    }


def requirements(top: float) -> list[Requirement]:
    """Of every kind, for a world whose best network has the accuracy ``top``."""
    return [
        Requirement(latency_ms=9.0, coverage=1.0),
        Requirement(latency_ms=9.0, coverage=1.0, peak_bytes=1250),
        Requirement(optimise="latency_ms", accuracy=top - 1 / 64, coverage=1.0),
        Requirement(optimise="latency_ms", accuracy=top + 1 / 32),
        Requirement(optimise="energy_mj", accuracy=top - 1 / 32, p95_latency_ms=24.0, coverage=1.0),
        Requirement(optimise="energy_mj", accuracy=top, coverage=1.0),
        Requirement(optimise="bytes_sent", accuracy=top - 1 / 32, latency_ms=16.0, coverage=0.875),
        Requirement(accuracy=top - 1 / 8, bytes_sent=512.0, energy_mj=24.0, coverage=1.0),
        Requirement(latency_ms=0.25, coverage=1.0),
    ]


def draw(random: SplitMix64) -> str:
    return str(random.next())


class World:
    """A specification as what a planner takes."""

    def __init__(self, spec: Json) -> None:
        self.spec = spec
        no_tensors = Rendition("fp32", "none", "0" * 64, 1, Golden((), 0.0))
        cuts = [CutPoint(at, (TensorSpec(f"cut_{at}", (4,)),)) for at in range(spec["cuts"] + 1)]
        kinds: dict[str, str] = {"o": "original", "s": "shrunk", "m": "merged"}
        edges = [edge for one in spec["subnets"] for edge in one["edges"]]
        blocks = [
            Block(one["block"], one["start"], one["end"], kinds[one["block"][0]], 0, 0, (no_tensors,)) for one in edges
        ]
        exits = [Exit(one["id"], one["position"], "pooled", 0, 0, (no_tensors,)) for one in spec["exits"]]
        self.supernet = Supernet(cuts, blocks, exits)
        self.costs = CostModel(
            {
                Edge(one["block"]): EdgeCost(
                    one["latency_ms"], one["latency_ms"], one["resident_bytes"], one["working_bytes"]
                )
                for one in edges
            },
            offset_ms=0.25,
            exit_costs={
                (one["id"], "fp32", ()): EdgeCost(one["latency_ms"], one["latency_ms"], one["bytes"], 1)
                for one in spec["exits"]
            },
            exit_overhead_ms=0.125,
            call_overhead_ms=1 / 16,
            decision_ms={"max_confidence": 1 / 64, "entropy": 1 / 32, "margin": 1 / 64, "logistic": 1 / 16},
        )
        random = SplitMix64(int(spec["seed"]))
        self.labels = np.array([random.below(spec["classes"]) for _ in range(spec["count"])])
        self.ease = np.array(uniform_floats(random.next(), spec["count"]), np.float32)
        self.subnets = [Subnet(tuple(Edge(edge["block"]) for edge in one["edges"])) for one in spec["subnets"]]
        pairs = list(zip(self.subnets, spec["subnets"], strict=True))
        server = spec["server"]
        self.evidence = Evidence(
            self.labels,
            ends={subnet: self.logits(one["seed"], one["skill"]) for subnet, one in pairs},
            exits={
                (subnet.edges[: int(id_[1:])], id_, "fp32"): self.logits(seed, skill)
                for subnet, one in pairs
                for id_, skill, seed in one["exits"]
            },
            servers={SERVER: self.logits(server["seed"], server["skill"], knows_all=True)} if server else {},
            pools={} if spec["pool"] is None else {SERVER: LogarithmicPool(*spec["pool"])},
        )
        self.exits = {
            subnet: [ExitChoice(id_, UNREACHABLE_CONFIDENCE) for id_, _, _ in one["exits"]] for subnet, one in pairs
        }
        self.exit_sets = {subnet: self.sets(subnet) for subnet in self.subnets}

    @property
    def top(self) -> float:
        """The best accuracy of a network, in 64ths."""
        known = [*self.evidence.ends.values(), *self.evidence.servers.values()]
        return max(round(float(self.evidence.right(one).mean()) * 64) for one in known) / 64

    def logits(self, seed: str, skill: float, *, knows_all: bool = False) -> Array:
        """Noise, from which the right class stands out by ``skill``, or by less unless it ``knows_all``."""
        found = np.array(uniform_floats(int(seed), self.spec["count"] * self.spec["classes"]), np.float32)
        found = (found * np.float32(4)).reshape(self.spec["count"], -1)
        found[np.arange(len(found)), self.labels] += np.float32(skill) * (1 if knows_all else self.ease)
        return found

    def sets(self, subnet: Subnet) -> list[tuple[ExitChoice, ...]]:
        chosen = [exit_samples(self.supernet, self.evidence, self.costs, subnet, one) for one in self.exits[subnet]]
        end = self.evidence.ends[subnet]
        right, sure, full_ms = self.evidence.right(end), confidence(end), self.costs.latency_ms(subnet)
        found = [
            choose_exits(chosen, right_at_end=right, confidence_at_end=sure, full_ms=full_ms, accuracy_drop=drop)
            for drop in DROPS
        ]
        short = [tuple(replace(exit_, threshold=round(exit_.threshold, 4)) for exit_ in one) for one in found]
        return [one for one in dict.fromkeys(short) if one]

    def network(self, uplink: Uplink | None) -> Network | None:
        server = self.spec["server"]
        if uplink is None or server is None:
            return None
        return Network(uplink=uplink, answer_ms={SERVER: server["answer_ms"]}, input_bytes=server["input_bytes"])

    def planner(self) -> Planner:
        return Planner(
            self.supernet,
            self.evidence,
            self.costs,
            self.subnets,
            exit_sets=self.exit_sets,
            exits=self.exits,
            servers=[SERVER] if self.spec["server"] else [],
        )


def case(spec: Json) -> Json:
    """What is chosen for every requirement on every network."""
    here = World(spec)
    planner = here.planner()
    uplinks = UPLINKS if spec["server"] else UPLINKS[:1]
    sets = [
        [[[one.exit, one.threshold] for one in chosen] for chosen in here.exit_sets[subnet]] for subnet in here.subnets
    ]
    found = [
        {
            "requirement": msgspec.to_builtins(requirement),
            "best": [best(planner, here, requirement, uplink) for uplink in uplinks],
            "front": front(planner, here, requirement) if spec["server"] else None,
        }
        for requirement in requirements(here.top)
    ]
    return rounded(spec | {"exit_sets": sets, "power": msgspec.to_builtins(POWER), "requirements": found})


def best(planner: Planner, here: World, requirement: Requirement, uplink: Uplink | None) -> Json:
    choice = planner.nearest(requirement, here.network(uplink), POWER)
    cost = choice.cost
    return {
        "uplink": None if uplink is None else [uplink.mbps, uplink.round_trip_ms],
        "plan": json.loads(encode_plan(choice.plan)),
        "considered": choice.considered,
        "saved": choice.saved_by_asking_early,
        "misses": {name: None if math.isinf(value) else value for name, value in choice.misses.items()},
        "cost": {
            "accuracy": cost.accuracy,
            "latency_ms": cost.latency_ms,
            "p95_latency_ms": cost.p95_latency_ms,
            "bytes_sent": cost.bytes_sent,
            "peak_bytes": cost.peak_bytes,
            "energy_mj": cost.energy_mj,
            "share_early": cost.share_early,
            "share_asked": cost.share_asked,
            "share_asked_early": cost.share_asked_early,
            "share_abstained": cost.share_abstained,
            "share_second": cost.share_second,
        },
    }


def front(planner: Planner, here: World, requirement: Requirement) -> Json:
    network = here.network(UPLINKS[1])
    assert network is not None
    found = make_front(lambda on: planner.nearest(requirement, on, POWER), planner.route, requirement, network, POWER)
    return json.loads(msgspec.json.encode(found))


def rounded(value: Any) -> Any:
    """Floats to eleven digits: sums in another order, as on another machine, do not show."""
    if isinstance(value, float):
        return float(f"{value:.11g}")
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    return [rounded(one) for one in value] if isinstance(value, list | tuple) else value


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("plans.json"))
