"""Calls as an app makes them: ``model(image)``, now and then, preparing the image included."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

import numpy as np

from benchmarks.sure.networks import Images, SureNetwork
from device_sdk.errors import PathweaveError
from device_sdk.policies.gathering import AdaptationSettings
from device_sdk.progress import Progress
from device_sdk.supernet.goal import Goal
from pathweave import AdaptiveModel

RATES_HZ = (5.0, 15.0, 30.0)
SERVED_S, QUICK_SERVED_S = 6.0, 1.0  # of calls
SERVED_BEFORE = 10  # calls before an app adapts
SERVED_PERCENTILE = 95.0


@dataclass(frozen=True)
class Served:
    """Calls of one plan at one rate. Times are of the whole call, and (``inner_ms``) as the answer states them."""

    budget_ratio: float
    rate_hz: float
    budget_ms: float
    call_ms: tuple[float, ...]
    inner_ms: tuple[float, ...]

    @property
    def over_share(self) -> float:
        """Calls over the budget."""
        return float(np.mean([one > self.budget_ms for one in self.call_ms]))

    @property
    def inner_over_share(self) -> float:
        """The same without preparing the image."""
        return float(np.mean([one > self.budget_ms for one in self.inner_ms]))


@dataclass(frozen=True)
class NotServed:
    """A budget that the adaptation refused once calls had been made."""

    budget_ratio: float
    reason: str


def served(
    network: SureNetwork, state: Path, wanted: Sequence[tuple[float, float]], *, seconds: float, progress: Progress
) -> Iterator[Served | NotServed]:
    """An app's life for each budget ratio and rate, on a quiet machine: some calls, an adaptation, then calls.

    The budget holds for 95 % of the calls; it is that ratio of the full model's latency at the same pace.
    """
    images = network.report.images
    with (
        AdaptiveModel.open(network.folder, state_folder=state) as model,
        progress.task(f"serve {network.name}", len(wanted)) as task,
    ):
        model.profile()
        for ratio, rate_hz in wanted:
            list(_paced(model, images, rate_hz, SERVED_BEFORE))
            settings = AdaptationSettings(time_limit_s=network.time_limit_s, use_prior=False)
            goal, labels = Goal(latency_ratio=ratio, percentile=SERVED_PERCENTILE), network.private.labels
            task.advance()
            try:
                found = model.adapt(network.private.images, goal, labels=labels, settings=settings)
            except PathweaveError as error:
                yield NotServed(ratio, str(error))
                continue
            budget_ms = found.goal.latency_ms
            assert budget_ms is not None
            times = list(_paced(model, images, rate_hz, max(5, round(seconds * rate_hz))))
            yield Served(ratio, rate_hz, budget_ms, tuple(one for one, _ in times), tuple(one for _, one in times))


def _paced(
    model: AdaptiveModel,
    images: Images,
    rate_hz: float,
    count: int,
    *,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[tuple[float, float]]:
    """Milliseconds of each call, as seen from outside and as its answer states them."""
    started_s = clock()
    for number, image in enumerate(islice(cycle(images), count)):
        sleep(max(0.0, started_s + number / rate_hz - clock()))
        began_s = clock()
        answer = model(image)
        yield 1000 * (clock() - began_s), answer.latency_ms
