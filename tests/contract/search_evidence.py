"""Made-up evidence for searches, of which every language makes the same: SplitMix64 and exact sums only."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from device_sdk.random_source import uniform_floats
from device_sdk.search.port import EvaluationStopped, never_stop
from device_sdk.supernet.plan import Subnet
from device_sdk.tasks.margins import margin_scale

SAMPLES, BATCH = 200, 16
_BASE_LOSS = 0.125


class MadeUpEvidence:
    """Subnet s has the margin ``d[i] + o[i] / 4 - 1/8 - Σ losses of its edges`` on sample i.

    d: ``uniform_floats(7)``, the same for all; o: ``uniform_floats(crc32 of str(s))``. The distance is the sum of
    losses plus ``o[0] / 64``. Losses are multiples of 1/1024,
    so that every sum is exact. Records the groups of subnets in the order in which they are first looked at.
    """

    sample_count = SAMPLES
    batch = BATCH

    def __init__(self, losses: dict[str, float], original: Subnet) -> None:
        self._losses, self._original = losses, original
        self._difficulty = uniform_floats(7, SAMPLES).astype(np.float64)
        self._rows: dict[Subnet, npt.NDArray[np.float64]] = {}
        self._done: dict[Subnet, int] = {}
        self.groups: list[list[str]] = []

    def accuracies(self, subnets: Sequence[Subnet], *, should_stop: Callable[[], bool] = never_stop) -> list[float]:
        """See the port."""
        return [int(row.sum()) / SAMPLES for row in self.scores(subnets, slice(None), should_stop=should_stop)]

    def order_by_margin(self, *, should_stop: Callable[[], bool] = never_stop) -> None:
        """Nothing to do: the samples have no margin."""

    def scores(
        self, subnets: Sequence[Subnet], samples: slice, *, should_stop: Callable[[], bool] = never_stop
    ) -> npt.NDArray[np.float32]:
        """See the port."""
        asked = range(SAMPLES)[samples]
        new = [one for one in dict.fromkeys(subnets) if self._done.get(one, 0) < asked.stop]
        if new and should_stop():
            raise EvaluationStopped
        first = [str(one) for one in new if one not in self._done]
        if first:
            self.groups.append(first)
        self._done.update(dict.fromkeys(new, asked.stop))
        return (self.margins(subnets, samples) > 0).astype(np.float32)

    def margins(self, subnets: Sequence[Subnet], samples: slice) -> npt.NDArray[np.float64]:
        """See the port."""
        rows = [self._row(subnet)[samples] for subnet in subnets]
        return np.stack(rows) if rows else np.zeros((0, len(range(SAMPLES)[samples])))

    def distances(self, subnets: Sequence[Subnet], samples: slice) -> npt.NDArray[np.float64]:
        """See the port."""
        return np.array([self._loss(one) + float(self._own(one)[0]) / 64 for one in subnets])

    def full_model_margins(self) -> npt.NDArray[np.float64]:
        """See the port."""
        return self._row(self._original)

    def margin_scale(self) -> float:
        """See the port."""
        return margin_scale(self.full_model_margins(), SAMPLES)

    def _row(self, subnet: Subnet) -> npt.NDArray[np.float64]:
        if subnet not in self._rows:
            self._rows[subnet] = self._difficulty + self._own(subnet) / 4 - (_BASE_LOSS + self._loss(subnet))
        return self._rows[subnet]

    def _loss(self, subnet: Subnet) -> float:
        return sum(self._losses[str(edge)] for edge in subnet.edges)

    @staticmethod
    def _own(subnet: Subnet) -> npt.NDArray[np.float64]:
        return uniform_floats(zlib.crc32(str(subnet).encode()), SAMPLES).astype(np.float64)
