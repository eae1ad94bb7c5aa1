from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.energy import Energy
from jetson_demo.figures import RECENT, Figures

latencies_ms = st.lists(st.floats(0.001, 1e4), min_size=1, max_size=50)


@given(latencies_ms)
def test_latencies_are_summed_up_exactly(values_ms):
    figures = Figures()
    for value_ms in values_ms:
        figures.add_frame(value_ms, "subnet")
    found = figures.overall()
    assert found.last_ms == values_ms[-1]
    assert found.median_ms == pytest.approx(np.median(values_ms))
    assert found.p95_ms == pytest.approx(np.percentile(values_ms, 95))
    assert found.mean_ms == pytest.approx(np.mean(values_ms))
    assert found.recent_ms == tuple(values_ms)


def test_live_figures_look_back_on_the_last_frames_only():
    figures = Figures()
    for number in range(RECENT + 100):
        figures.add_frame(1.0 if number < 100 else 2.0, "subnet")
    assert figures.recent().mean_ms == 2
    assert figures.overall().mean_ms < 2
    assert figures.frames == RECENT + 100


def test_before_the_first_frame_nothing_is_known():
    figures = Figures()
    assert figures.frames == 0
    assert math.isnan(figures.overall().median_ms)
    assert figures.overall().recent_ms == ()
    assert figures.share_early == 0
    assert figures.sources == {}
    assert figures.mj_per_frame is None
    assert figures.mean_w is None


def test_early_is_what_an_exit_answered():
    figures = Figures()
    for source in ("exit a", "subnet", "exit a", "exit b", "fallback"):
        figures.add_frame(1.0, source)
    assert figures.share_early == pytest.approx(0.6)
    assert figures.sources == {"exit a": 0.4, "subnet": 0.2, "exit b": 0.2, "fallback": 0.2}
    assert next(iter(figures.sources)) == "exit a"


def test_energy_is_shared_among_the_frames_that_it_was_measured_on():
    figures = Figures()
    figures.add_energy(Energy(300.0, 0.1, "rails"), frames=10)
    figures.add_energy(Energy(None, 5.0, "rails"), frames=1000)
    figures.add_energy(Energy(100.0, 0.1, "rails"), frames=10)
    assert figures.mj_per_frame == pytest.approx(20)
    assert figures.mean_w == pytest.approx(2)
