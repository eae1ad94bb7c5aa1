"""Subnet search on the device. A new strategy is a file here and a line in ``STRATEGIES``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from device_sdk.errors import UsageError
from device_sdk.search.evaluation.evaluator import PrefixTreeEvaluator
from device_sdk.search.expectation import expected_accuracies, expected_candidates, with_expected_accuracies
from device_sdk.search.ladder import climb, ladder
from device_sdk.search.nearby import require_feasible
from device_sdk.search.port import (
    Candidate,
    Evaluator,
    SearchProblem,
    SearchResult,
    SearchStrategy,
    best_within,
)
from device_sdk.search.strategies.adaptivenet import AdaptiveNetSearch
from device_sdk.search.strategies.bayesian_path import BayesianPathSearch

STRATEGIES: dict[str, Callable[..., SearchStrategy]] = {
    "adaptivenet": AdaptiveNetSearch,
    "pathweave": BayesianPathSearch,
}


def find_subnets(strategy: SearchStrategy, problem: SearchProblem) -> SearchResult:
    """Evaluate the ladder, run ``strategy``, and rank all candidates by expected accuracy.

    The same start and the same measure for every strategy. Raises what the strategy raises.
    """
    return with_expected_accuracies(strategy.search(climb(problem)), problem)


def make_strategy(name: str, **settings: Any) -> SearchStrategy:
    """The strategy registered as ``name``, with its own settings. Raises UsageError if there is none."""
    if name not in STRATEGIES:
        raise UsageError(f"there is no search strategy {name}", hint="known: " + ", ".join(sorted(STRATEGIES)))
    return STRATEGIES[name](**settings)


__all__ = [
    "STRATEGIES",
    "AdaptiveNetSearch",
    "BayesianPathSearch",
    "Candidate",
    "Evaluator",
    "PrefixTreeEvaluator",
    "SearchProblem",
    "SearchResult",
    "SearchStrategy",
    "best_within",
    "expected_accuracies",
    "expected_candidates",
    "find_subnets",
    "ladder",
    "make_strategy",
    "require_feasible",
    "with_expected_accuracies",
]
