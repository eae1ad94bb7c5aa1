"""An instrumented search: its best subnet over time and over evaluated subnets."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from device_sdk.progress import SilentProgress
from device_sdk.random_source import SplitMix64
from device_sdk.search import Evaluator, SearchProblem, SearchResult, SearchStrategy, find_subnets
from device_sdk.search.port import never_stop
from device_sdk.supernet.cost import Budget, CostModel
from device_sdk.supernet.plan import Subnet
from device_sdk.supernet.supernet import Supernet

Right = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Found:
    """A subnet within the budget, evaluated on all samples: its accuracy, when, and how much had been looked at."""

    accuracy: float
    seconds: float
    subnets: int  # looked at, if only on some samples
    samples: int  # subnets times samples


@dataclass
class Watched:
    """An evaluator that records when each subnet was evaluated on all samples."""

    inner: Evaluator
    fits: Callable[[Subnet], bool]
    started_s: float = field(default_factory=time.perf_counter)
    found: list[Found] = field(default_factory=list)
    samples: dict[Subnet, int] = field(default_factory=dict)

    @property
    def sample_count(self) -> int:
        return self.inner.sample_count

    @property
    def batch(self) -> int:
        return self.inner.batch

    def accuracies(self, subnets: Sequence[Subnet], *, should_stop: Callable[[], bool] = never_stop) -> list[float]:
        return [float(row.mean()) for row in self.scores(subnets, slice(None), should_stop=should_stop)]

    def order_by_margin(self, *, should_stop: Callable[[], bool] = never_stop) -> None:
        self.inner.order_by_margin(should_stop=should_stop)

    def scores(
        self, subnets: Sequence[Subnet], samples: slice, *, should_stop: Callable[[], bool] = never_stop
    ) -> Right:
        rows = self.inner.scores(subnets, samples, should_stop=should_stop)
        seconds = time.perf_counter() - self.started_s
        stop = len(range(self.sample_count)[samples])
        finished = [s for s in subnets if stop == self.sample_count and self.samples.get(s, 0) < stop]
        for subnet in subnets:
            self.samples[subnet] = max(stop, self.samples.get(subnet, 0))
        looked_at, work = len(self.samples), sum(self.samples.values())
        accuracy = {subnet: float(row.mean()) for subnet, row in zip(subnets, rows, strict=True)}
        self.found += [Found(accuracy[s], seconds, looked_at, work) for s in dict.fromkeys(finished) if self.fits(s)]
        return rows

    def margins(self, subnets: Sequence[Subnet], samples: slice) -> npt.NDArray[np.float64]:
        return self.inner.margins(subnets, samples)

    def full_model_margins(self) -> npt.NDArray[np.float64]:
        return self.inner.full_model_margins()

    def margin_scale(self) -> float:
        return self.inner.margin_scale()

    def distances(self, subnets: Sequence[Subnet], samples: slice) -> npt.NDArray[np.float64]:
        return self.inner.distances(subnets, samples)


@dataclass(frozen=True)
class SearchTrace:
    """The trace of one strategy with one seed."""

    strategy: str
    seed: int
    found: tuple[Found, ...]
    result: SearchResult
    seconds: float
    subnets: int

    @property
    def best(self) -> float:
        """The highest accuracy within the budget; 0 if no subnet was evaluated on all samples."""
        return max((one.accuracy for one in self.found), default=0.0)

    def first(self, accuracy: float) -> Found | None:
        """The first find of at least ``accuracy``."""
        return next((one for one in self.found if one.accuracy >= accuracy - 1e-9), None)


def observe(
    name: str,
    strategy: SearchStrategy,
    *,
    seed: int,
    evaluator: Evaluator,
    supernet: Supernet,
    cost_model: CostModel,
    budget: Budget,
    time_limit_s: float | None = None,
    sample_limit: int | None = None,
) -> SearchTrace:
    """Search until the limit, in seconds or in subnets times samples; the clock starts with the search."""
    watched = Watched(evaluator, lambda subnet: budget.fits(cost_model.cost(subnet)))
    result = find_subnets(
        strategy,
        SearchProblem(
            supernet=supernet,
            cost_model=cost_model,
            budget=budget,
            evaluator=watched,
            random=SplitMix64(seed),
            clock=time.perf_counter,
            progress=SilentProgress(),
            time_limit_s=time_limit_s,
            cancelled=lambda: (
                sample_limit is not None and bool(watched.found) and sum(watched.samples.values()) >= sample_limit
            ),
        ),
    )
    seconds = time.perf_counter() - watched.started_s
    return SearchTrace(name, seed, tuple(watched.found), result, seconds, len(watched.samples))
