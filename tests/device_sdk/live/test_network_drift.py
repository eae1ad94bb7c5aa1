from __future__ import annotations

import pytest

from device_sdk.live.network_follower import DriftSettings, NetworkDrift
from device_sdk.supernet.cost import Uplink

PLANNED, SLOW = Uplink(10.0, 20.0), Uplink(0.2, 80.0)
SETTINGS = DriftSettings(factor=1.5, patience_s=1.0, cooldown_s=2.0)


@pytest.fixture
def drift():
    return NetworkDrift(PLANNED, (1, 3_000), SETTINGS)


def looks(drift, uplink, times_s):
    return [drift.calls_for_a_plan(uplink, now_s) for now_s in times_s]


def test_the_network_that_was_planned_with_calls_for_nothing(drift):
    assert not any(looks(drift, PLANNED, range(10)))
    assert not any(looks(drift, Uplink(8.0, 24.0), range(10, 20)))


@pytest.mark.parametrize("now", [SLOW, Uplink(10.0, 40.0), Uplink(0.5, 20.0), Uplink(200.0, 1.0), None])
def test_a_change_that_lasts_calls_for_a_plan(drift, now):
    assert looks(drift, now, [0.0, 0.9, 1.1]) == [False, False, True]


def test_a_change_that_passes_does_not(drift):
    for at_s in range(0, 20, 2):
        assert not drift.calls_for_a_plan(SLOW, at_s)
        assert not drift.calls_for_a_plan(PLANNED, at_s + 0.5)


def test_the_plan_follows_and_returns(drift):
    looks(drift, SLOW, [0.0])
    assert drift.calls_for_a_plan(SLOW, 1.0)
    drift.planned_with(SLOW, 1.0)
    assert not any(looks(drift, SLOW, [2.0, 4.0, 6.0]))
    assert looks(drift, PLANNED, [7.0, 8.0]) == [False, True]


def test_after_a_plan_the_next_one_waits(drift):
    looks(drift, SLOW, [0.0])
    drift.planned_with(SLOW, 1.0)
    assert looks(drift, PLANNED, [1.0, 2.0, 2.9, 3.0]) == [False, False, False, True]


def test_a_server_that_is_back_calls_for_a_plan(drift):
    drift.planned_with(None, 0.0)
    assert not any(looks(drift, None, [1.0, 5.0]))
    assert looks(drift, PLANNED, [6.0, 7.0]) == [False, True]


def test_a_clock_that_is_set_back_begins_anew(drift):
    drift.planned_with(SLOW, 1e9)
    assert looks(drift, PLANNED, [5.0, 6.0]) == [False, True]
    assert looks(drift, PLANNED, [-100.0, -99.0]) == [False, True]


def test_a_clock_that_is_set_forward_hurries_one_plan_at_most(drift):
    assert looks(drift, SLOW, [0.0, 1e9]) == [False, True]
    drift.planned_with(SLOW, 1e9)
    assert not any(looks(drift, SLOW, [1e9 + 1, 2e9]))
