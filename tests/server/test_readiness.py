from __future__ import annotations

import threading

import pytest

from device_sdk.errors import StorageError
from server.readiness import Readiness


class Seconds:
    time = 0.0

    def __call__(self):
        return self.time


class Part:
    """A part of the state that may be away, or hang until the test ends."""

    def __init__(self):
        self.away, self.asked, self.hangs, self.go = False, 0, False, threading.Event()

    def __call__(self):
        self.asked += 1
        if self.hangs:
            self.go.wait(20)
        if self.away:
            raise StorageError("away")


@pytest.fixture
def parts():
    made = {"database": Part(), "bundles": Part()}
    yield made
    for part in made.values():
        part.go.set()


@pytest.fixture
def seconds():
    return Seconds()


@pytest.fixture
def readiness(parts, seconds):
    made = Readiness(parts, patience_s=0.2, clock=seconds)
    yield made
    made.close()


def test_it_says_which_part_is_away(readiness, parts, seconds):
    assert readiness.away() == []
    parts["database"].away, seconds.time = True, 1.0
    assert readiness.away() == ["database"]
    parts["bundles"].away, seconds.time = True, 2.0
    assert readiness.away() == ["database", "bundles"]


def test_it_asks_once_a_second_however_often_it_is_asked(readiness, parts, seconds):
    for _ in range(5):
        readiness.away()
    assert parts["database"].asked == 1


def test_a_part_that_hangs_is_away_and_holds_one_thread(readiness, parts, seconds):
    parts["bundles"].hangs = True
    for time in (0.0, 1.0, 2.0):
        seconds.time = time
        assert readiness.away() == ["bundles"]
    assert parts["bundles"].asked == 1
    parts["bundles"].hangs = False
    parts["bundles"].go.set()
    seconds.time = 3.0
    assert readiness.away() == []
