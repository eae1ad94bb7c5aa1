"""Rivals of the product's search strategies: random search, annealing, plain evolution."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.search.strategies.annealing import SimulatedAnnealing
from benchmarks.search.strategies.evolution import RegularisedEvolution
from benchmarks.search.strategies.random_search import RandomSearch
from device_sdk.search import STRATEGIES, SearchStrategy

ALL: dict[str, Callable[..., SearchStrategy]] = {
    **STRATEGIES,
    "annealing": SimulatedAnnealing,
    "evolution": RegularisedEvolution,
    "random": RandomSearch,
}
"""The product's own, and their rivals."""
