"""Evidence for the proposers: the answers of the device, in all ways that it has, and of servers to private samples."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from device_sdk.data.inputs import VIEWS
from device_sdk.execution.workspace import Workspace
from device_sdk.policies.costs.answers import Answers, answer_everywhere, answer_views
from device_sdk.policies.costs.evidence import Evidence, Network
from device_sdk.policies.costs.expected_cost import expected_cost
from device_sdk.policies.deciding.promises import SHARES_CERTAINTY
from device_sdk.policies.exits.placed_exits import drops_within, exit_choices, exit_sets, with_further_exits
from device_sdk.policies.gathering import Samples, prepare_ms
from device_sdk.policies.measured_splits.measuring import Received, answers_in_few_bits, few_bits_ms
from device_sdk.policies.planning.ground import Fitted
from device_sdk.policies.planning.planner import Planner, PromisedPlans, Trial
from device_sdk.policies.planning.proposers import that_need
from device_sdk.policies.planning.server_evidence import Servers
from device_sdk.progress import Progress
from device_sdk.supernet.cost import CostModel, PlanCost, Power
from device_sdk.supernet.goal import Goal, Requirement
from device_sdk.supernet.plan import Plan, Subnet
from device_sdk.tasks.margins import margin_scale

_BATCH = 64
_ANSWERS_S = 60.0  # spent at most on answers of subnets, but for the first two
_VIEWS_S = 10.0  # spent at most on answering views of the samples
_FEW_BITS_S = 10.0  # the same for what tails answer to activations in few bits


@dataclass(frozen=True, eq=False)
class Collected:
    """Answers of ``subnets`` and servers to the samples.

    ``workspace``: with the prior that corrects all answers; ``fitted``: deciders that all planners share.
    """

    workspace: Workspace
    costs: CostModel
    subnets: Sequence[Subnet]
    answers: Sequence[Answers]
    evidence: Evidence
    samples: Samples
    servers: Servers
    fitted: Fitted = field(default_factory=dict)

    def planner(
        self, kinds: Collection[str], goal: Goal, base: Subnet, *, timed_exits: bool, slower: float = 1.0
    ) -> PromisedPlans:
        """The planner over the samples that choose, whose promises are tested on the others.

        ``goal``: its ``max_drop`` is from the accuracy of ``base``; exits may lose no more of their own subnet's.
        ``timed_exits``: plans keep an exit at each cut point for deadlines and anytime answers, unless memory is
        limited: what is left of it is not known to suffice. ``slower``: for a device that is so many times slower.
        """
        costs = self.costs if slower == 1 else self.costs.slowed(slower)
        supernet, choosing, with_exits = self.workspace.supernet, self.samples.kept, "exits" in kinds
        parts = [one.part(choosing) for one in self.answers] if with_exits else []
        drops = drops_within(goal.max_drop)
        planner = Planner(
            supernet,
            self.evidence.part(choosing),
            costs,
            self.subnets,
            exit_sets={one.subnet: exit_sets(one, costs, drops) for one in parts},
            exits={one.subnet: exit_choices(one, costs) for one in parts},
            servers=self.servers.asked,
            tail_server=self.servers.tails,
            privacy=self.servers.privacy,
            kinds=kinds,
            certainty=goal.certainty or SHARES_CERTAINTY,
            fitted=self.fitted,
        )

        def finished(plan: Plan, wanted: Requirement) -> Plan:
            plan = plan.with_prior(self.workspace.prior)
            keeps = timed_exits and wanted.peak_bytes is None
            return with_further_exits(supernet, plan) if keeps else plan

        tried_on = (replace(self.evidence.part(some), margin_scale=0.0) for some in (choosing, self.samples.held))
        drop_from = None if goal.max_drop is None else (base, goal.max_drop)
        seen, held = (Trial(supernet, one, costs, drop_from) for one in tried_on)
        return PromisedPlans(planner, seen, held, finished)

    def held_out(self, plan: Plan, network: Network | None = None, power: Power | None = None) -> PlanCost | None:
        """The cost of ``plan`` on the samples that did not choose; None without any."""
        if not len(self.samples.held):
            return None
        held = replace(self.evidence.part(self.samples.held), margin_scale=0.0)
        return expected_cost(self.workspace.supernet, plan, held, self.costs, network, power)

    def accuracy(self, subnet: Subnet) -> float:
        """The accuracy of a subnet that answers everything, on the samples that choose."""
        return float(self.evidence.credit(self.evidence.ends[subnet])[self.samples.kept].mean())


def collect(
    workspace: Workspace,
    costs: CostModel,
    subnets: Sequence[Subnet],
    samples: Samples,
    servers: Servers,
    *,
    kinds: Collection[str],
    progress: Progress,
) -> Collected:
    """Have ``subnets`` answer all samples, with their exits if these are considered, as far as a minute allows.

    Views of the samples, and activations in few bits, are answered only where deciders and splits are considered.
    """
    answers, count, labels = [], len(samples.labels), samples.labels
    first, rest = subnets[:2], subnets[2:]
    affordable = [*first, *_affordable(rest, _ANSWERS_S, lambda one: count * costs.latency_ms(one) / 1e3)]
    with progress.task("answer in all ways", len(affordable)) as task:
        for subnet in affordable:
            answers.append(
                answer_everywhere(workspace, subnet, samples.inputs, labels, use_exits="exits" in kinds, batch=_BATCH)
            )
            task.advance()
    views, received, supernet = {}, Received(), workspace.supernet
    if set(kinds) - {"subnets", "exits"}:
        for subnet in _affordable(affordable, _VIEWS_S, lambda one: VIEWS * count * costs.latency_ms(one) / 1e3):
            views[subnet] = answer_views(workspace, subnet, samples.inputs, batch=_BATCH)
    if servers.tails is not None and any(one in kinds for one in that_need("tails")):
        own_size = [subnet for subnet in affordable if not subnet.input_size]
        for subnet in _affordable(own_size, _FEW_BITS_S, lambda one: count * few_bits_ms(supernet, one, costs) / 1e3):
            received |= answers_in_few_bits(workspace, subnet, samples.inputs)
    sizes = dict.fromkeys(subnet.input_size for subnet in affordable) if "cascade" in kinds else {}
    preparing_ms = {size: prepare_ms(samples.inputs, size) for size in sizes}
    evidence = replace(_joined(labels, answers, servers), views=views, received=received, prepare_ms=preparing_ms)
    if "cascade" in kinds:  # many pairs of paths are tried: right and wrong answers alone would favour lucky ones
        scale = margin_scale(evidence.margins(evidence.ends[affordable[0]]), len(samples.kept))
        evidence = replace(evidence, margin_scale=scale)
    return Collected(workspace, costs, affordable, answers, evidence, samples, servers)


def _affordable(subnets: Sequence[Subnet], limit_s: float, seconds: Callable[[Subnet], float]) -> Iterator[Subnet]:
    """The first subnets, as far as what each takes fits into the time limit together."""
    left_s = limit_s
    for subnet in subnets:
        left_s -= seconds(subnet)
        if left_s < 0:
            return
        yield subnet


def _joined(labels: npt.NDArray[np.int64], answers: Sequence[Answers], servers: Servers) -> Evidence:
    """All answers to the same samples."""
    found = [one.evidence for one in answers]
    return Evidence(
        labels,
        ends={subnet: logits for one in found for subnet, logits in one.ends.items()},
        exits={branch: logits for one in found for branch, logits in one.exits.items()},
        servers={one.server: one.logits for one in servers.answered},
        pools={one.server: one.pool for one in servers.answered if one.pool is not None},
    )
