"""Plans with exits that ask a server, all thresholds optimised together for one requirement (EE-HI). Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from device_sdk.execution.deciders import confidence
from device_sdk.policies.evidence import Evidence, Network
from device_sdk.policies.joint_thresholds import AskingEnd, JointThresholds, best_thresholds
from device_sdk.policies.route import Route
from device_sdk.policies.threshold_grid import Grid
from device_sdk.policies.threshold_sweep import Ranking
from device_sdk.policies.thresholds import ExitSamples
from device_sdk.supernet.cost import CostModel, Power
from device_sdk.supernet.plan import Ask, Decider, ExitChoice, Plan, RemoteRef, Subnet
from device_sdk.supernet.requirement import Requirement
from device_sdk.supernet.supernet import Supernet

COARSE, FINE = 7, 12  # thresholds per exit in the first look at all paths, and around the best of them
MOST_TABLES = 150  # of a look at a path with one decider


@dataclass(frozen=True)
class _Path:
    """A subnet without exits, all ways to decide at its end, and the exits that it may take."""

    subnet: Subnet
    route: Route
    rankings: Sequence[Ranking]
    exits: Sequence[ExitSamples]
    exit_bytes: Sequence[int]

    def look(
        self, end: AskingEnd, requirement: Requirement, power: Power | None, better_than: float, grid: Grid
    ) -> JointThresholds | None:
        return best_thresholds(
            self.exits,
            end,
            requirement,
            power=power,
            peak_bytes=self.route.peak_bytes,
            exit_bytes=self.exit_bytes,
            better_than=better_than,
            grid=grid,
            most_tables=MOST_TABLES,
        )


@dataclass(frozen=True)
class _Found:
    """The best of a look at all paths, and where it was found."""

    path: _Path
    ranking: Ranking
    end: AskingEnd
    grid: Grid
    thresholds: JointThresholds


@dataclass(frozen=True)
class _Look:
    """What all first looks at a path with one decider have in common, whatever the network."""

    ranking: Ranking
    ease: npt.NDArray[np.float64]
    grid: Grid

    @classmethod
    def of(cls, path: _Path, ranking: Ranking) -> _Look:
        ease = ranking.by_sample()
        return cls(ranking, ease, Grid.of(path.exits, ease, most=COARSE))


class JointPlans:
    """The best plans of exits and a decision for requirements, their thresholds found together.

    A coarse grid on every path and decider comes first, then a fine one around the best of them: quick, and exact on
    each grid. ``best_thresholds`` without a grid is exact over all thresholds, in seconds.

    Args:
        exits: candidates of each subnet, following each other; the evidence has their logits.
        rankings: of the deciders that may ask ``server``, by subnet; subnets without exits are left out.
    """

    def __init__(
        self,
        supernet: Supernet,
        evidence: Evidence,
        cost_model: CostModel,
        exits: Mapping[Subnet, Sequence[ExitChoice]],
        rankings: Mapping[Subnet, Sequence[Ranking]],
        server: RemoteRef,
    ) -> None:
        self._server = server
        self._paths = {
            subnet: _Path(
                subnet,
                rankings[subnet][0].route,
                rankings[subnet],
                [exit_samples(supernet, evidence, cost_model, subnet, one) for one in chosen],
                [cost_model.exit_bytes(one) for one in chosen],
            )
            for subnet, chosen in exits.items()
            if chosen and rankings.get(subnet)
        }
        self._looks = {subnet: [_Look.of(path, one) for one in path.rankings] for subnet, path in self._paths.items()}

    def best(
        self, requirement: Requirement, network: Network | None, power: Power | None, *, better_than: float = -math.inf
    ) -> Plan | None:
        """The plan that ``requirement`` puts first; None if none keeps it with a value above ``better_than``."""
        best: _Found | None = None
        for subnet, path in self._paths.items():
            asking = path.route.asking(Ask(path.rankings[0].kind, self._server), network)
            if asking.correct is None or asking.call.transfer_ms is None or asking.call.server_ms is None:
                continue
            own_ms = float(path.route.device_ms[0])
            for look in self._looks[subnet]:
                end = AskingEnd(look.ease, path.route.correct, asking.correct, own_ms, asking.call)
                found = path.look(end, requirement, power, better_than, look.grid)
                if found is not None:
                    best, better_than = _Found(path, look.ranking, end, look.grid, found), found.value
        if best is None:
            return None
        path, end = best.path, best.end
        fine = best.grid.around(best.thresholds.exits, best.thresholds.hard_eases, path.exits, end.ease, most=FINE)
        return self._plan(best, path.look(end, requirement, power, better_than, fine) or best.thresholds)

    def _plan(self, best: _Found, found: JointThresholds) -> Plan:
        plan = Plan(best.path.subnet, found.exits)
        if not found.hard_eases:
            return plan
        decider: Decider = best.ranking.decider(found.hard_eases - 1)
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
