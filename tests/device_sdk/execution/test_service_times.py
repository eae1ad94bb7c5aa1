from __future__ import annotations

import threading

import pytest

from device_sdk.execution.running_calls import KEPT, ServiceTimes


@pytest.fixture
def wake():
    return threading.Event()


@pytest.fixture
def times(wake):
    return ServiceTimes(wake, low_ms=2.0, high_ms=10.0)


def test_the_last_calls_are_kept_in_order(times):
    for number in range(KEPT + 5):
        times.record(float(number))
    assert times.last() == [float(number) for number in range(5, KEPT + 5)]


@pytest.mark.parametrize(
    ("service_ms", "woken"),
    [(2.0, False), (5.0, False), (10.0, False), (1.9, True), (10.1, True), (float("nan"), True)],
)
def test_only_a_call_out_of_bounds_wakes_anybody(times, wake, service_ms, woken):
    times.record(service_ms)
    assert wake.is_set() is woken


def test_threads_may_record_while_another_reads(times):
    ended = threading.Event()

    def record():
        while not ended.is_set():
            times.record(5.0)

    callers = [threading.Thread(target=record) for _ in range(4)]
    for caller in callers:
        caller.start()
    try:
        assert all(set(times.last()) <= {5.0} for _ in range(2000))
    finally:
        ended.set()
        for caller in callers:
            caller.join()
