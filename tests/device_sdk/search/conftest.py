"""Fakes of the search's ports."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterator, Sequence

import pytest

from device_sdk.cost import Budget, CostModel
from device_sdk.graph import Subnet, Supernet
from device_sdk.random_source import SplitMix64
from device_sdk.search import SearchProblem


class TableEvaluator:
    """Accuracies from a function; remembers the groups that it was asked for."""

    def __init__(self, accuracy: Callable[[Subnet], float]) -> None:
        self._accuracy = accuracy
        self.groups: list[list[Subnet]] = []

    def accuracies(self, subnets: Sequence[Subnet]) -> list[float]:
        self.groups.append(list(subnets))
        return [self._accuracy(subnet) for subnet in subnets]


class RecordingProgress:
    """Keeps what was reported."""

    def __init__(self) -> None:
        self.started: list[tuple[str, float]] = []
        self.notes: list[str] = []
        self.done = 0.0

    @contextlib.contextmanager
    def task(self, name: str, total: float) -> Iterator[RecordingProgress]:
        self.started.append((name, total))
        yield self

    def advance(self, amount: float = 1.0) -> None:
        self.done += amount

    def note(self, text: str) -> None:
        self.notes.append(text)


def scattered_accuracy(subnet: Subnet) -> float:
    """An accuracy without any structure: only looking at everything finds the best."""
    return zlib.crc32(str(subnet).encode()) / 2**32


@pytest.fixture(scope="session")
def scattered() -> Callable[[Subnet], float]:
    return scattered_accuracy


@pytest.fixture(scope="session")
def make_problem() -> Callable[..., SearchProblem]:
    """A search problem with a fake evaluator, a clock that stands still and recorded progress."""

    def make(
        supernet: Supernet,
        cost_model: CostModel,
        budget: Budget,
        *,
        accuracy: Callable[[Subnet], float] = scattered_accuracy,
        seed: int = 1,
        clock: Callable[[], float] = lambda: 0.0,
        time_limit_s: float | None = None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> SearchProblem:
        return SearchProblem(
            supernet=supernet,
            cost_model=cost_model,
            budget=budget,
            evaluator=TableEvaluator(accuracy),
            random=SplitMix64(seed),
            clock=clock,
            progress=RecordingProgress(),
            time_limit_s=time_limit_s,
            cancelled=cancelled,
        )

    return make
