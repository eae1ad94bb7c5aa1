"""Subnet search on the device. A new strategy is a file here and a line in ``STRATEGIES``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from device_sdk.errors import UsageError
from device_sdk.search.adaptivenet import AdaptiveNetSearch
from device_sdk.search.evaluation import PrefixTreeEvaluator
from device_sdk.search.feasibility import require_feasible
from device_sdk.search.port import (
    Candidate,
    Evaluator,
    SearchProblem,
    SearchResult,
    SearchStrategy,
    best_within,
)

STRATEGIES: dict[str, Callable[..., SearchStrategy]] = {
    "adaptivenet": AdaptiveNetSearch,
}


def make_strategy(name: str, **settings: Any) -> SearchStrategy:
    """The strategy called ``name``, with its own settings (UsageError if there is none)."""
    if name not in STRATEGIES:
        raise UsageError(f"there is no search strategy {name}", hint="known: " + ", ".join(sorted(STRATEGIES)))
    return STRATEGIES[name](**settings)


__all__ = [
    "STRATEGIES",
    "AdaptiveNetSearch",
    "Candidate",
    "Evaluator",
    "PrefixTreeEvaluator",
    "SearchProblem",
    "SearchResult",
    "SearchStrategy",
    "best_within",
    "make_strategy",
    "require_feasible",
]
