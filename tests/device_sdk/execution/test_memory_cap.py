from __future__ import annotations

import threading

import numpy as np
import pytest

from device_sdk.execution.pager import Footprint, Page, PagedStretch, Pager
from device_sdk.execution.running_calls import MemoryCap, PlanRetired, RunningCalls

PATIENCE_S = 10.0


class AddingRuntime:
    """Pages that add one; ``open`` counts them. ``hold``: an event that every run waits for."""

    identity = "adding"

    def __init__(self):
        self.open, self.reached, self.hold = 0, threading.Event(), None

    def load(self, page):
        self.open += 1
        owner = self

        class Adding:
            def run(self, inputs):
                owner.reached.set()
                assert owner.hold is None or owner.hold.wait(PATIENCE_S)
                return [inputs[0] + 1]

            def close(self):
                owner.open -= 1

        return Adding()


def pager(runtime, cap, *footprints):
    return Pager(runtime, [Page(lambda: None, Footprint(*one)) for one in footprints], cap=cap)


def run(paged, *numbers):
    return int(PagedStretch(paged, numbers).run([np.array(0)])[0])


def test_pagers_share_the_cap_and_give_up_what_is_idle():
    cap, runtime = MemoryCap(30), AddingRuntime()
    first, second = (pager(runtime, cap, *[(20, 10, 1)] * 2) for _ in range(2))
    assert run(first, 0, 1) == 2
    assert cap.used_bytes == 20
    assert run(second, 0, 1) == 2
    assert cap.peak_bytes <= 30
    assert first.taken_bytes + second.taken_bytes == cap.used_bytes <= 30


def test_a_lower_cap_evicts_what_is_idle_at_once_and_a_higher_one_lets_it_come_back():
    cap, runtime = MemoryCap(100), AddingRuntime()
    one = pager(runtime, cap, *[(20, 10, 1)] * 4)
    run(one, 0, 1, 2, 3)
    assert runtime.open == 4
    cap.set(25)
    assert cap.used_bytes <= 25
    run(one, 0, 1, 2, 3)
    assert cap.used_bytes <= 25
    cap.set(None)
    run(one, 0, 1, 2, 3)
    assert runtime.open == 4


def test_what_a_call_runs_leaves_when_it_ends():
    cap, runtime = MemoryCap(100), AddingRuntime()
    one, runtime.hold = pager(runtime, cap, (20, 10, 1)), threading.Event()
    thread = threading.Thread(target=run, args=(one, 0))
    thread.start()
    assert runtime.reached.wait(PATIENCE_S)
    cap.set(5)
    assert cap.used_bytes == 11
    runtime.hold.set()
    thread.join()
    assert (cap.used_bytes, runtime.open) == (0, 0)


def test_a_page_that_no_longer_fits_ends_the_call_that_needs_it():
    cap, runtime = MemoryCap(100), AddingRuntime()
    one = pager(runtime, cap, (20, 10, 1), (50, 10, 1))
    cap.set(30)
    with pytest.raises(PlanRetired):
        run(one, 0, 1)
    assert run(one, 0) == 1
    cap.set(15)
    assert run(one, 0) == 1  # it is loaded, and takes 11
    cap.set(10)
    with pytest.raises(PlanRetired):
        run(one, 0)
    assert cap.used_bytes <= 10


def test_a_call_that_waits_for_room_ends_when_the_cap_sinks_below_its_page():
    cap, runtime = MemoryCap(60), AddingRuntime()
    cap.take(20)
    one = pager(runtime, cap, (50, 10, 1))
    failures = []

    def call():
        try:
            run(one, 0)
        except PlanRetired as error:
            failures.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    cap.set(40)
    thread.join(PATIENCE_S)
    assert len(failures) == 1


def test_a_pager_that_is_dropped_returns_its_room():
    cap, runtime = MemoryCap(100), AddingRuntime()
    one = pager(runtime, cap, (20, 10, 1))
    run(one, 0)
    del one
    assert (cap.used_bytes, runtime.open) == (0, 0)


def test_the_last_call_frees_what_is_retired():
    calls, freed = RunningCalls(), []
    with calls:
        with calls:
            calls.retire(lambda: freed.append(True))
        assert not freed
    assert freed == [True]
    with pytest.raises(PlanRetired), calls:
        pass


def test_without_calls_it_is_freed_at_once():
    calls, freed = RunningCalls(), []
    calls.retire(lambda: freed.append(True))
    assert freed == [True]
