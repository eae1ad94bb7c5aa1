"""The search port: what a strategy is given, what it needs to know about a subnet, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from device_sdk.progress import Progress
from device_sdk.random_source import SplitMix64
from device_sdk.supernet.cost import Budget, Cost, CostModel
from device_sdk.supernet.plan import Plan, Subnet
from device_sdk.supernet.supernet import Supernet

Stopped = Literal["done", "time limit", "cancelled"]


@dataclass(frozen=True)
class Candidate:
    """An evaluated plan: one entry of the plan pool (AdaptiveNet §5.3).

    ``cost``: of its subnet. ``accuracy``: the share of the device's own samples that the subnet gets right, 0 to 1.
    ``expected``: the posterior mean of the share of other samples that it gets right; None where it was not computed.
    """

    plan: Plan
    cost: Cost
    accuracy: float
    expected: float | None = None

    @property
    def subnet(self) -> Subnet:
        """The plan's subnet."""
        return self.plan.subnet

    @property
    def expected_accuracy(self) -> float:
        """The one measure by which candidates are ranked, searched, pooled and exchanged: between 0 and 1."""
        return self.accuracy if self.expected is None else self.expected


class EvaluationStopped(Exception):  # a signal between an evaluator and a strategy, not an error
    """An evaluation ended early because its ``should_stop`` said so. What was finished is remembered."""


def never_stop() -> bool:
    """The ``should_stop`` of an evaluation that runs to its end."""
    return False


class Evaluator(Protocol):
    """Measures on the device's own data which samples subnets get right. A group at once, so that work is shared.

    Calls ask ``should_stop`` between batches and raise ``EvaluationStopped`` once it says yes; the same call
    made again goes on where it ended.
    """

    @property
    def sample_count(self) -> int:
        """How many samples there are."""

    @property
    def batch(self) -> int:
        """How many samples are evaluated together: asking for fewer saves nothing."""

    def accuracies(self, subnets: Sequence[Subnet], *, should_stop: Callable[[], bool] = never_stop) -> list[float]:
        """The accuracy of each subnet on all samples, 0 to 1, in their order."""

    def order_by_margin(self, *, should_stop: Callable[[], bool] = never_stop) -> None:
        """Order the samples, unless some were evaluated: those first on which the full model is least sure.

        Subnets disagree on these, and hardly on the others.
        """

    def correct(
        self, subnets: Sequence[Subnet], samples: slice, *, should_stop: Callable[[], bool] = never_stop
    ) -> npt.NDArray[np.bool_]:
        """Which samples each subnet gets right: [subnets, samples]."""

    def full_model_correct(self) -> npt.NDArray[np.bool_]:
        """Which samples the full model gets right, once they were ordered or evaluated on: [samples]."""

    def distances(self, subnets: Sequence[Subnet], samples: slice) -> npt.NDArray[np.float64]:
        """How far answers are from the full model's, of subnets evaluated on ``samples``: [subnets], at least 0.

        The mean squared difference of logits, each sample's shifted to a mean of 0.
        """


@dataclass(frozen=True)
class SearchProblem:
    """Everything a strategy may use; it has no other source of time or chance."""

    supernet: Supernet
    cost_model: CostModel
    budget: Budget
    evaluator: Evaluator
    random: SplitMix64
    clock: Callable[[], float]  # seconds, monotonic
    progress: Progress
    time_limit_s: float | None = None
    cancelled: Callable[[], bool] = lambda: False


@dataclass(frozen=True)
class SearchResult:
    """What a search found.

    ``pool`` holds all subnets evaluated on all samples, those over the budget too: they serve when the device gets
    faster (AdaptiveNet §5.3). ``subnets_evaluated`` also counts those that were given up after some samples. ``best``
    is None only if the search was cancelled before anything was evaluated.
    """

    best: Candidate | None
    pool: tuple[Candidate, ...]
    subnets_evaluated: int
    generations: int
    seconds: float
    stopped: Stopped


class SearchStrategy(Protocol):
    """Looks for the most accurate subnet within a budget."""

    def search(self, problem: SearchProblem) -> SearchResult:
        """Search until done, cancelled or out of time; the latter two return the best so far.

        Raises:
            InfeasibleBudgetError: no subnet fits; raised before anything is evaluated.
        """


def best_within(pool: Iterable[Candidate], budget: Budget) -> Candidate | None:
    """The candidate that ``by_expected_accuracy`` puts first of those that fit ``budget``; None if none fits."""
    fitting = (candidate for candidate in pool if budget.fits(candidate.cost))
    return min(fitting, key=by_expected_accuracy, default=None)


def by_expected_accuracy(candidate: Candidate) -> tuple[float, float, Subnet]:
    """Sort key: the highest expected accuracy first, then the fastest, then by name, so that the order is total."""
    return (-candidate.expected_accuracy, candidate.cost.latency_ms, candidate.subnet)
