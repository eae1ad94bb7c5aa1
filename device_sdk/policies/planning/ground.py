"""The common ground of all proposers: evidence, costs, and the plans of this device with their deciders. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from device_sdk.errors import UsageError
from device_sdk.policies.costs.evidence import Evidence
from device_sdk.policies.costs.route import Route
from device_sdk.policies.costs.threshold_sweep import Ranking
from device_sdk.policies.deciding.decider_fitting import (
    TOP_TWO,
    Values,
    Viewed,
    asking_pays,
    fit_best_logistic,
    fit_logistic,
)
from device_sdk.runtimes.port import Array
from device_sdk.supernet.cost import CostModel
from device_sdk.supernet.deciders.port import ease
from device_sdk.supernet.plan import (
    UNFITTED,
    Decider,
    ExitChoice,
    Plan,
    RemoteRef,
    Subnet,
)
from device_sdk.supernet.supernet import Supernet


@dataclass(frozen=True)
class LocalPlan:
    """A plan that runs here, the route of the samples through it, and all thresholds of its deciders.

    ``asking``: of those that may ask, by server.
    """

    plan: Plan
    route: Route
    abstaining: list[Ranking]
    asking: dict[RemoteRef, list[Ranking]]


@dataclass(frozen=True)
class FittedDeciders:
    """Deciders for a subnet and a server, or for abstaining; ``pays``: left-out samples show that asking gains."""

    known: list[Decider]
    pays: bool


Fitted = dict[tuple[Subnet, RemoteRef | None], FittedDeciders]
"""Deciders by subnet and server; they depend on the evidence alone."""


class Ground:
    """Everything that plans are proposed from.

    Args:
        subnets: those that the device may run; the evidence has their logits.
        exit_sets: exits with thresholds, calibrated for a subnet; each set is tried with everything else.
        servers: the servers' models that may be asked. tail_server: the one that runs tails, None for none.
        sends_input: the input itself may be sent.
        certainty: with which the share of new samples that take a second path stays below its bound.
        fitted: deciders that are known from the same evidence; those that are fitted here are added.

    Raises:
        UsageError: there are no subnets.
    """

    def __init__(
        self,
        supernet: Supernet,
        evidence: Evidence,
        costs: CostModel,
        subnets: Sequence[Subnet],
        *,
        exit_sets: Mapping[Subnet, Sequence[tuple[ExitChoice, ...]]],
        servers: Sequence[RemoteRef],
        tail_server: RemoteRef | None,
        sends_input: bool,
        certainty: float,
        fitted: Fitted | None = None,
    ) -> None:
        if not subnets:
            raise UsageError("there are no subnets to plan with")
        self.supernet, self.evidence, self.costs = supernet, evidence, costs
        self.servers, self.tail_server, self.sends_input = tuple(servers), tail_server, sends_input
        self.certainty = certainty
        self._fitted: Fitted = {} if fitted is None else fitted
        self.local = [
            self._prepared(Plan(subnet, chosen)) for subnet in subnets for chosen in ((), *exit_sets.get(subnet, ()))
        ]

    @cached_property
    def without_exits(self) -> list[LocalPlan]:
        """The plans whose samples all reach the end."""
        return [one for one in self.local if not one.plan.exits]

    @property
    def useless(self) -> tuple[RemoteRef, ...]:
        """The servers that are right too rarely where some subnet is wrong: asking them at its end gains nothing."""
        subnets = [one.plan.subnet for one in self.without_exits]
        return tuple(one for one in self.servers if not any(self.pays(subnet, one) for subnet in subnets))

    def pays(self, subnet: Subnet, server: RemoteRef) -> bool:
        """False if asking ``server`` about the answers of ``subnet`` gains nothing on left-out samples."""
        return self._deciders_for(subnet, server).pays

    def _prepared(self, plan: Plan) -> LocalPlan:
        route = Route.to_end(self.supernet, plan, self.evidence, self.costs)
        asking = {one: rankings(route, self._deciders_for(plan.subnet, one).known) for one in self.servers}
        return LocalPlan(plan, route, rankings(route, self._deciders_for(plan.subnet, None).known), asking)

    def _deciders_for(self, subnet: Subnet, server: RemoteRef | None) -> FittedDeciders:
        if (subnet, server) not in self._fitted:
            self._fitted[subnet, server] = self._deciders(subnet, server)
        return self._fitted[subnet, server]

    def _deciders(self, subnet: Subnet, server: RemoteRef | None) -> FittedDeciders:
        """Deciders of a fixed score, and those fitted to the subnet's logits: to the gain of asking, given a server."""
        logits = self.evidence.ends[subnet]
        views = self.evidence.views.get(subnet)
        easy, losses = self._outcomes(logits, server)
        viewed = None if views is None else Viewed(views, *self._outcomes(views, server))
        best = fit_best_logistic(logits, easy, losses=losses, views=viewed)
        logistic = None if best is None else best.decider
        fitted: list[Decider | None] = [fit_logistic(logits, easy, features=TOP_TWO, by_class=False), logistic]
        known = [*UNFITTED, *(decider for decider in fitted if decider is not None)]
        if losses is None:
            return FittedDeciders(known, True)
        gains = (~easy).astype(np.int64) - losses
        eases: list[Values] = [ease(one, logits) for one in UNFITTED] + ([] if best is None else [best.eases])
        return FittedDeciders(known, any(asking_pays(one, gains) for one in eases))

    def _outcomes(
        self, own: Array, server: RemoteRef | None
    ) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_] | None]:
        """Masks [..., count] of ``own`` logits [..., count, classes] for which asking gains nothing, and of losses.

        Without a server, or its answers, the first are the right ones, and losses are None.
        """
        right = self.evidence.right(own)
        asked = None if server is None else self.evidence.asked(server, own)
        if asked is None:
            return right, None
        right_there = self.evidence.right(asked)
        return right | ~right_there, right & ~right_there


def rankings(route: Route, deciders: Sequence[Decider]) -> list[Ranking]:
    """All thresholds of ``deciders`` behind ``route``, of those that any sample reaches."""
    return [ranking for decider in deciders if (ranking := Ranking.of(route, decider)) is not None]
