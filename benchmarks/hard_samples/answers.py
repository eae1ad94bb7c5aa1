"""Answers of device and server to a part of the data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.hard_samples.judging import Pair, Right
from benchmarks.support.sources import Logits


@dataclass(frozen=True)
class Answers:
    """Images and labels of a part of the data, logits of device and server, and masks of the right ones: [count]."""

    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]
    small: Logits
    large: Logits

    @property
    def here(self) -> Right:
        return np.asarray(self.small.argmax(axis=1) == self.labels)

    @property
    def server(self) -> Right:
        return np.asarray(self.large.argmax(axis=1) == self.labels)

    @property
    def pair(self) -> Pair:
        return Pair(self.here, self.server)
