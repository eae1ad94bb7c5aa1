from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from hypothesis import given
from hypothesis import strategies as st

from device_sdk.offload.remote_calls import CircuitBreaker


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def opened(clock: Clock) -> CircuitBreaker:
    breaker = CircuitBreaker(clock=clock)
    for _ in range(3):
        assert breaker.allows()
        breaker.failed()
    return breaker


def test_it_opens_after_three_failures_in_a_row():
    breaker = CircuitBreaker(clock=Clock())
    for _ in range(2):
        breaker.failed()
    breaker.succeeded()
    for _ in range(2):
        breaker.failed()
    assert (breaker.state, breaker.allows()) == ("closed", True)
    breaker.failed()
    assert (breaker.state, breaker.allows()) == ("open", False)
    assert breaker.retry_in_s == 5


def test_after_the_cooldown_one_trial_at_a_time_is_allowed():
    clock = Clock()
    breaker = opened(clock)
    clock.now_s += 4.99
    assert not breaker.allows()
    clock.now_s += 0.01
    assert breaker.state == "half-open"
    assert [breaker.allows() for _ in range(3)] == [True, False, False]


def test_a_trial_that_succeeds_closes_it():
    clock = Clock()
    breaker = opened(clock)
    clock.now_s += 5
    assert breaker.allows()
    breaker.succeeded()
    assert (breaker.state, breaker.allows(), breaker.allows()) == ("closed", True, True)
    breaker.failed()
    assert breaker.state == "closed"  # it counts from zero again


def test_every_trial_that_fails_doubles_the_cooldown_up_to_a_minute():
    clock = Clock()
    breaker = opened(clock)
    waits = []
    for _ in range(6):
        waits.append(breaker.retry_in_s)
        clock.now_s += breaker.retry_in_s
        assert breaker.allows()
        breaker.failed()
    assert waits == [5, 10, 20, 40, 60, 60]
    clock.now_s += 60
    assert breaker.allows()
    breaker.succeeded()
    for _ in range(3):
        breaker.failed()
    assert breaker.retry_in_s == 5


def test_a_trial_that_nobody_reports_is_given_up():
    clock = Clock()
    breaker = opened(clock)
    clock.now_s += 5
    assert breaker.allows()
    clock.now_s += 4
    assert not breaker.allows()
    clock.now_s += 1
    assert breaker.allows()


def test_calls_that_began_before_it_opened_change_nothing():
    clock = Clock()
    breaker = opened(clock)
    clock.now_s += 2
    breaker.succeeded()
    breaker.failed()
    breaker.trip()
    assert (breaker.state, breaker.retry_in_s) == ("open", 3)


def test_tripping_opens_it_at_once_and_for_longer_each_time():
    clock = Clock()
    breaker = CircuitBreaker(clock=clock)
    breaker.trip()
    assert (breaker.state, breaker.retry_in_s) == ("open", 5)
    clock.now_s += 5
    assert breaker.allows()
    breaker.trip()
    assert breaker.retry_in_s == 10


def test_threads_that_ask_at_once_get_one_trial():
    clock = Clock()
    breaker = opened(clock)
    clock.now_s += 5
    together = threading.Barrier(8)

    def ask(_: int) -> bool:
        together.wait(timeout=60)
        return breaker.allows()

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(ask, range(8))) == 1


@given(st.lists(st.sampled_from(["ask", "succeed", "fail", "trip", "wait", "wait long"]), max_size=60))
def test_it_never_stays_shut_for_more_than_a_minute(events):
    clock = Clock()
    breaker = CircuitBreaker(clock=clock)
    steps = {
        "ask": breaker.allows,
        "succeed": breaker.succeeded,
        "fail": breaker.failed,
        "trip": breaker.trip,
        "wait": lambda: setattr(clock, "now_s", clock.now_s + 1),
        "wait long": lambda: setattr(clock, "now_s", clock.now_s + 30),
    }
    for event in events:
        steps[event]()
        assert 0 <= breaker.retry_in_s <= 60
        assert (breaker.state == "open") == (breaker.retry_in_s > 0)
    clock.now_s += 60
    assert breaker.allows()


def test_a_clock_that_is_set_back_shuts_nobody_out():
    clock = Clock()
    breaker = opened(clock)
    clock.now_s -= 1e6
    assert breaker.state == "half-open"
    assert breaker.allows()
    breaker.succeeded()
    assert breaker.state == "closed"


def test_a_trial_before_the_clock_was_set_back_is_given_up():
    clock = Clock()
    breaker = opened(clock)
    clock.now_s += 5
    assert [breaker.allows(), breaker.allows()] == [True, False]
    clock.now_s -= 1e6
    assert breaker.allows()


def test_a_server_that_was_seen_to_answer_is_tried_at_once():
    clock = Clock()
    breaker = opened(clock)
    breaker.end_cooldown()
    assert [breaker.allows(), breaker.allows()] == [True, False]
    closed = CircuitBreaker(clock=clock)
    closed.end_cooldown()
    assert closed.state == "closed"
