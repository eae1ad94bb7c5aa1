from __future__ import annotations

import numpy as np
import pytest

from device_sdk.offload.link_estimate import LinkEstimate
from device_sdk.supernet.cost import Uplink

KNOWN = Uplink(10.0, 20.0)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def link(clock):
    return LinkEstimate(KNOWN, clock=clock)


def send(link, clock, uplink: Uplink, sizes, *, every_s: float = 0.1, server_ms: float = 0.0) -> None:
    for size in sizes:
        link.record(size, (uplink.transfer_ms(size) + server_ms) / 1e3, server_ms)
        clock.now_s += every_s


def test_before_the_first_request_it_is_what_was_known(link):
    assert link.uplink == KNOWN
    assert link.quiet_s == float("inf")


@pytest.mark.parametrize("now", [Uplink(10.0, 20.0), Uplink(0.5, 20.0), Uplink(10.0, 300.0), Uplink(80.0, 2.0)])
def test_requests_of_two_sizes_tell_bandwidth_and_round_trip_apart(link, clock, now):
    send(link, clock, now, [1, 30_000] * 8)
    for size in (1, 3_000, 30_000):
        assert link.uplink.transfer_ms(size) == pytest.approx(now.transfer_ms(size), rel=0.1)


def test_requests_of_one_size_tell_how_long_that_size_takes(link, clock):
    now = Uplink(1.0, 200.0)
    send(link, clock, now, [3_000] * 10)
    assert link.uplink.transfer_ms(3_000) == pytest.approx(now.transfer_ms(3_000), rel=0.02)


def test_what_the_server_works_is_not_the_networks(link, clock):
    send(link, clock, KNOWN, [1, 30_000] * 5, server_ms=40.0)
    assert link.uplink.transfer_ms(30_000) == pytest.approx(KNOWN.transfer_ms(30_000), rel=0.02)


@pytest.mark.parametrize(("first", "then"), [(KNOWN, Uplink(0.2, 80.0)), (Uplink(0.2, 80.0), KNOWN)])
def test_a_change_is_followed_within_four_seconds(link, clock, first, then):
    send(link, clock, first, [1, 3_000] * 40)
    send(link, clock, then, [1, 3_000] * 20)
    assert link.uplink.transfer_ms(3_000) == pytest.approx(then.transfer_ms(3_000), rel=0.35)
    clock.now_s += 2.5
    send(link, clock, then, [1, 3_000] * 5)
    assert link.uplink.transfer_ms(3_000) == pytest.approx(then.transfer_ms(3_000), rel=0.1)


def test_noise_moves_it_little(link, clock):
    random = np.random.default_rng(0)
    for size in [1, 3_000] * 30:
        link.record(size, KNOWN.transfer_ms(size) * random.uniform(0.8, 1.25) / 1e3)
        clock.now_s += 0.1
    assert link.uplink.transfer_ms(3_000) == pytest.approx(KNOWN.transfer_ms(3_000), rel=0.15)


def test_two_failures_put_the_server_out_of_reach_until_it_answers(link):
    link.failed()
    assert link.uplink is not None
    link.failed()
    assert link.uplink is None
    link.record(1, 0.02)
    assert link.uplink.transfer_ms(1) == pytest.approx(20.0, rel=0.05)


def test_requests_whose_clock_went_back_tell_nothing(link):
    for seconds in (-1.0, 0.0, float("nan")):
        link.record(3_000, seconds)
    assert link.uplink == KNOWN


def test_after_a_jump_of_the_clock_it_goes_on(link, clock):
    send(link, clock, KNOWN, [1, 3_000] * 4)
    clock.now_s -= 1e6
    assert link.quiet_s == float("inf")
    assert link.uplink is not None
    now = Uplink(1.0, 100.0)
    send(link, clock, now, [1, 3_000] * 10)
    assert link.uplink.transfer_ms(3_000) == pytest.approx(now.transfer_ms(3_000), rel=0.1)


def test_it_says_for_how_long_there_was_no_request(link, clock):
    link.record(1, 0.02)
    clock.now_s += 3
    assert link.quiet_s == pytest.approx(3)
