"""The subnet that ``adapt`` chooses within a budget, and its correctness on other photographs."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.real_size.photographs import Photographs
from device_sdk.bundles.bundle import Bundle
from device_sdk.data.inputs import Inputs
from device_sdk.errors import InfeasibleBudgetError
from device_sdk.execution.workspace import Workspace
from device_sdk.policies.adaptation import Adaptation, AdaptationSettings, find_plan
from device_sdk.profiling.profile import Profile
from device_sdk.progress import Progress
from device_sdk.runtimes import OnnxRuntime
from device_sdk.runtimes.port import LoadedStretch
from device_sdk.supernet.cost import Budget
from device_sdk.supernet.plan import Subnet

HOLDOUT_SHARE = 0.05  # #search is small, and #report judges
RESAMPLES = 2000
_BATCH = 8

Right = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Chosen:
    """A subnet, its latency relative to the full model's measured with it, and the cost of finding it."""

    subnet: Subnet
    ratio: float
    evaluated: int
    seconds: float

    def right(self, bundle: Bundle, runtime: OnnxRuntime, photographs: Photographs) -> Right:
        """The subnet's correctness on each photograph: [count]."""
        stretch = bundle.stretch(self.subnet.edges)
        inputs = photographs.inputs(bundle.manifest.preprocessing)
        return right_of(runtime.load(stretch), inputs, photographs.labels, self.subnet.input_size)


def choose(
    bundle: Bundle,
    runtime: OnnxRuntime,
    profile: Profile,
    search: Photographs,
    ratio: float,
    *,
    limit_s: float,
    progress: Progress,
) -> Chosen:
    """What the product's adaptation takes on ``search`` within ``ratio`` of the full model's latency.

    Where the machine was slower than in the profile, so that nothing measured within the budget, once more for as much
    longer.

    Raises:
        InfeasibleBudgetError: nothing measured within the budget again.
    """

    def within(latency_ms: float, seconds: float) -> Adaptation:
        return find_plan(
            Workspace(bundle, runtime),
            profile,
            search.inputs(bundle.manifest.preprocessing),
            search.labels,
            Budget(latency_ms=latency_ms),
            settings=AdaptationSettings(holdout_share=HOLDOUT_SHARE, time_limit_s=seconds),
            progress=progress,
        )

    latency_ms = ratio * profile.original_ms
    try:
        found = within(latency_ms, limit_s)
    except InfeasibleBudgetError:
        found = within(latency_ms, 2 * limit_s)
    return Chosen(found.subnet, found.measured_ratio, found.subnets_evaluated, found.seconds)


def right_of(
    session: LoadedStretch, inputs: Inputs, labels: npt.NDArray[np.int64], input_size: tuple[int, ...]
) -> Right:
    """A loaded model's correctness on each sample; closes it."""
    try:
        batches = (np.array(batch) for batch in _batched(range(len(labels))))
        answers = [session.run([inputs.take(batch, input_size)])[-1].argmax(axis=-1) for batch in batches]
    finally:
        session.close()
    return np.asarray(np.concatenate(answers) == labels)


def _batched(positions: Iterable[int]) -> Iterable[tuple[int, ...]]:
    waiting = iter(positions)
    while batch := tuple(itertools.islice(waiting, _BATCH)):
        yield batch


def interval(rival: Right, own: Right) -> tuple[float, float]:
    """Paired bootstrap: 2.5 and 97.5 % of the gap in points."""
    difference = 100 * (rival.astype(np.float64) - own)
    drawn = np.random.default_rng(0).integers(0, len(difference), (RESAMPLES, len(difference)))
    low, high = np.percentile(difference[drawn].mean(axis=1), [2.5, 97.5])
    return float(low), float(high)
