"""A world for planners: three blocks with an exit, random evidence, a server that answers and runs tails."""

from __future__ import annotations

import dataclasses

import numpy as np

from device_sdk.policies.costs.evidence import Evidence, Network
from device_sdk.policies.planning.planner import Planner
from device_sdk.policies.splitting.path_splits import Handling
from device_sdk.supernet.blocks import Exit, Golden, Rendition
from device_sdk.supernet.cost import CostModel, EdgeCost, Uplink
from device_sdk.supernet.plan import ExitChoice, RemoteRef
from device_sdk.supernet.supernet import Supernet

COUNT, CLASSES = 60, 3
SERVER, TAILS = RemoteRef("big"), RemoteRef("model:tail", "0" * 64)


class World:
    """Three blocks with an exit, random evidence, and a server that runs a better model and tails."""

    def __init__(self, elastic_supernet) -> None:
        random = np.random.default_rng(0)
        plain = elastic_supernet(3)
        rendition = Rendition("fp32", "none", "0" * 64, 1, Golden((), 0.0))
        self.supernet = Supernet(plain.cut_points, plain.blocks, [Exit("x1", 1, "pooled", 1, 1, (rendition,))])
        self.subnet = self.supernet.original
        self.costs = CostModel(
            {edge: EdgeCost(20.0, 20.0, 100, 10) for edge in self.supernet.edges},
            exit_costs={("x1", "fp32", ()): EdgeCost(0.5, 0.5, 7, 1)},
        )
        labels = random.integers(0, CLASSES, COUNT)

        def logits(skill: float):
            found = random.normal(size=(COUNT, CLASSES))
            found[np.arange(COUNT), labels] += skill
            return found.astype(np.float32)

        exits = {(self.subnet.edges[:1], "x1", "fp32"): logits(1.5)}
        self.evidence = Evidence(labels, {self.subnet: logits(2.0)}, exits, {SERVER: logits(4.0)})
        self.network = Network(
            uplink=Uplink(5.0, 10.0),
            server=CostModel({edge: EdgeCost(0.5, 0.5, 1, 1) for edge in self.supernet.edges}),
            answer_ms={SERVER: 1.0},
            input_bytes=3000,
            handling=Handling(1e-3, 2e-3, 0.7, 1e-4),
        )
        self.planner = self.slower(1.0)

    def slower(self, factor: float) -> Planner:
        """The planner for a device so many times slower."""
        return Planner(
            self.supernet,
            self.evidence,
            self.costs.slowed(factor),
            [self.subnet],
            exit_sets={self.subnet: [(ExitChoice("x1", 0.7),)]},
            servers=[SERVER],
            tail_server=TAILS,
        )

    def at(self, uplink: Uplink) -> Network:
        return dataclasses.replace(self.network, uplink=uplink)
