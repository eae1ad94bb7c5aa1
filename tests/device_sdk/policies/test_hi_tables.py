"""The HI paper's Table 5 out of the planner, from the constants of its Tables 3 and 4 and of its text (§4).

Of its 18 cells 14 can be kept. ImageNet on Coral Micro and Raspberry Pi within half the cost of an offload cannot: the
paper prints remote inference there, which costs twice the limit; it is the nearest plan.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from device_sdk.errors import InfeasibleBudgetError
from device_sdk.policies.costs.evidence import Evidence, Network
from device_sdk.policies.planning.planner import Planner
from device_sdk.supernet.blocks import Block, CutPoint, Golden, Rendition, TensorSpec
from device_sdk.supernet.cost import CostModel, EdgeCost, Power, Uplink
from device_sdk.supernet.goal import Requirement
from device_sdk.supernet.plan import Ask, Edge, Plan, RemoteRef, Subnet
from device_sdk.supernet.supernet import Supernet

COUNT, CLASSES = 4000, 10
SERVER = RemoteRef("vision transformer")


@dataclass(frozen=True)
class Task:
    """``models``: milliseconds, millijoules and accuracy of each on the device; the first one may ask.

    ``offload``: milliseconds and millijoules; ``server``: its accuracy; ``asked`` and ``accuracy_with``: of HI.
    """

    required: float
    models: dict[str, tuple[float, float, float]]
    offload: tuple[float, float]
    server: float
    asked: float
    accuracy_with: float


def cifar(ms: tuple[float, float, float], mj: tuple[float, float, float], accuracy, offload, asked, with_it) -> Task:
    names = ("resnet-8", "resnet-56", "alexnet")
    models = {name: one for name, *one in zip(names, ms, mj, accuracy, strict=True)}
    return Task(0.90, models, offload, 0.9877, asked, with_it)


def imagenet(models, offload) -> Task:
    return Task(0.80, models, offload, 0.8658, 0.40, 0.8423)


# Tables 3 and 4; the share asked is that of Table 7, which Table 6 agrees with; for ImageNet it follows from §4.4:
# half the latency and 28 % of the energy of RegNet on the Jetson, and 2.14 points more accuracy
TASKS = {
    ("cifar", "coral"): cifar(
        (1.50, 6.45, 69.41), (2.14, 9.86, 112.0), (0.8698, 0.9366, 0.7439), (10.37, 14.61), 0.2157, 0.9575
    ),
    ("cifar", "raspberry pi"): cifar(
        (1.63, 14.36, 4.75), (6.22, 55.59, 19.38), (0.8697, 0.9353, 0.7427), (9.68, 27.67), 0.2157, 0.959
    ),
    ("cifar", "jetson"): cifar(
        (0.17, 0.64, 0.39), (1.38, 5.47, 4.43), (0.8691, 0.9372, 0.7474), (8.20, 55.91), 0.2157, 0.9536
    ),
    ("imagenet", "coral"): imagenet(
        {"resnet-18": (168.22, 230.68, 0.6875), "resnet-50": (690.43, 939.69, 0.7497)}, (84.41, 145.13)
    ),
    ("imagenet", "raspberry pi"): imagenet(
        {
            "resnet-18": (227.66, 977.33, 0.6967),
            "resnet-50": (461.84, 2004.21, 0.7586),
            "alexnet": (105.04, 446.08, 0.5636),
        },
        (28.74, 112.01),
    ),
    ("imagenet", "jetson"): imagenet(
        {
            "resnet-18": (0.84, 10.56, 0.6959),
            "resnet-50": (1.80, 23.60, 0.7601),
            "alexnet": (1.48, 22.14, 0.5645),
            "regnet": (14.88, 213.67, 0.8209),
        },
        (16.45, 124.93),
    ),
}
HI_CIFAR, HI_IMAGENET = "resnet-8 + HI", "resnet-18 + HI"
TABLE_5 = {
    ("cifar", "coral"): (HI_CIFAR, HI_CIFAR, HI_CIFAR),
    ("cifar", "raspberry pi"): (HI_CIFAR, HI_CIFAR, HI_CIFAR),
    ("cifar", "jetson"): ("resnet-56", HI_CIFAR, HI_CIFAR),
    ("imagenet", "coral"): ("remote", None, None),
    ("imagenet", "raspberry pi"): ("remote", None, None),
    ("imagenet", "jetson"): (HI_IMAGENET, HI_IMAGENET, HI_IMAGENET),
}
LIMITS = ("accuracy", "latency_ms", "energy_mj")
CELLS = [(place, limit, best) for place, row in TABLE_5.items() for limit, best in zip(LIMITS, row, strict=True)]


class System:
    """The models of a task as paths of one block each, and answers that have the paper's accuracies.

    Of the smallest model's answers the share ``asked`` is unsure; what is wrong among them is what asking repairs.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        random = np.random.default_rng(0)
        labels = random.integers(0, CLASSES, COUNT)
        small, *others = task.models
        unsure = np.arange(COUNT) < round(task.asked * COUNT)
        right_there = np.zeros(COUNT, dtype=bool)
        sure_wrong = round((1 - task.asked + task.asked * self._server_on_hard() - task.accuracy_with) * COUNT)
        wrong = COUNT - round(task.models[small][2] * COUNT)
        right_here = np.ones(COUNT, dtype=bool)
        right_here[: wrong - sure_wrong] = False  # among the unsure
        right_here[COUNT - sure_wrong :] = False
        right_there[: round(self._server_on_hard() * unsure.sum())] = True
        easy_right = round(task.server * COUNT) - int(right_there.sum())
        right_there[int(unsure.sum()) : int(unsure.sum()) + easy_right] = True
        mixed, spread = random.permutation(COUNT), random.uniform(0, 0.5, COUNT)
        rendition = Rendition("fp32", "none", "0" * 64, 1, Golden((), 0.0))
        cuts = [CutPoint(0, (TensorSpec("in", (3, 4, 4)),)), CutPoint(1, (TensorSpec("out", (CLASSES,)),))]
        blocks = [
            Block(name, 0, 1, "original" if name == small else "shrunk", 1, 1, (rendition,)) for name in task.models
        ]
        self.supernet = Supernet(cuts, blocks, [])
        self.subnets = {name: Subnet((Edge(name),)) for name in task.models}
        self.costs = CostModel({Edge(name): EdgeCost(one[0], one[0], 1, 1) for name, one in task.models.items()})
        ends = {self.subnets[small]: _logits(labels, right_here[mixed], np.where(unsure[mixed], 1.0, 6.0) + spread)}
        for name in others:
            right = random.permutation(COUNT) < round(task.models[name][2] * COUNT)
            ends[self.subnets[name]] = _logits(labels, right, 3.0 + random.uniform(0, 0.5, COUNT))
        server = _logits(labels, right_there[mixed], np.full(COUNT, 3.0))
        self.evidence = Evidence(labels, ends, servers={SERVER: server})
        ms, mj = task.offload
        self.network = Network(uplink=Uplink(1e6, ms), answer_ms={SERVER: 0.0}, input_bytes=1)
        self.power = Power(active_w=task.models[small][1] / task.models[small][0], radio_w=mj / ms)
        self.planner = Planner(
            self.supernet, self.evidence, self.costs, list(self.subnets.values()), servers=[SERVER], kinds=["ask"]
        )

    def _server_on_hard(self) -> float:
        """The server's accuracy on what it is asked about: somewhat below that on all."""
        return self.task.server - 0.03

    def name(self, plan: Plan) -> str:
        if plan.split is not None:
            return plan.kind
        own = plan.subnet.edges[0].block
        return f"{own} + HI" if isinstance(plan.hard, Ask) else own


def _logits(labels, right, sure) -> np.ndarray:
    answers = np.where(right, labels, (labels + 1) % CLASSES)
    logits = np.zeros((COUNT, CLASSES), np.float32)
    logits[np.arange(COUNT), answers] = sure
    return logits


SYSTEMS: dict[tuple[str, str], System] = {}


def system(place: tuple[str, str]) -> System:
    if place not in SYSTEMS:
        SYSTEMS[place] = System(TASKS[place])
    return SYSTEMS[place]


def required(task: Task, limit: str) -> Requirement:
    """HI §3.3: an accuracy, or at most half of what an offload takes; every sample gets an answer."""
    if limit == "accuracy":
        return Requirement(accuracy=task.required, coverage=1.0, optimise="latency_ms")
    return Requirement(coverage=1.0, **{limit: 0.5 * task.offload[LIMITS.index(limit) - 1]})


@pytest.mark.slow
@pytest.mark.parametrize(("place", "limit", "best"), CELLS, ids=lambda one: one if isinstance(one, str) else None)
def test_table_5_of_the_hi_paper_comes_out_of_the_planner(place, limit, best):
    there = system(place)
    requirement = required(there.task, limit)
    if best is not None:
        choice = there.planner.best(requirement, there.network, there.power)
        assert there.name(choice.plan) == best
        assert not requirement.misses(choice.cost)
        return
    with pytest.raises(InfeasibleBudgetError, match=r"the nearest \(remote\) has " + limit):
        there.planner.best(requirement, there.network, there.power)


def test_fourteen_cells_can_be_kept():
    assert sum(best is not None for *_, best in CELLS) == 14


@pytest.mark.parametrize(
    ("place", "ms", "mj"),
    [
        (("cifar", "raspberry pi"), 3.82, 12.55),
        (("cifar", "jetson"), 1.87, 13.05),
        (("imagenet", "jetson"), 7.44, 59.8),
    ],
)
def test_asking_costs_what_the_paper_measured(place, ms, mj):
    # Table 6 (HI), and half of RegNet's latency with 28 % of its energy
    there = system(place)
    task, [small, *_] = there.task, there.subnets.values()
    choice = there.planner.best(
        Requirement(accuracy=task.accuracy_with - 0.002, coverage=1.0, optimise="latency_ms"),
        there.network,
        there.power,
    )
    ask = choice.by_kind["ask"]
    assert ask.plan.subnet == small
    assert ask.cost.accuracy == pytest.approx(task.accuracy_with, abs=0.003)
    assert ask.cost.latency_ms == pytest.approx(ms, rel=0.08)
    assert ask.cost.energy_mj == pytest.approx(mj, rel=0.08)


def test_asking_saves_what_the_paper_says_at_ninety_percent():
    # HI §4.4: up to 73 % of the latency and 77 % of the energy of ResNet-56 on a Raspberry Pi
    there = system(("cifar", "raspberry pi"))
    choice = there.planner.best(
        Requirement(accuracy=0.9, coverage=1.0, optimise="latency_ms"), there.network, there.power
    )
    ms, mj, _ = there.task.models["resnet-56"]
    assert 1 - choice.cost.latency_ms / ms >= 0.73
    assert 1 - choice.cost.energy_mj / mj >= 0.77
