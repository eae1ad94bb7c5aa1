"""Placement of exits: exact, HPF with its eight scores, and greedy, on branch zoos of ResNet-56.

One zoo is trained (zoo/), its accuracies those on test.zip#calibration. The others, of up to 10,000 candidates, are
**generated** (``zoo``): the packager's structures with their true MACs and bytes, and accuracies from a seeded model.
Time is MACs. What the figures compare is the searches, each on the same candidates.
``optimality``: expectation over that of the exact search without a time limit, which is proven optimal
(``tests/device_sdk/policies/placement/test_exact.py`` compares it with trying all sets); ``trained_…``: on the trained
zoo.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.placement.zoo import generated_zoo, trained_zoo
from benchmarks.runner.run import BenchOptions, BenchOutcome, Target
from device_sdk.policies.placement import UNIFORM, ExitCandidate, Placement, StopTimes, Strategy, place
from device_sdk.policies.placement.candidates import worthwhile
from device_sdk.policies.placement.hpf import SCORES, place_by_priority
from device_sdk.policies.placement.problem import PlacementProblem

TARGETS = {
    "optimality_min": Target(minimum=1.0 - 1e-9),
    "search_ms_1000": Target(maximum=10.0),
}
Zoo = tuple[list[ExitCandidate], float]  # and the full model's MACs
CUTS = {100: 10, 1_000: 10, 10_000: 26}  # cut points by number of candidates
BUDGETS_BYTES = (20_000, 100_000, 500_000, 2_000_000, 10_000_000)
STOP_TIMES = {"uniform": UNIFORM, "early": StopTimes((0.5, 1.0), (3.0, 1.0)), "late": StopTimes((0.5, 1.0), (1.0, 3.0))}
SEEDS, QUICK_SEEDS = 3, 1
HPF_LIMIT_S = 0.1  # ten times what the default may take
TIMED = 3  # runs per instance; the fastest counts


@dataclass(frozen=True)
class _Instance:
    """One placement to search for."""

    seed: int | str
    stops: str
    memory_bytes: int
    candidates: list[ExitCandidate]
    full_macs: float

    def place(self, strategy: Strategy, *, time_limit_s: float | None = 1.0) -> Placement:
        return place(
            self.candidates,
            full_time=self.full_macs,
            memory_bytes=self.memory_bytes,
            stop_times=STOP_TIMES[self.stops],
            strategy=strategy,
            time_limit_s=time_limit_s,
        )

    def by_score(self, score: str) -> float:
        """The expectation that HPF reaches with a score."""
        until_s = time.monotonic() + HPF_LIMIT_S
        problem = PlacementProblem(
            candidates=worthwhile(self.candidates, full_time=self.full_macs, memory_bytes=self.memory_bytes),
            survival=STOP_TIMES[self.stops].survival(self.full_macs),
            memory_bytes=self.memory_bytes,
            per_byte=True,
            late=lambda: time.monotonic() >= until_s,
        )
        return problem.value(place_by_priority(problem, score).exits)


def run(options: BenchOptions) -> BenchOutcome:
    """All sizes, budgets and stop times with the default; all strategies and scores at 1,000 candidates."""
    figures: dict[str, float] = {}
    rows: list[dict[str, object]] = []
    seeds = QUICK_SEEDS if options.quick else SEEDS
    for count in CUTS:
        timed = [_timed(one, count) for one in _instances(count, seeds)]
        rows += timed
        figures[f"search_ms_{count}"] = float(np.median([float(str(row["search_ms"])) for row in timed]))
        figures[f"search_ms_{count}_max"] = max(float(str(row["search_ms"])) for row in timed)
        figures[f"proven_{count}"] = float(np.mean([bool(row["optimal"]) for row in timed]))
    compared = [row for one in _instances(1_000, seeds) for row in _compared(one)]
    figures |= _least_optimal(compared)
    trained = trained_zoo(options)
    data = "generated candidates"
    if trained is not None:
        on_trained = [row for one in _budgets(trained, "trained") for row in _compared(one)]
        data = "exits of zoo/ by their accuracy on cifar10/test.zip#calibration; generated candidates"
        figures["trained_candidates"] = float(len(trained[0]))
        figures |= _least_optimal(on_trained, "trained_")
        compared += on_trained
    return BenchOutcome(figures, rows + compared, data=data)


def _least_optimal(compared: list[dict[str, object]], prefix: str = "") -> dict[str, float]:
    """The least optimality of the exact search, of HPF with its own score and of the greedy one."""
    figures = {}
    for name, search in (("", "exact"), ("hpf_", "m7"), ("greedy_", "m5")):
        of_search = [float(str(row["optimality"])) for row in compared if row["search"] == search]
        figures[f"{prefix}{name}optimality_min"] = min(of_search)
    return figures


def _instances(count: int, seeds: int) -> Iterator[_Instance]:
    for seed in range(seeds):
        yield from _budgets(generated_zoo(count, cuts=CUTS[count], seed=seed), seed)


def _budgets(zoo: Zoo, seed: int | str) -> Iterator[_Instance]:
    for stops in STOP_TIMES:
        for memory_bytes in BUDGETS_BYTES:
            yield _Instance(seed, stops, memory_bytes, *zoo)


def _timed(instance: _Instance, count: int) -> dict[str, object]:
    """The default search under its own time limit."""
    seconds = []
    for _ in range(TIMED):
        started_s = time.perf_counter()
        placement = instance.place("exact")
        seconds.append(time.perf_counter() - started_s)
        if not placement.optimal:
            break
    return {
        "what": "time",
        "candidates": count,
        "seed": instance.seed,
        "stop_times": instance.stops,
        "memory_bytes": instance.memory_bytes,
        "search_ms": 1000 * min(seconds),
        "optimal": placement.optimal,
        "expectation": placement.expectation,
        "exits": len(placement.exits),
    }


def _compared(instance: _Instance) -> Iterator[dict[str, object]]:
    """The eight scores of Fig. 8 and the default, relative to the optimum. m5 is the greedy placement."""
    optimum = instance.place("exact", time_limit_s=None)
    assert optimum.optimal
    reached = {score: instance.by_score(score) for score in SCORES} | {"exact": instance.place("exact").expectation}
    for search, value in reached.items():
        yield {
            "what": "score",
            "search": search,
            "seed": instance.seed,
            "stop_times": instance.stops,
            "memory_bytes": instance.memory_bytes,
            "expectation": value,
            "optimality": value / optimum.expectation,
        }
