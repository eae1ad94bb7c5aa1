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
from device_sdk.policies.deciding.decider_fitting import TOP_TWO, Viewed, fit_best_logistic, fit_logistic
from device_sdk.runtimes.port import Array
from device_sdk.supernet.cost import CostModel
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
    """A plan that runs here, the route of the samples through it, and all thresholds of its deciders."""

    plan: Plan
    route: Route
    abstaining: list[Ranking]
    asking: list[Ranking]


class Ground:
    """Everything that plans are proposed from.

    Args:
        subnets: those that the device may run; the evidence has their logits.
        exit_sets: exits with thresholds, calibrated for a subnet; each set is tried with everything else.
        server: the server's model that may be asked, None for none. tail_server: the one that runs tails.
        sends_input: the input itself may be sent.
        certainty: with which the share of new samples that take a second path stays below its bound.

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
        server: RemoteRef | None,
        tail_server: RemoteRef | None,
        sends_input: bool,
        certainty: float,
    ) -> None:
        if not subnets:
            raise UsageError("there are no subnets to plan with")
        self.supernet, self.evidence, self.costs = supernet, evidence, costs
        self.server, self.tail_server, self.sends_input = server, tail_server, sends_input
        self.certainty = certainty
        self._fitted: dict[tuple[Subnet, RemoteRef | None], list[Decider]] = {}
        self.local = [
            self._prepared(Plan(subnet, chosen)) for subnet in subnets for chosen in ((), *exit_sets.get(subnet, ()))
        ]

    @cached_property
    def without_exits(self) -> list[LocalPlan]:
        """The plans whose samples all reach the end."""
        return [one for one in self.local if not one.plan.exits]

    def _prepared(self, plan: Plan) -> LocalPlan:
        route = Route.to_end(self.supernet, plan, self.evidence, self.costs)
        deciders = self._known_deciders(plan.subnet, None)
        asking = self._known_deciders(plan.subnet, self.server) if self.server is not None else []
        return LocalPlan(plan, route, rankings(route, deciders), rankings(route, asking))

    def _known_deciders(self, subnet: Subnet, server: RemoteRef | None) -> list[Decider]:
        if (subnet, server) not in self._fitted:
            self._fitted[subnet, server] = self._deciders(subnet, server)
        return self._fitted[subnet, server]

    def _deciders(self, subnet: Subnet, server: RemoteRef | None) -> list[Decider]:
        """Deciders of a fixed score, and those fitted to the subnet's logits: to the gain of asking, given a server."""
        logits = self.evidence.ends[subnet]
        views = self.evidence.views.get(subnet)
        easy = self._gains_nothing(logits, server)
        viewed = None if views is None else Viewed(views, self._gains_nothing(views, server))
        best = fit_best_logistic(logits, easy, views=viewed)
        logistic = None if best is None else best.decider
        fitted: list[Decider | None] = [fit_logistic(logits, easy, features=TOP_TWO, by_class=False), logistic]
        return [*UNFITTED, *(decider for decider in fitted if decider is not None)]

    def _gains_nothing(self, own: Array, server: RemoteRef | None) -> npt.NDArray[np.bool_]:
        """Mask [..., count]: ``own`` logits [..., count, classes] are right, or still wrong after asking."""
        right = self.evidence.right(own)
        asked = None if server is None else self.evidence.asked(server, own)
        return right if asked is None else right | ~self.evidence.right(asked)


def rankings(route: Route, deciders: Sequence[Decider]) -> list[Ranking]:
    """All thresholds of ``deciders`` behind ``route``, of those that any sample reaches."""
    return [ranking for decider in deciders if (ranking := Ranking.of(route, decider)) is not None]
