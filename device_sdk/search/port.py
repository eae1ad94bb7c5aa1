"""The search port: a strategy's problem, its evaluator, and its result."""

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

    ``cost``: of its subnet. ``accuracy``: measured on the device's own samples, 0 to 1. ``expected``: posterior mean of
    the accuracy on unseen samples; None where it was not computed.
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
        """The measure that all ranking uses, 0 to 1: ``expected``, or ``accuracy`` where that is None."""
        return self.accuracy if self.expected is None else self.expected


class EvaluationStopped(Exception):  # a signal between an evaluator and a strategy, not an error
    """An evaluation ended early because its ``should_stop`` returned True. Finished batches are kept."""


def never_stop() -> bool:
    """The ``should_stop`` of an evaluation that always completes."""
    return False


class Evaluator(Protocol):
    """Evaluates subnets on the device's own data, in groups, so that they share work.

    Methods call ``should_stop`` between batches and raise ``EvaluationStopped`` when it returns True. A repeated call
    resumes after the last finished batch.
    """

    @property
    def sample_count(self) -> int:
        """Number of samples."""

    @property
    def batch(self) -> int:
        """Samples per batch, the smallest unit of evaluation."""

    def accuracies(self, subnets: Sequence[Subnet], *, should_stop: Callable[[], bool] = never_stop) -> list[float]:
        """The accuracy of each subnet on all samples, 0 to 1, in the order of ``subnets``."""

    def order_by_margin(self, *, should_stop: Callable[[], bool] = never_stop) -> None:
        """Sort the samples by the full model's margin, smallest first, unless some were evaluated already.

        Subnets disagree mostly on samples of small margin.
        """

    def scores(
        self, subnets: Sequence[Subnet], samples: slice, *, should_stop: Callable[[], bool] = never_stop
    ) -> npt.NDArray[np.float32]:
        """Scores of each subnet's answers, 0 to 1; of classes 1 for the right one: [subnets, samples]."""

    def margins(self, subnets: Sequence[Subnet], samples: slice) -> npt.NDArray[np.float64]:
        """Margins of subnets evaluated on ``samples`` (``tasks.AnswerTask.margins``): [subnets, samples]."""

    def margin_scale(self) -> float:
        """The scale on which the task's margins become expected scores."""

    def distances(self, subnets: Sequence[Subnet], samples: slice) -> npt.NDArray[np.float64]:
        """Distance from the full model, of subnets evaluated on ``samples``: [subnets], at least 0.

        Mean squared difference of the values that the task compares; of classes, centred logits.
        """

    def full_model_margins(self) -> npt.NDArray[np.float64]:
        """The full model's margins: [samples], of those ordered or evaluated so far."""


@dataclass(frozen=True)
class SearchProblem:
    """A strategy's inputs. Time and randomness come from ``clock`` and ``random`` only.

    ``known``: candidates that ``evaluator`` has evaluated on all samples; every strategy starts from them.
    """

    supernet: Supernet
    cost_model: CostModel
    budget: Budget
    evaluator: Evaluator
    random: SplitMix64
    clock: Callable[[], float]  # seconds, monotonic
    progress: Progress
    time_limit_s: float | None = None
    cancelled: Callable[[], bool] = lambda: False
    known: tuple[Candidate, ...] = ()


@dataclass(frozen=True)
class SearchResult:
    """The outcome of a search.

    ``pool``: all subnets evaluated on all samples, also those over the budget, for when the device gets faster
    (AdaptiveNet §5.3). ``subnets_evaluated`` also counts subnets dropped after part of the samples. ``best`` is None
    only if the search was cancelled before the first evaluation.
    """

    best: Candidate | None
    pool: tuple[Candidate, ...]
    subnets_evaluated: int
    generations: int
    seconds: float
    stopped: Stopped


class SearchStrategy(Protocol):
    """Searches for the most accurate subnet within a budget."""

    def search(self, problem: SearchProblem) -> SearchResult:
        """Search until done, cancelled or out of time; a search that is stopped returns the best so far.

        Raises:
            InfeasibleBudgetError: no subnet fits; raised before the first evaluation.
        """


def best_within(pool: Iterable[Candidate], budget: Budget) -> Candidate | None:
    """The first candidate by ``by_expected_accuracy`` among those that fit ``budget``; None if none fits."""
    fitting = (candidate for candidate in pool if budget.fits(candidate.cost))
    return min(fitting, key=by_expected_accuracy, default=None)


def by_expected_accuracy(candidate: Candidate) -> tuple[float, float, Subnet]:
    """Sort key: highest expected accuracy, then lowest latency, then the subnet itself, so that the order is total."""
    return (-candidate.expected_accuracy, candidate.cost.latency_ms, candidate.subnet)
