"""Adaptations in a process of their own: ``python -m benchmarks.family.adapting BUNDLE STATE SAMPLES SECONDS RATIO …``.

A line of JSON for each ratio. Device-side imports only, so that the peak memory is that of a device that adapts.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from device_sdk.errors import PathweaveError
from device_sdk.machine import peak_resident_bytes
from device_sdk.policies.gathering import AdaptationSettings
from device_sdk.supernet.goal import Goal
from device_sdk.supernet.plan import Subnet
from pathweave import AdaptiveModel

_CHECKOUT = Path(__file__).parents[2]


class Adapted(msgspec.Struct, frozen=True):
    """One adaptation. ``subnet`` is None where it was refused, and ``refusal`` says why.

    ``ratio``: the latency that was allowed, over the full model's; ``latency_ms``: the same in milliseconds, as the
    adaptation measured the full model; ``measured_ratio``: of the choice, as it confirmed it. ``peak_bytes``: of the
    process so far.
    """

    ratio: float
    seconds: float
    peak_bytes: int
    subnet: Subnet | None = None
    latency_ms: float | None = None
    measured_ratio: float | None = None
    evaluated: int = 0
    refusal: str = ""


def adaptations(
    folder: Path,
    state: Path,
    images: Sequence[npt.NDArray[np.uint8]],
    labels: npt.NDArray[np.int64],
    ratios: Sequence[float],
    *,
    time_limit_s: float,
) -> Iterator[Adapted]:
    """Each adaptation once it is done, all in one process that is started for them and profiles first.

    A latency is a ratio to the full model's, so that a machine that has become slower since the rungs were measured
    does not count as a broken limit.
    """
    samples = state.with_suffix(".npz")
    np.savez(samples, *images, labels=labels)
    command = [sys.executable, "-m", "benchmarks.family.adapting", *map(str, (folder, state, samples, time_limit_s))]
    with subprocess.Popen([*command, *map(repr, ratios)], cwd=_CHECKOUT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for line in process.stdout:
            yield msgspec.json.decode(line, type=Adapted)
    samples.unlink()
    if process.returncode:
        raise RuntimeError(f"the process that adapts {folder.name} ended with {process.returncode}")


def _adapt_each(folder: Path, state: Path, samples: Path, time_limit_s: float, ratios: Sequence[float]) -> None:
    """Profile, then adapt to each ratio, and print what was found. Without a prior of classes, as rungs have none."""
    with np.load(samples) as file:
        labels = file["labels"]
        images = [file[f"arr_{number}"] for number in range(len(labels))]
    settings = AdaptationSettings(time_limit_s=time_limit_s, use_prior=False)
    with AdaptiveModel.open(folder, state_folder=state) as model:
        model.profile()
        for ratio in ratios:
            print(msgspec.json.encode(_adapted(model, images, labels, ratio, settings)).decode(), flush=True)


def _adapted(
    model: AdaptiveModel,
    images: list[npt.NDArray[np.uint8]],
    labels: npt.NDArray[np.int64],
    ratio: float,
    settings: AdaptationSettings,
) -> Adapted:
    started_s = time.perf_counter()
    try:
        found = model.adapt(images, Goal(latency_ratio=ratio), labels=labels, settings=settings)
    except PathweaveError as error:
        return Adapted(ratio, time.perf_counter() - started_s, peak_resident_bytes() or 0, refusal=str(error))
    return Adapted(
        ratio,
        time.perf_counter() - started_s,
        peak_resident_bytes() or 0,
        found.subnet,
        found.goal.latency_ms,
        None if found.measured is None else found.measured.ratio,
        found.considered,
    )


if __name__ == "__main__":
    _bundle, _state, _samples = map(Path, sys.argv[1:4])
    _limit_s, *_ratios = map(float, sys.argv[4:])
    _adapt_each(_bundle, _state, _samples, _limit_s, _ratios)
