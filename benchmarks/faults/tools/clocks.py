"""Clocks as tests need them: they stand still, move when told to, or jump."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass
class FrozenClock:
    """Stands still until ``sleep`` moves it."""

    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class JumpingClock:
    """Moves by one of ``steps_s``, which may be negative, at each look; stands still after the last one."""

    def __init__(self, steps_s: Iterable[float], *, now_s: float = 1000.0) -> None:
        self._steps_s: Iterator[float] = iter(steps_s)
        self._now_s = now_s

    def __call__(self) -> float:
        self._now_s += next(self._steps_s, 0.0)
        return self._now_s
