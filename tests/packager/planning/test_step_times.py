from __future__ import annotations

import contextlib
import logging
import time

import pytest

from device_sdk.progress import SilentProgress
from packager.planning.run_plan import StepTimes


class Shown:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.done: dict[str, float] = {}
        self.notes: list[str] = []

    @contextlib.contextmanager
    def task(self, name, total, *, done=0.0):
        self.done[name], self._name = done, name
        yield self

    def advance(self, amount=1.0):
        self.done[self._name] += amount

    def note(self, text):
        self.notes.append(text)


def test_seconds_of_a_step_add_up_and_are_logged(caplog):
    now = [0.0]
    times = StepTimes(SilentProgress(), clock=lambda: now[0])
    with caplog.at_level(logging.INFO):
        for seconds in (2.0, 3.0):
            with times.task("tune", 1.0) as task:
                task.advance(1.0)
                now[0] += seconds
    assert times.seconds == {"tune": 5.0}
    assert (times.of("tune"), times.of("distil")) == (5.0, 0.0)
    assert caplog.messages == ["tune …", "tune: 2.0 s", "tune …", "tune: 3.0 s"]


def test_a_step_that_fails_has_its_seconds_too():
    now = [0.0]
    times = StepTimes(SilentProgress(), clock=lambda: now[0])
    with contextlib.suppress(ValueError), times.whole("export"):
        now[0] += 4.0
        raise ValueError
    assert times.seconds == {"export": 4.0}


def test_a_step_that_tells_nothing_is_not_silent():
    shown = Shown()
    times = StepTimes(shown)
    with times.whole("export", expected_s=2.0):
        time.sleep(1.2)
        assert 0.3 < shown.done["export"] < 0.95
    assert shown.notes == ["1 s of about 2"]
    assert shown.done["export"] == pytest.approx(1.0)
