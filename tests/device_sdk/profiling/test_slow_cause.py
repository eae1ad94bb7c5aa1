from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.profiling.slow_cause import LASTING, lasting_cause, others_cores, slow_cause, waited_share
from device_sdk.profiling.speed_reading import SpeedReading

CALM = SpeedReading(
    frequency_mhz=2000.0,
    limit_share=1.0,
    throttles=5,
    held_back=("fan",),
    busy_ticks=1000,
    total_ticks=10_000,
    own_ticks=500,
    cores=4,
    run_ns=1_000_000,
    waited_ns=1000,
    power_mode="governor schedutil",
    thermal_status=1,
)


def calm(**changes):
    return msgspec.structs.replace(CALM, **changes)


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({}, "unknown"),
        ({"power_mode": "nvpmodel 15W"}, "power_mode"),
        ({"saving": True}, "power_mode"),
        ({"saving": True, "held_back": ("cpufreq",)}, "power_mode"),
        ({"held_back": ("cpufreq", "fan")}, "throttled"),
        ({"held_back": ()}, "unknown"),
        ({"limit_share": 0.9}, "throttled"),
        ({"limit_share": 0.96}, "unknown"),
        ({"limit_share": None}, "unknown"),
        ({"thermal_status": 2}, "throttled"),
        ({"thermal_status": 1}, "unknown"),
        ({"thermal_status": None}, "unknown"),
    ],
)
def test_the_system_states_what_lasts(changes, cause):
    assert lasting_cause(CALM, calm(**changes)) == cause
    assert slow_cause(CALM, CALM, calm(**changes)) == cause


def test_a_state_that_held_before_explains_nothing():
    hot = calm(held_back=("cpufreq",), limit_share=0.5, saving=True, thermal_status=4)
    assert lasting_cause(hot, hot) == "unknown"


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"throttles": 6}, "throttled"),
        ({"run_ns": 1_900_000, "waited_ns": 101_000}, "load"),
        ({"run_ns": 1_950_000, "waited_ns": 51_000}, "unknown"),
        ({"busy_ticks": 1030, "total_ticks": 10_200, "own_ticks": 502}, "load"),
        ({"busy_ticks": 1030, "total_ticks": 10_200, "own_ticks": 520}, "unknown"),
        ({"frequency_mhz": 1600.0}, "throttled"),
        ({"frequency_mhz": 1800.0}, "unknown"),
    ],
)
def test_what_happens_while_it_is_slow_explains_the_rest(changes, cause):
    assert slow_cause(CALM, CALM, calm(**changes)) == cause


def test_a_lower_frequency_beside_a_load_is_the_load():
    busy = calm(frequency_mhz=1000.0, busy_ticks=1100, total_ticks=10_100)
    assert slow_cause(CALM, CALM, busy) == "load"


def test_throttling_beside_a_load_is_throttling_since_it_lasts():
    busy = calm(throttles=6, busy_ticks=1100, total_ticks=10_100)
    assert slow_cause(CALM, CALM, busy) == "throttled"


def test_counts_that_were_set_back_are_unknown():
    assert waited_share(CALM, calm(run_ns=0)) is None
    assert others_cores(CALM, calm(busy_ticks=0)) is None
    assert waited_share(CALM, CALM) is None
    assert others_cores(CALM, CALM) is None


@given(st.data())
def test_a_system_that_tells_nothing_has_an_unknown_cause(data):
    some = SpeedReading(frequency_mhz=data.draw(st.floats(1, 5000)), limit_share=data.draw(st.floats(0.1, 1)))
    assert slow_cause(SpeedReading(), SpeedReading(), some) == "unknown"
    assert slow_cause(some, some, SpeedReading()) == "unknown"


def test_load_passes_and_everything_that_is_named_besides_lasts():
    assert {"throttled", "power_mode", "home"} == LASTING
