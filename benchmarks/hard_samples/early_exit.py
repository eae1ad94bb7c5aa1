"""EE-HI against HI at a required accuracy, under the HI paper's Raspberry Pi constants (§5, Table 6)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from device_sdk.execution.workspace import Workspace
from device_sdk.policies.costs.answers import Answers, answer_everywhere
from device_sdk.policies.costs.evidence import Evidence, Network
from device_sdk.policies.costs.expected_cost import expected_cost
from device_sdk.policies.planning.plan_choice import exit_choices
from device_sdk.policies.planning.planner import Planner
from device_sdk.runtimes import OnnxRuntime
from device_sdk.runtimes.port import Array
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.supernet.cost import CostModel, PlanCost, Power, Uplink
from device_sdk.supernet.plan import RemoteRef
from device_sdk.supernet.requirement import Requirement

SERVER = RemoteRef("resnet56_cifar10")
_EE_HI = ("subnet", "ask", "exits", "exits + ask")
# without exits, with them wherever that pays, and with exits that ask the server too
KINDS = {"HI": ("subnet", "ask"), "EE-HI": _EE_HI, "EE-HI, asking from exits": (*_EE_HI, "exits + ask early")}
PAPER = {"latency": 1 - 2.71 / 3.82, "energy": 1 - 9.00 / 12.55}  # Table 6: ResNet-8 on the Raspberry Pi


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
    """
    costs = _scaled(model.profile().cost_model(), model, constants.ms)
    chosen_on, chosen_by = _evidence(model, tuning)
    judged_on, _ = _evidence(model, report)
    supernet, subnet = model.bundle.supernet, model.bundle.supernet.original
    exits = {subnet: exit_choices(chosen_by, costs)}
    rows: list[dict[str, object]] = []
    judged: dict[tuple[str, str], PlanCost] = {}
    for optimise in ("latency_ms", "energy_mj"):
        requirement = Requirement(accuracy=required, coverage=1.0, optimise=optimise)
        planner = Planner(supernet, chosen_on, costs, [subnet], exits=exits, server=SERVER)
        choice = planner.nearest(requirement, constants.network, constants.power)
        for name, kinds in KINDS.items():
            kept = [one for kind, one in choice.by_kind.items() if kind in kinds and not one.misses]
            if not kept:
                rows.append({"what": name, "optimised": optimise, "failure": "no plan keeps the requirement"})
                continue
            plan = max(kept, key=lambda one: requirement.value(one.cost)).plan
            cost = expected_cost(supernet, plan, judged_on, costs, constants.network, constants.power)
            judged[optimise, name] = cost
            rows.append(
                {
                    "what": f"{name} for {100 * required:g} %",
                    "optimised": optimise,
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
            )
    figures = {"ee_hi_latency_saving_paper": PAPER["latency"], "ee_hi_energy_saving_paper": PAPER["energy"]}
    for optimise, name in (("latency_ms", "latency"), ("energy_mj", "energy")):
        costs_of = [getattr(judged[optimise, kind], optimise) for kind in KINDS if (optimise, kind) in judged]
        if len(costs_of) == len(KINDS):
            figures[f"ee_hi_{name}_saving"] = 1 - costs_of[1] / costs_of[0]
            figures[f"early_asking_{name}_saving"] = 1 - costs_of[2] / costs_of[1]
    return figures, rows


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
