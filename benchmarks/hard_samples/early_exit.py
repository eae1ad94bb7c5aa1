"""EE-HI against HI at a required accuracy, under the HI paper's Raspberry Pi constants (§5, Table 6)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from device_sdk.execution.workspace import Workspace
from device_sdk.policies.costs.answers import Answers, answer_everywhere
from device_sdk.policies.costs.evidence import Evidence, Network
from device_sdk.policies.costs.expected_cost import expected_cost
from device_sdk.policies.deciding.promises import SHARES_CERTAINTY, most_shares
from device_sdk.policies.exits.placed_exits import exit_choices
from device_sdk.policies.joint_thresholds.plans import JointPlans, JointSearch
from device_sdk.policies.planning.choice import Option
from device_sdk.policies.planning.ground import Ground
from device_sdk.policies.planning.planner import Planner
from device_sdk.runtimes import OnnxRuntime
from device_sdk.runtimes.port import Array
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.supernet.cost import CostModel, PlanCost, Power, Uplink
from device_sdk.supernet.goal import Requirement
from device_sdk.supernet.plan import ExitChoice, Plan, RemoteRef, Subnet
from device_sdk.supernet.supernet import Supernet

SERVER = RemoteRef("ensemble")
HI, EE_HI, EARLY, ALONE = "HI", "EE-HI", "EE-HI, asking from exits", "server alone"
# without exits, and the server alone, which is no rival: the device then decides nothing
KINDS = {HI: ("subnet", "ask"), ALONE: ("remote",)}
SAVINGS = {"ee_hi": (EE_HI, HI), "early_asking": (EARLY, EE_HI)}
_RESAMPLES = 200
PAPER = {"latency": 1 - 2.71 / 3.82, "energy": 1 - 9.00 / 12.55}  # Table 6: ResNet-8 on the Raspberry Pi

Positions = npt.NDArray[np.int64]
_OPTIMISED: tuple[tuple[Literal["latency_ms", "energy_mj"], str], ...] = (
    ("latency_ms", "latency"),
    ("energy_mj", "energy"),
)


@dataclass(frozen=True)
class Constants:
    """Of a device: milliseconds and millijoules of its network, and of an offload with its answer (HI Tables 3, 4)."""

    ms: float
    mj: float
    offload_ms: float
    offload_mj: float

    @property
    def network(self) -> Network:
        return Network(uplink=Uplink(1e6, self.offload_ms), answer_ms={SERVER: 0.0}, input_bytes=1)

    @property
    def power(self) -> Power:
        return Power(active_w=self.mj / self.ms, radio_w=self.offload_mj / self.offload_ms)


@dataclass(frozen=True)
class Part:
    """Prepared samples with labels and the server's logits: [count, ...]."""

    inputs: Array
    labels: npt.NDArray[np.int64]
    server: Array


def early_exit_rows(
    model: AdaptiveModel, tuning: Part, report: Part, constants: Constants, required: float
) -> tuple[dict[str, float], list[dict[str, object]]]:
    """HI, EE-HI and EE-HI whose exits ask, of least latency and energy: chosen on ``tuning``, judged on ``report``.

    How long the network takes to an exit is its share of the whole by this machine's profile, of the paper's constant.
    Plans are chosen to keep ``required`` on new samples nine times in ten. HI has no exits; EE-HI has some, and no
    plan without any is among its candidates. ``…_saving`` compares plans of different
    kinds, ``…_saving_low`` is the lower end of its 95 % bootstrap interval; both are 0 where no plan of the new kind
    was found that beats the others on ``tuning``. ``hi_promises_kept``: the share of plans that keep ``required``.
    """
    costs = _scaled(model.profile().cost_model(), model, constants.ms)
    chosen_on, chosen_by = _evidence(model, tuning)
    judged_on, _ = _evidence(model, report)
    supernet, subnet = model.bundle.supernet, model.bundle.supernet.original
    planner = Planner(supernet, chosen_on, costs, [subnet], servers=[SERVER])
    joint = _joint(supernet, chosen_on, costs, subnet, exit_choices(chosen_by, costs))
    rows: list[dict[str, object]] = []
    figures = {"ee_hi_latency_saving_paper": PAPER["latency"], "ee_hi_energy_saving_paper": PAPER["energy"]}
    kept: list[bool] = []

    def judged(plan: Plan, positions: Positions) -> PlanCost:
        return expected_cost(supernet, plan, judged_on.part(positions), costs, constants.network, constants.power)

    for optimised, short in _OPTIMISED:
        requirement = Requirement(accuracy=promised(required, chosen_on.count), coverage=1.0, optimise=optimised)
        choice = planner.nearest(requirement, constants.network, constants.power)
        plans = {name: best_of(choice.by_kind, kinds, requirement) for name, kinds in KINDS.items()}
        plans |= _with_exits(joint.search(requirement, constants.network, constants.power))
        everything = np.arange(judged_on.count)
        for name, plan in plans.items():
            if plan is None:
                rows.append({"what": name, "optimised": optimised, "failure": "no plan of this kind is worth it"})
                continue
            cost = judged(plan, everything)
            if name != ALONE:
                kept.append((cost.accuracy or 0.0) >= required)
            rows.append(_row(name, optimised, plan, cost, constants, required))
        for figure, (new, old) in SAVINGS.items():
            saved = savings(plans[new], plans[old] or plans[HI], judged, optimised, judged_on.count)
            figures |= {f"{figure}_{short}_saving{end}": value for end, value in zip(("", "_low"), saved, strict=True)}
    return figures | {"hi_promises_kept": float(np.mean(kept))}, rows


def _joint(
    supernet: Supernet, evidence: Evidence, costs: CostModel, subnet: Subnet, exits: Sequence[ExitChoice]
) -> JointPlans:
    ground = Ground(
        supernet,
        evidence,
        costs,
        [subnet],
        exit_sets={},
        servers=[SERVER],
        tail_server=None,
        sends_input=True,
        certainty=SHARES_CERTAINTY,
    )
    return JointPlans(supernet, evidence, costs, {subnet: exits}, {subnet: ground.local[0].asking[SERVER]}, SERVER)


def _with_exits(search: JointSearch) -> dict[str, Plan | None]:
    """The best plan whose exits answer, and the best whose exits ask too; None where the best has no such exits."""
    late, early = search.best(asks_early=False), search.best(asks_early=True)
    return {
        EE_HI: late if late is not None and late.exits else None,
        EARLY: early if early is not None and early.asks_early else None,
    }


def promised(required: float, count: int) -> float:
    """The accuracy on ``count`` samples with which new samples have ``required`` nine times in ten (ADR 75)."""
    wrong = int(np.flatnonzero(most_shares(count, SHARES_CERTAINTY) <= 1 - required).max(initial=0))
    return 1 - wrong / count


def best_of(by_kind: Mapping[str, Option], kinds: Sequence[str], requirement: Requirement) -> Plan | None:
    """The best plan of ``kinds`` that misses no limit."""
    kept = [one for kind, one in by_kind.items() if kind in kinds and not one.misses]
    return max(kept, key=lambda one: requirement.value(one.cost)).plan if kept else None


def savings(
    new: Plan | None,
    old: Plan | None,
    judged: Callable[[Plan, Positions], PlanCost],
    optimised: str,
    count: int,
) -> tuple[float, float]:
    """The share of its cost that ``new`` saves of ``old``'s, and the lower end of the 95 % bootstrap interval."""
    if new is None or old is None:
        return 0.0, 0.0

    def saving(positions: Positions) -> float:
        own, rival = (getattr(judged(plan, positions), optimised) for plan in (new, old))
        return float(1 - own / rival)

    random = np.random.default_rng(0)
    drawn = [saving(random.integers(0, count, count)) for _ in range(_RESAMPLES)]
    return saving(np.arange(count)), float(np.percentile(drawn, 2.5))


def _row(
    name: str, optimised: str, plan: Plan, cost: PlanCost, constants: Constants, required: float
) -> dict[str, object]:
    return {
        "what": f"{name} for {100 * required:g} %",
        "optimised": optimised,
        "plan": plan.kind,
        "thresholds": [f"{one.exit}: {one.threshold:.3f}" for one in plan.exits],
        "ask_below": [f"{one.exit}: {one.ask_below:.3f}" for one in plan.exits],
        "accuracy_report": 100 * (cost.accuracy or 0.0),
        "share_early": 100 * cost.share_early,
        "sent": 100 * cost.share_asked,
        "sent_early": 100 * cost.share_asked_early,
        "pi_ms": cost.latency_ms,
        "pi_p95_ms": cost.p95_latency_ms,
        "pi_mj": cost.energy_mj,
        "energy_source": constants.power.source,
    }


def _scaled(costs: CostModel, model: AdaptiveModel, whole_ms: float) -> CostModel:
    """The cost model of a device on which the whole network takes ``whole_ms``."""
    factor = whole_ms / costs.latency_ms(model.bundle.supernet.original)
    return costs.slowed(factor)


def _evidence(model: AdaptiveModel, part: Part) -> tuple[Evidence, Answers]:
    workspace = Workspace(model.bundle, OnnxRuntime(threads=1))
    subnet = model.bundle.supernet.original
    answers = answer_everywhere(workspace, subnet, part.inputs, part.labels, use_exits=True, batch=64)
    own = answers.evidence
    return Evidence(part.labels, own.ends, own.exits, {SERVER: part.server}), answers
