"""Evidence after every report: false alarms stay below what they may be, and faults are seen early. Seeds are fixed."""

from __future__ import annotations

import math

import numpy as np
import pytest

from server.rollouts.evidence import Counts, paired, rise_evidence, share_evidence, share_interval, unpaired

ALPHA = 0.05
RUNS, DEVICES = 400, 150


def counts_of(values):
    return Counts(len(values), 0, float(np.sum(values)), float(np.sum(np.square(values))))


def first_alarm(failures, limit):
    """The number of devices at the first look, one after each device, that is an alarm; None if none is."""
    events = 0
    for devices, failed in enumerate(failures, start=1):
        events += int(failed)
        if events > 1 and share_evidence(Counts(devices, events), limit) >= 1 / ALPHA:
            return devices
    return None


@pytest.mark.parametrize("limit", [0.001, 0.02, 0.2])
def test_a_share_at_its_limit_is_an_alarm_as_seldom_as_promised_though_every_report_is_looked_at(limit):
    random = np.random.default_rng(1)
    alarms = sum(first_alarm(random.random(DEVICES) < limit, limit) is not None for _ in range(RUNS))
    assert alarms / RUNS <= ALPHA


def test_a_share_far_above_its_limit_is_an_alarm_after_a_few_devices():
    random = np.random.default_rng(2)
    alarms = [first_alarm(random.random(500) < 0.05, 0.0005) for _ in range(RUNS)]
    assert all(alarms)
    assert np.median(alarms) <= 40  # the second device that fails


def rises(changes, limit, look):
    return any(
        rise_evidence(paired(counts_of(changes[:seen])), limit) >= 1 / ALPHA for seen in range(10, len(changes), look)
    )


@pytest.mark.parametrize("deviation", [0.02, 0.3])
def test_a_change_at_its_limit_is_an_alarm_as_seldom_as_promised(deviation):
    random = np.random.default_rng(3)
    alarms = sum(rises(0.1 + deviation * random.standard_normal(DEVICES), 0.1, 2) for _ in range(RUNS))
    assert alarms / RUNS <= ALPHA


def test_a_change_that_is_not_normal_is_an_alarm_as_seldom_too():
    random = np.random.default_rng(4)
    alarms = sum(rises(0.1 + 0.2 * random.standard_t(4, DEVICES), 0.1, 2) for _ in range(RUNS))
    assert alarms / RUNS <= ALPHA


def test_thirty_percent_slower_is_seen_in_a_few_devices():
    random = np.random.default_rng(5)
    changes = math.log(1.3) + 0.1 * random.standard_normal((RUNS, 20))
    seen = [rises(one, math.log(1.1), 1) for one in changes]
    assert np.mean(seen) > 0.95


def test_groups_that_do_not_differ_are_an_alarm_as_seldom():
    random = np.random.default_rng(6)
    alarms = 0
    for _ in range(200):
        new, old = random.normal(0, 0.3, DEVICES), random.normal(-0.05, 0.5, 400)
        looks = (unpaired(counts_of(new[:seen]), counts_of(old)) for seen in range(10, DEVICES, 3))
        alarms += any(rise_evidence(one, 0.05) >= 1 / ALPHA for one in looks)
    assert alarms / 200 <= ALPHA


def test_one_device_cannot_make_evidence_of_a_change_by_a_huge_value():
    calm = [0.0, 0.01, -0.01, 0.02, 0.0, -0.02, 0.01, 0.0, 0.0]
    assert rise_evidence(paired(counts_of([*calm, math.log(4.0)])), math.log(1.1)) < 1


def test_nothing_is_evidence_of_nothing():
    assert share_evidence(Counts(), 0.01) == 0
    assert share_evidence(Counts(5, 5), 1.0) == 0
    assert share_evidence(Counts(500, 0), 0.01) < 1
    assert paired(Counts(1, 0, 1.0, 1.0)) is None
    assert unpaired(Counts(1, 0, 1.0, 1.0), Counts(9, 0, 1.0, 1.0)) is None
    assert share_interval(Counts()) == (0.0, 1.0)


def test_equal_values_of_all_devices_are_finite_evidence():
    same = Counts(100, 0, 26.0, 100 * 0.26**2)
    assert 1e6 < rise_evidence(paired(same), 0.1) < math.inf


def test_intervals_contain_what_was_counted():
    for counts in (Counts(20, 0), Counts(20, 1), Counts(20, 20), Counts(2000, 100)):
        low, high = share_interval(counts)
        assert 0 <= low <= counts.events / counts.devices <= high <= 1
