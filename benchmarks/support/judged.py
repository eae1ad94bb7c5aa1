"""Models measured in one interleaved run, and judged on the same samples."""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from device_sdk.data.inputs import Inputs
from device_sdk.profiling.timing import Patience, measure_interleaved
from device_sdk.runtimes.port import LoadedStretch

Key = TypeVar("Key", bound=Hashable)
Right = npt.NDArray[np.bool_]

_ROUNDS, _WARMUP = 60, 3
_PATIENCE = Patience(rounds=_ROUNDS, precision=0.005, limit_s=60.0, least=20)
_PAUSE_S = 0.02  # before each call, as adaptation measures where no pace is known
_CHUNK, _BATCH = 64, 8


@dataclass(frozen=True)
class Loaded:
    """A session that takes [batch, *shape] prepared samples."""

    session: LoadedStretch
    shape: tuple[int, int, int]  # channels, height, width


def measured_ratios(models: Mapping[Key, Loaded], reference: Key) -> dict[Key, float]:
    """Median latencies at batch 1 relative to that of ``reference``, in turns and paced: as an application calls."""
    blank = {key: np.zeros((1, *one.shape), dtype=np.float32) for key, one in models.items()}
    calls = {str(n): partial(one.session.run, [blank[key]]) for n, (key, one) in enumerate(models.items())}
    found = measure_interleaved(calls, rounds=_ROUNDS, warmup=_WARMUP, patience=_PATIENCE, pause_s=_PAUSE_S)
    medians = {key: found[str(n)].median_ms for n, key in enumerate(models)}
    return {key: median_ms / medians[reference] for key, median_ms in medians.items()}


def answered_rightly(models: Mapping[Key, Loaded], inputs: Inputs, labels: npt.NDArray[np.int64]) -> dict[Key, Right]:
    """Correctness on each sample: [count]. Models of one input size share the prepared samples."""
    found: dict[Key, list[Right]] = {key: [] for key in models}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for size in dict.fromkeys(one.shape[1:] for one in models.values()):
            same = [key for key, one in models.items() if one.shape[1:] == size]
            for at in range(0, len(labels), _CHUNK):
                positions = np.arange(at, min(at + _CHUNK, len(labels)))
                answers = partial(_answers, inputs.take(positions, size))
                for key, answer in zip(same, pool.map(answers, [models[one].session for one in same]), strict=True):
                    found[key].append(answer == labels[positions])
    return {key: np.concatenate(parts) for key, parts in found.items()}


def _answers(prepared: npt.NDArray[np.float32], session: LoadedStretch) -> npt.NDArray[np.int64]:
    batches = (prepared[at : at + _BATCH] for at in range(0, len(prepared), _BATCH))
    return np.concatenate([session.run([batch])[-1].argmax(axis=-1) for batch in batches])
