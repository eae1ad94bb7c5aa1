from __future__ import annotations

import os
import threading

import pytest

from device_sdk.errors import InfeasibleBudgetError, RuntimeFailedError
from device_sdk.live.pool_search import BackgroundSearch
from device_sdk.search.port import Candidate
from device_sdk.supernet.cost import Budget, Cost
from device_sdk.supernet.plan import Edge, Plan, Subnet

BUDGET = Budget(latency_ms=1.0)
FOUND = Candidate(Plan(Subnet((Edge("a"),))), Cost(latency_ms=1.0, peak_bytes=1), 0.5)
WAIT_S = 30.0


class Scene:
    """A background search whose work is ``search``; what it ended with."""

    def __init__(self, search):
        self.outcomes, self.ended = [], threading.Event()
        self.background = BackgroundSearch(search, self._note)

    def _note(self, outcome):
        self.outcomes.append(outcome)
        self.ended.set()

    def begin(self, ratio=2.0, *, now_s=0.0, cooldown_s=60.0):
        self.ended.clear()
        return self.background.begin(BUDGET, ratio, now_s=now_s, cooldown_s=cooldown_s)

    def wait(self):
        assert self.ended.wait(WAIT_S)
        self.background.wait(WAIT_S)


def test_what_was_found_is_handed_over():
    scene = Scene(lambda budget, cancelled: [FOUND])
    assert scene.begin()
    scene.wait()
    [outcome] = scene.outcomes
    assert (outcome.budget, outcome.ratio, outcome.candidates, outcome.failure) == (BUDGET, 2.0, (FOUND,), None)


def test_one_search_at_a_time():
    may_end, begun = threading.Event(), []

    def search(budget, cancelled):
        begun.append(1)
        assert may_end.wait(WAIT_S)
        return []

    scene = Scene(search)
    assert scene.begin()
    assert scene.begin(cooldown_s=0.0)  # under way, not a second one
    may_end.set()
    scene.wait()
    assert begun == [1]


def test_the_next_search_waits_for_the_cooldown_and_not_for_a_clock_that_jumped():
    scene = Scene(lambda budget, cancelled: [])
    scene.begin(now_s=100.0)
    scene.wait()
    assert not scene.begin(now_s=159.0)
    assert scene.begin(now_s=160.0)
    scene.wait()
    assert scene.begin(now_s=5.0)
    scene.wait()


def test_what_was_infeasible_is_not_tried_again_on_a_device_that_is_no_faster():
    def search(budget, cancelled):
        raise InfeasibleBudgetError("nothing fits", nearest=(), nearest_latency_ms=1.0, nearest_peak_bytes=1)

    scene = Scene(search)
    scene.begin(3.0, cooldown_s=0.0)
    scene.wait()
    assert scene.outcomes[0].failure == "nothing fits"
    assert not scene.begin(3.0, cooldown_s=0.0)
    assert scene.begin(2.0, cooldown_s=0.0)
    scene.wait()


def test_another_failure_may_be_tried_again():
    def search(budget, cancelled):
        raise RuntimeFailedError("out of memory")

    scene = Scene(search)
    scene.begin(cooldown_s=0.0)
    scene.wait()
    assert scene.outcomes[0].failure == "out of memory"
    assert scene.begin(cooldown_s=0.0)
    scene.wait()


@pytest.mark.skipif(not hasattr(os, "setpriority"), reason="this system has no priorities")
def test_calls_go_first():
    niceness = []
    scene = Scene(
        lambda budget, cancelled: niceness.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id())) or []
    )
    scene.begin()
    scene.wait()
    assert niceness[0] > os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) or niceness[0] == 19


def test_after_the_stop_nothing_is_handed_over_and_nothing_begins():
    def search(budget, cancelled):
        while not cancelled():
            pass
        return [FOUND]

    scene = Scene(search)
    scene.begin()
    scene.background.stop()
    scene.background.stop()
    assert scene.outcomes == []
    assert not scene.begin(cooldown_s=0.0)
