"""Fakes of the search's ports."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

from device_sdk.random_source import SplitMix64
from device_sdk.search import SearchProblem
from device_sdk.search.port import EvaluationStopped
from device_sdk.supernet.cost import Budget, CostModel
from device_sdk.supernet.plan import Subnet
from device_sdk.supernet.supernet import Supernet
from device_sdk.tasks.margins import margin_scale


class TableEvaluator:
    """Accuracies from a function; records the evaluated groups and their number of samples.

    A subnet's correct samples are drawn once, seeded by its name. Calls ``should_stop`` once per call.
    """

    sample_count = 1000
    batch = 1

    def __init__(self, accuracy: Callable[[Subnet], float]) -> None:
        self._accuracy = accuracy
        self._looked: dict[Subnet, int] = {}
        self._full = 0.9 - np.random.default_rng(7).permutation(self.sample_count) / self.sample_count
        self._order = np.arange(self.sample_count)
        self.groups: list[list[Subnet]] = []
        self.samples_run = 0

    def accuracies(self, subnets: Sequence[Subnet], *, should_stop: Callable[[], bool] = lambda: False) -> list[float]:
        self._look(subnets, self.sample_count, should_stop)
        return [self._accuracy(subnet) for subnet in subnets]

    def order_by_margin(self, *, should_stop: Callable[[], bool] = lambda: False) -> None:
        if not self._looked:
            self._order = np.argsort(np.abs(self._full), kind="stable")

    def scores(
        self, subnets: Sequence[Subnet], samples: slice, *, should_stop: Callable[[], bool] = lambda: False
    ) -> np.ndarray:
        asked = range(self.sample_count)[samples]
        self._look(subnets, asked.stop, should_stop)
        return (self.margins(subnets, samples) > 0).astype(np.float32)

    def margins(self, subnets: Sequence[Subnet], samples: slice) -> np.ndarray:
        rows = [self._row(subnet)[self._order][samples] for subnet in subnets]
        return np.stack(rows) if rows else np.zeros((0, len(range(self.sample_count)[samples])))

    def distances(self, subnets: Sequence[Subnet], samples: slice) -> np.ndarray:
        return np.array([1.0 - self._accuracy(subnet) for subnet in subnets])

    def full_model_margins(self) -> np.ndarray:
        return self._full[self._order]

    def margin_scale(self) -> float:
        return margin_scale(self._full, self.sample_count)

    def _look(self, subnets: Sequence[Subnet], samples: int, should_stop: Callable[[], bool]) -> None:
        new = [subnet for subnet in dict.fromkeys(subnets) if self._looked.get(subnet, 0) < samples]
        if not new:
            return
        if should_stop():
            raise EvaluationStopped
        self.groups.append([subnet for subnet in new if subnet not in self._looked])
        for subnet in new:
            self.samples_run += samples - self._looked.get(subnet, 0)
            self._looked[subnet] = samples

    def _row(self, subnet: Subnet) -> np.ndarray:
        """How far the sample's difficulty, with some noise per subnet, is below the accuracy's quantile."""
        own = np.random.default_rng(zlib.crc32(str(subnet).encode())).permutation(self.sample_count)
        difficulty = np.random.default_rng(7).permutation(self.sample_count) + 0.3 * own
        rank = np.argsort(np.argsort(difficulty))
        return (round(self._accuracy(subnet) * self.sample_count) - rank - 0.5) / self.sample_count


class RecordingProgress:
    """Records the reported progress."""

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
    """An accuracy without any structure: only exhaustive search finds the best."""
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
