"""The latency of whole plans, which differs between samples because of exits."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from device_sdk.execution.loaded_plan import LoadedPlan
from device_sdk.profiling.timing import measure_interleaved
from device_sdk.runtimes.port import Array


def mean_latencies_ms(plans: Sequence[LoadedPlan], inputs: Array, *, rounds: int = 3) -> list[float]:
    """The mean latency of each plan over ``inputs`` [count, *input], one sample at a time, plans interleaved.

    Each sample contributes the median of ``rounds``, since latency differs between samples.
    """
    totals = np.zeros(len(plans))
    for at in range(len(inputs)):
        sample = inputs[at : at + 1]
        calls = {str(number): partial(plan.run, sample) for number, plan in enumerate(plans)}
        timed = measure_interleaved(calls, rounds=rounds, warmup=1)
        totals += [timed[str(number)].median_ms for number in range(len(plans))]
    return [float(total) / len(inputs) for total in totals]
