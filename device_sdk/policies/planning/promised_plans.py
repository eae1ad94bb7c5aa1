"""Plans whose accuracy is promised: chosen on some samples, tested on others. Pure.

Source: Learn then Test (Angelopoulos et al. 2021), a fixed sequence of exact binomial tests. The sequence is made of
plans that keep all limits for rising accuracies on the samples that choose, the surest first; it ends with the first
that fails on the samples that test. The probability that one of the plans before it breaks the promise is at most
1 − certainty, over the draw of the samples that test; so the best of them may be taken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from msgspec.structs import replace as changed

from device_sdk.policies.costs.evidence import Network
from device_sdk.policies.deciding.promises import Promise
from device_sdk.policies.planning.choice import Choice
from device_sdk.policies.planning.planner import Planner
from device_sdk.supernet.cost import Power
from device_sdk.supernet.plan import Plan
from device_sdk.supernet.requirement import Requirement

_STEPS = 16  # accuracies between the highest possible and the promised one

Tested = Callable[[Plan], tuple[int, int] | None]
"""How many of the samples that test a plan answers, and how many of these wrongly; None where that is unknown."""


@dataclass(frozen=True)
class PromisedPlans:
    """A planner that also keeps promises.

    ``count``: of the samples that test; without any nothing can be promised. ``finished``: what is made of each plan
    that is chosen; no sample may be answered otherwise by it.
    """

    planner: Planner
    tested: Tested
    count: int
    finished: Callable[[Plan, Requirement], Plan] = lambda plan, requirement: plan

    def best(self, requirement: Requirement, network: Network | None = None, power: Power | None = None) -> Choice:
        """The best plan under the requirement's limits. Raises InfeasibleBudgetError, as ``Planner.best``."""
        return self.nearest(requirement, network, power).required()

    def nearest(self, requirement: Requirement, network: Network | None = None, power: Power | None = None) -> Choice:
        """The best plan, or the one that comes nearest to the requirement, with its promise."""
        choice = self._nearest(requirement, network, power)
        return replace(choice, plan=self.finished(choice.plan, requirement))

    def _nearest(self, requirement: Requirement, network: Network | None, power: Power | None) -> Choice:
        accuracy, certainty = requirement.accuracy, requirement.certainty
        if certainty is None or accuracy is None:
            return self.planner.nearest(requirement, network, power)
        kept: list[Choice] = []
        choices = self._sequence(requirement, network, power)
        for choice in choices:
            promise = self._promise(choice, certainty)
            if choice.misses or not promise.holds(accuracy):
                break  # none of the following is tested: that is what the probability of all tests together rests on
            kept.append(replace(choice, promise=promise))
        if kept:
            return max(kept, key=lambda one: requirement.value(one.cost))
        promise = self._promise(choices[0], certainty)
        misses = dict(choices[0].misses)
        if not promise.holds(accuracy):
            misses["accuracy"] = promise.least_accuracy
        return replace(choices[0], misses=misses, promise=promise)

    def _sequence(self, requirement: Requirement, network: Network | None, power: Power | None) -> list[Choice]:
        """Plans by how sure they are to pass, as far as the samples that choose tell; at least one."""
        accuracy, certainty = requirement.accuracy, requirement.certainty
        assert accuracy is not None
        assert certainty is not None
        nearest = self.planner.nearest(requirement, network, power)
        highest = self.planner.nearest(changed(requirement, optimise="accuracy"), network, power)
        found = {choice.plan: choice for choice in (nearest, highest)}
        for target in np.linspace(accuracy, highest.cost.accuracy or accuracy, _STEPS)[1:].tolist():
            stricter = changed(requirement, accuracy=min(target, 1.0), certainty=None)
            choice = self.planner.nearest(stricter, network, power)
            found.setdefault(choice.plan, choice)

        def doubt(choice: Choice) -> float:
            answered = round(self.count * choice.cost.coverage)
            wrong = round(answered * (1 - (choice.cost.accuracy or 0.0)))
            return Promise(certainty, answered, wrong).doubt(accuracy)

        fitting = [
            replace(one, misses={}, by_kind=nearest.by_kind)
            for one in found.values()
            if not requirement.misses(one.cost)
        ]
        return sorted(fitting, key=doubt) or [nearest]

    def _promise(self, choice: Choice, certainty: float) -> Promise:
        answered, wrong = (self.tested(choice.plan) if self.count else None) or (0, 0)
        return Promise(certainty, answered, wrong)
