"""Real samples on their way along the original path: what quantisation is calibrated on and measured with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from device_sdk.graph import CutPoint
from packager.expansion import Expansion

MAX_SAMPLES = 512
MAX_BYTES = 256_000_000  # of features at one cut point; two are held at a time
_LEAST_SAMPLES = 16
_BATCH = 64
_HELD_BACK = 4  # one of so many samples

Features = npt.NDArray[np.float32]


def sample_count(cut_points: tuple[CutPoint, ...], available: int) -> int:
    """How many of ``available`` samples to calibrate on: large models get fewer, so that their features fit."""
    fitting = MAX_BYTES // max(cut.nbytes for cut in cut_points)
    return min(available, MAX_SAMPLES, max(_LEAST_SAMPLES, fitting))


@dataclass(frozen=True)
class Calibration:
    """Prepared ``samples`` [count, *input] of the training data, and the supernet whose originals they run through."""

    expansion: Expansion
    samples: torch.Tensor

    def features(self) -> Iterator[tuple[int, Features]]:
        """Each cut point, 0 to N, with the features [count, *shape] there; computed one after the other."""
        live = self.samples
        yield 0, live.numpy()
        for block in self.expansion.originals:
            with torch.no_grad():
                live = torch.cat([block.module.eval()(part) for part in live.split(_BATCH)])
            yield block.end, live.numpy()


def fitted_and_held_back(features: Features) -> tuple[Features, Features]:
    """The samples that ranges are fitted to, and those that errors are measured on (the same if there is only one)."""
    held = np.arange(len(features)) % _HELD_BACK == _HELD_BACK - 1
    return (features[~held], features[held]) if held.any() else (features, features)


def relative_error(answers: Features, expected: Features) -> float:
    """Mean squared distance over the variance of what is expected: 0 is perfect, 1 no better than the mean."""
    difference = answers.astype(np.float64) - expected
    return float(np.mean(difference**2) / max(float(np.var(expected, dtype=np.float64)), 1e-8))
