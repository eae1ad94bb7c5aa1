"""Plans with exits that ask a server, all thresholds optimised together for one requirement (EE-HI). Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from device_sdk.execution.deciders import confidence
from device_sdk.policies.evidence import Evidence, Network
from device_sdk.policies.joint_thresholds import AskingEnd, JointThresholds, best_thresholds
from device_sdk.policies.route import Route
from device_sdk.policies.threshold_sweep import Ranking
from device_sdk.policies.thresholds import ExitSamples
from device_sdk.supernet.cost import CostModel, Power
from device_sdk.supernet.plan import Ask, Decider, ExitChoice, Plan, RemoteRef, Subnet
from device_sdk.supernet.requirement import Requirement
from device_sdk.supernet.supernet import Supernet

MOST_THRESHOLDS = 24  # per exit
MOST_TABLES = 400  # per subnet and decider


@dataclass(frozen=True)
class _Path:
    """A subnet without exits, all ways to decide at its end, and the exits that it may take."""

    route: Route
    rankings: Sequence[Ranking]
    exits: Sequence[ExitSamples]
    exit_bytes: Sequence[int]


class JointPlans:
    """The best plans of exits and a decision for requirements, over all thresholds at once.

    Args:
        exits: candidates of each subnet, following each other; the evidence has their logits.
        rankings: of the deciders that may ask ``server``, by subnet; subnets without exits are left out.
        most_thresholds: per exit; None for every confidence that a sample has.
    """

    def __init__(
        self,
        supernet: Supernet,
        evidence: Evidence,
        cost_model: CostModel,
        exits: Mapping[Subnet, Sequence[ExitChoice]],
        rankings: Mapping[Subnet, Sequence[Ranking]],
        server: RemoteRef,
        *,
        most_thresholds: int | None = MOST_THRESHOLDS,
        most_tables: int = MOST_TABLES,
    ) -> None:
        self._server, self._evidence = server, evidence
        self._most = {"most_thresholds": most_thresholds, "most_tables": most_tables}
        self._paths = {
            subnet: _Path(
                rankings[subnet][0].route,
                rankings[subnet],
                [exit_samples(supernet, evidence, cost_model, subnet, one) for one in chosen],
                [cost_model.exit_bytes(one) for one in chosen],
            )
            for subnet, chosen in exits.items()
            if chosen and rankings.get(subnet)
        }

    def best(
        self, requirement: Requirement, network: Network | None, power: Power | None, *, better_than: float = -math.inf
    ) -> Plan | None:
        """The plan that ``requirement`` puts first; None if none keeps it with a value above ``better_than``."""
        best: Plan | None = None
        for subnet, path in self._paths.items():
            asking = path.route.asking(Ask(path.rankings[0].kind, self._server), network)
            if asking.correct is None or asking.call.transfer_ms is None or asking.call.server_ms is None:
                continue
            for ranking in path.rankings:
                found = best_thresholds(
                    path.exits,
                    AskingEnd(
                        ranking.by_sample(),
                        path.route.correct,
                        asking.correct,
                        float(path.route.device_ms[0]),
                        asking.call,
                    ),
                    requirement,
                    power=power,
                    peak_bytes=path.route.peak_bytes,
                    exit_bytes=path.exit_bytes,
                    better_than=better_than,
                    **self._most,  # type: ignore[arg-type]
                )
                if found is not None:
                    best, better_than = self._plan(subnet, ranking, found), found.value
        return best

    def _plan(self, subnet: Subnet, ranking: Ranking, found: JointThresholds) -> Plan:
        plan = Plan(subnet, found.exits)
        if not found.hard_eases:
            return plan
        decider: Decider = ranking.decider(found.hard_eases - 1)
        return replace(plan, hard=Ask(decider, self._server))


def exit_samples(
    supernet: Supernet, evidence: Evidence, cost_model: CostModel, subnet: Subnet, choice: ExitChoice
) -> ExitSamples:
    """What the evidence says of one exit of ``subnet``."""
    ends = [block.end for _, block in supernet.walk(subnet)]
    before = subnet.edges[: ends.index(supernet.exit(choice.exit).position) + 1]
    logits = evidence.exits[before, choice.exit, choice.rendition]
    return ExitSamples(
        choice,
        confidence(logits),
        evidence.right(logits),
        reach_ms=cost_model.latency_along_ms(before),
        branch_ms=cost_model.exit_latency_ms(choice, subnet.input_size),
    )
