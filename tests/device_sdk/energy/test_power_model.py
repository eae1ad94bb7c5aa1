from __future__ import annotations

import itertools

import pytest

from device_sdk.energy.port import PowerModel
from device_sdk.errors import UsageError


def test_energy_is_the_stated_power_times_busy_time():
    seconds = itertools.count(100.0, 2.5)
    energy = PowerModel(busy_w=4, clock=lambda: next(seconds)).measure(lambda: None)
    assert energy.seconds == 2.5
    assert energy.energy_mj == 10_000


def test_it_never_calls_itself_measured():
    assert PowerModel(busy_w=10).source == "model: 10 W × busy time"


def test_idle_power_is_what_was_stated_or_unknown():
    assert PowerModel(busy_w=10).power_w() is None
    model = PowerModel(busy_w=10, idle_w=2)
    during = []
    model.measure(lambda: during.append(model.power_w()))
    assert (during, model.power_w()) == ([10], 2)


def test_it_is_idle_again_after_work_that_failed():
    model = PowerModel(busy_w=10, idle_w=2)
    with pytest.raises(ZeroDivisionError):
        model.measure(lambda: 1 / 0)
    assert model.power_w() == 2


@pytest.mark.parametrize("idle_w", [-1, float("nan"), float("inf")])
def test_an_idle_power_that_is_none_is_refused(idle_w):
    with pytest.raises(UsageError, match="idle"):
        PowerModel(busy_w=10, idle_w=idle_w)
