"""Exits, asking from them and the decision at the end, optimised together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as replace_part

from msgspec.structs import replace

from device_sdk.policies.costs.evidence import Evidence, Network
from device_sdk.policies.costs.route import NO_CALL
from device_sdk.policies.costs.threshold_sweep import Ranking
from device_sdk.policies.deciding.thresholds import ExitSamples
from device_sdk.policies.joint_thresholds.bounds import (
    AskingEnd,
    Bounds,
    Correct,
    Grid,
    Rates,
    Table,
)
from device_sdk.policies.joint_thresholds.optimum import (
    Effort,
    JointThresholds,
    best_thresholds,
    is_on_energy,
    objective_of,
)
from device_sdk.supernet.cost import CostModel, Power
from device_sdk.supernet.deciders.port import confidence
from device_sdk.supernet.goal import Requirement
from device_sdk.supernet.plan import Ask, ExitChoice, MaxConfidence, Plan, RemoteRef, Subnet
from device_sdk.supernet.supernet import Supernet

"""Of an exit: from which confidence on it answers, and below which it asks."""


COARSE, FINE = 7, 12  # limits per exit in the first look at all paths, and around the best of them
MOST_STEPS = 150  # of a look at all paths with few exits, and of one at all with many
FEW_EXITS = 3  # of a path: these are searched to the end within the steps
NOTHING_HARD = MaxConfidence(0.0)  # no confidence lies below it

_RIGHT = 0.5  # above, an answer that counts by its margin is right


class _Path:
    """A subnet without exits, all ways to decide at its end, and the exits that it may take.

    ``looks``: the grids of the first look, and their tables: exits that ask from there too come second.
    """

    def __init__(
        self,
        rankings: Sequence[Ranking],
        server_right: Correct,
        exits: Sequence[ExitSamples],
        exit_bytes: Sequence[int],
    ) -> None:
        self.rankings, self.exits, self.exit_bytes = rankings, exits, exit_bytes
        self.has_many_exits = len(exits) > FEW_EXITS
        self.route = route = rankings[0].route
        eases = tuple(one.by_sample() for one in rankings)
        self.end = AskingEnd(
            eases,
            route.correct > _RIGHT,
            server_right,
            full_ms=float(route.device_ms[0]),
            call=NO_CALL,
            deciding_ms=tuple(route.deciding_ms(one.kind) for one in rankings),
            nothing_hard_ms=route.deciding_ms(NOTHING_HARD),
        )
        grids = [Grid.of(exits, eases, most=COARSE, asks_early=early) for early in (False, True)]
        self.looks = [(grid, Table(exits[-1], self.end, grid)) for grid in grids]


class JointPlans:
    """The best plans of exits and a decision for requirements, their limits found together.

    A coarse grid on every path comes first, then a fine one around the best of them: quick, and exact on each grid
    unless the search has to end early (``MOST_STEPS``). A path with more than ``FEW_EXITS`` is searched twice, first
    with some of them, evenly spaced. ``best_thresholds`` without a grid is
    exact over all limits, in seconds, with memory that grows with the third power of the samples. Paths whose
    bound rules out a better plan are left out.

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
        known = server in evidence.servers
        self._paths = [
            _Path(
                rankings[subnet],
                evidence.right(evidence.servers[server]),
                [exit_samples(supernet, evidence, cost_model, subnet, one) for one in tried],
                [cost_model.exit_bytes(one) for one in tried],
            )
            for subnet, chosen in exits.items()
            for tried in _few_and_all(chosen)
            if known and rankings.get(subnet)
        ]

    def search(self, requirement: Requirement, network: Network | None, power: Power | None) -> JointSearch:
        """The search of the plan that ``requirement`` puts first."""
        if is_on_energy(requirement) and power is None:
            return JointSearch(self._server, [], requirement, power)
        found = []
        for path in self._paths:
            call = path.route.asking(Ask(path.rankings[0].kind, self._server), network).call
            if call.transfer_ms is not None and call.server_ms is not None:
                end = replace_part(path.end, call=call)
                rates = Rates.of(requirement, end, power)
                early = Bounds(path.exits, end, rates, asks_early=True)
                late = Bounds(path.exits, end, rates, asks_early=False, like=early)
                found.append(_Bounded(path, end, (late, early)))
        return JointSearch(self._server, found, requirement, power)


@dataclass(frozen=True)
class _Bounded:
    """A path with the cost of asking, and its bounds: those for exits that ask too come second."""

    path: _Path
    end: AskingEnd
    bounds: tuple[Bounds, Bounds]


class JointSearch:
    """The search for one requirement on one network; paths whose call to the server has unknown times are left out."""

    def __init__(
        self, server: RemoteRef, paths: Sequence[_Bounded], requirement: Requirement, power: Power | None
    ) -> None:
        self._server, self._paths, self._requirement, self._power = server, paths, requirement, power

    def best(self, *, better_than: float = -math.inf, asks_early: bool = False) -> Plan | None:
        """The best plan; None if none keeps the requirement with a value above ``better_than``.

        ``asks_early``: exits may ask too.
        """
        best: tuple[_Bounded, JointThresholds] | None = None
        efforts = Effort(MOST_STEPS), Effort(MOST_STEPS)
        for one in sorted(self._paths, key=lambda one: (one.path.has_many_exits, one.bounds[asks_early].least)):
            if one.bounds[asks_early].least >= objective_of(self._requirement, better_than):
                continue
            effort = efforts[one.path.has_many_exits]
            grid, table = one.path.looks[asks_early]
            found = self._look(one, one.end, grid, table, better_than, effort, asks_early=asks_early)
            if found is not None:
                best, better_than = (one, found), found.value
        return None if best is None else self._plan(best[0].path, self._refined(*best, asks_early=asks_early))

    def _refined(self, at: _Bounded, chosen: JointThresholds, *, asks_early: bool) -> JointThresholds:
        """The best of a fine grid around what a first look found, for the same decider."""
        ease, exits = at.end.eases[chosen.decider], at.path.exits
        grid, _ = at.path.looks[asks_early]
        fine = grid.around(chosen.exits, chosen.decider, chosen.hard_eases, exits, ease, most=FINE)
        end = replace_part(at.end, eases=(ease,), deciding_ms=(at.end.deciding_ms[chosen.decider],))
        found = self._look(
            at, end, fine, Table(exits[-1], end, fine), chosen.value, Effort(MOST_STEPS), asks_early=asks_early
        )
        return chosen if found is None else replace_part(found, decider=chosen.decider)

    def _look(
        self,
        at: _Bounded,
        end: AskingEnd,
        grid: Grid,
        table: Table,
        better_than: float,
        effort: Effort,
        *,
        asks_early: bool,
    ) -> JointThresholds | None:
        return best_thresholds(
            at.path.exits,
            end,
            self._requirement,
            power=self._power,
            peak_bytes=at.path.route.peak_bytes,
            exit_bytes=at.path.exit_bytes,
            better_than=better_than,
            grid=grid,
            bounds=at.bounds[asks_early],
            table=table,
            effort=effort,
        )

    def _plan(self, path: _Path, found: JointThresholds) -> Plan:
        plan = Plan(path.route.subnet, found.exits)
        if not found.hard_eases and not plan.asks_early:
            return plan
        ranking = path.rankings[found.decider]
        decider = ranking.decider(found.hard_eases - 1) if found.hard_eases else NOTHING_HARD
        return replace(plan, hard=Ask(decider, self._server))


def _few_and_all(exits: Sequence[ExitChoice]) -> list[Sequence[ExitChoice]]:
    """``FEW_EXITS`` of them, evenly spaced, and all of them; nothing twice."""
    if len(exits) <= FEW_EXITS:
        return [exits] if exits else []
    return [[exits[round(number * (len(exits) - 1) / (FEW_EXITS - 1))] for number in range(FEW_EXITS)], exits]


def exit_samples(
    supernet: Supernet, evidence: Evidence, cost_model: CostModel, subnet: Subnet, choice: ExitChoice
) -> ExitSamples:
    """Confidences, correct answers and times of one exit of ``subnet``."""
    ends = [block.end for _, block in supernet.walk(subnet)]
    before = subnet.edges[: ends.index(supernet.exit(choice.exit).position) + 1]
    logits = evidence.exits[before, choice.exit, choice.rendition]
    return ExitSamples(
        choice,
        confidence(logits),
        evidence.right(logits),
        reach_ms=cost_model.reach_ms(before) + cost_model.call_overhead_ms,
        branch_ms=cost_model.exit_latency_ms(choice, subnet.input_size),
    )
