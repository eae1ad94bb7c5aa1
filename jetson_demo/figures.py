"""Statistics of a run, accumulated frame by frame. Pure."""

from __future__ import annotations

import math
from array import array
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from device_sdk.energy import Energy

RECENT = 500  # frames in the live statistics


@dataclass(frozen=True)
class Latencies:
    """Latencies of single images at batch 1, in milliseconds; NaN before the first."""

    last_ms: float
    median_ms: float
    p95_ms: float
    mean_ms: float
    recent_ms: tuple[float, ...]


class Figures:
    """Accumulates latencies, sources of answers, and energy."""

    def __init__(self) -> None:
        self._all_ms = array("d")
        self._recent_ms: deque[float] = deque(maxlen=RECENT)
        self._sources: Counter[str] = Counter()
        self.missed = 0
        self._energy_mj = 0.0
        self._energy_seconds = 0.0
        self._energy_frames = 0

    def add_frame(self, latency_ms: float, source: str) -> None:
        """Add an answer's latency and source."""
        self._all_ms.append(latency_ms)
        self._recent_ms.append(latency_ms)
        self._sources[source] += 1

    def add_missed(self) -> None:
        """Count a frame that could not be answered by its deadline."""
        self.missed += 1

    def add_energy(self, energy: Energy, *, frames: int) -> None:
        """Add the energy of ``frames`` answers together; frames of unknown energy are left out of the mean."""
        if energy.energy_mj is not None:
            self._energy_mj += energy.energy_mj
            self._energy_seconds += energy.seconds
            self._energy_frames += frames

    @property
    def frames(self) -> int:
        """Number of answered frames."""
        return len(self._all_ms)

    @property
    def share_early(self) -> float:
        """The share of the frames that an exit answered."""
        early = sum(count for source, count in self._sources.items() if source.startswith("exit "))
        return early / max(self.frames, 1)

    @property
    def sources(self) -> Mapping[str, float]:
        """Share of answers per source, most frequent first."""
        return {source: count / self.frames for source, count in self._sources.most_common()}

    @property
    def mj_per_frame(self) -> float | None:
        """Energy per answer; None where unknown."""
        return self._energy_mj / self._energy_frames if self._energy_frames else None

    @property
    def mean_w(self) -> float | None:
        """Mean power while answering; None where unknown."""
        return self._energy_mj / 1e3 / self._energy_seconds if self._energy_seconds > 0 else None

    def recent(self) -> Latencies:
        """The latencies of the last frames."""
        return _latencies(self._recent_ms)

    def overall(self) -> Latencies:
        """The latencies of all frames."""
        return _latencies(self._all_ms)


def _latencies(values_ms: Sequence[float]) -> Latencies:
    if not values_ms:
        return Latencies(math.nan, math.nan, math.nan, math.nan, ())
    values = np.asarray(values_ms, dtype=np.float64)
    median_ms, p95_ms = (float(value) for value in np.percentile(values, [50, 95]))
    return Latencies(float(values[-1]), median_ms, p95_ms, float(values.mean()), tuple(values[-RECENT:].tolist()))
