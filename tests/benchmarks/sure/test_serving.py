from __future__ import annotations

from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.sure.serving import Served, _paced


class Clock:
    """Time that passes in sleeps and calls only."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def test_calls_come_at_the_rate_and_are_timed_from_outside() -> None:
    clock, begun = Clock(), []

    def model(image: np.ndarray) -> SimpleNamespace:
        begun.append(clock.now_s)
        clock.now_s += 0.02
        return SimpleNamespace(latency_ms=15.0)

    images = [np.zeros((2, 2, 3), dtype=np.uint8)] * 2
    times = list(_paced(model, images, 10.0, 4, clock=clock, sleep=clock.sleep))
    assert begun == pytest.approx([0.0, 0.1, 0.2, 0.3])
    assert times == [(pytest.approx(20.0), 15.0)] * 4


def test_a_late_call_is_followed_at_once() -> None:
    clock, takes, begun = Clock(), count(), []

    def model(image: np.ndarray) -> SimpleNamespace:
        begun.append(clock.now_s)
        clock.now_s += 0.25 if next(takes) == 0 else 0.01
        return SimpleNamespace(latency_ms=1.0)

    list(_paced(model, [np.zeros((2, 2, 3), dtype=np.uint8)], 10.0, 3, clock=clock, sleep=clock.sleep))
    assert begun == pytest.approx([0.0, 0.25, 0.26])


def test_the_share_over_the_budget_counts_preparing_the_image() -> None:
    served = Served(0.5, 5.0, 10.0, (9.0, 11.0, 12.0, 8.0), (7.0, 9.0, 11.0, 6.0))
    assert (served.over_share, served.inner_over_share) == (0.5, 0.25)
