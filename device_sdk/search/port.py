"""The search port: what a strategy is given, what it needs to know about a subnet, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from device_sdk.cost import Budget, Cost, CostModel
from device_sdk.graph import Subnet, Supernet
from device_sdk.progress import Progress
from device_sdk.random_source import SplitMix64

Stopped = Literal["done", "time limit", "cancelled"]


@dataclass(frozen=True)
class Candidate:
    """An evaluated subnet: one entry of the subnet pool (AdaptiveNet §5.3)."""

    subnet: Subnet
    cost: Cost
    accuracy: float  # share of the device's own samples, 0 to 1


class Evaluator(Protocol):
    """Measures the accuracy of subnets on the device's own data."""

    def accuracies(self, subnets: Sequence[Subnet]) -> list[float]:
        """The accuracy of each subnet, 0 to 1, in their order. A group at once, so that work is shared."""


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

    ``pool`` holds all evaluated subnets, those over the budget too: they serve when the device gets faster
    (AdaptiveNet §5.3). ``best`` is None only if the search was cancelled before anything was evaluated.
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
    """The most accurate candidate that fits ``budget``, the faster one of equals; None if none fits."""
    fitting = (candidate for candidate in pool if budget.fits(candidate.cost))
    return min(fitting, key=rank, default=None)


def rank(candidate: Candidate) -> tuple[float, float, Subnet]:
    """Sort key: most accurate first, then fastest, then by name, so that the order is total."""
    return (-candidate.accuracy, candidate.cost.latency_ms, candidate.subnet)
