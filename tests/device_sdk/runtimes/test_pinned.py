from __future__ import annotations

import os
import threading
import time

import numpy as np
import pytest

from device_sdk.bundles.runnable import golden_inputs
from device_sdk.errors import RuntimeFailedError, UsageError
from device_sdk.runtimes.onnx_runtime import OnnxRuntime
from device_sdk.runtimes.pinned import AFFINITIES, affinity_config, on_cores, pinned
from device_sdk.runtimes.port import StopSignal

HERE = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
pins = pytest.mark.skipif(not HERE, reason="this system pins no threads")
several = pytest.mark.skipif(len(HERE) < 2, reason="needs two cores")
ABSENT = 1023  # a core that no machine of these tests has


class Watched:
    """A stretch that notes where it runs."""

    def __init__(self, *, fails=False):
        self.seen, self.closed, self._fails = [], False, fails

    def run(self, inputs):
        self.seen.append(os.sched_getaffinity(0))
        if self._fails:
            raise RuntimeFailedError("it failed")
        return list(inputs)

    def run_until(self, inputs, stop):
        return None if stop.is_set else self.run(inputs)

    def close(self):
        self.closed = True


@pytest.mark.parametrize(
    ("cores", "threads", "text"), [((4, 5), 3, "5,6;5,6"), ({0}, 2, "1"), ((7, 6), 2, "7,8"), ((0, 1), 1, "")]
)
def test_the_pool_has_a_thread_less_and_cores_count_from_1(cores, threads, text):
    assert affinity_config(cores, threads) == text


def test_no_cores_at_all_are_refused():
    with pytest.raises(UsageError, match="no core"):
        affinity_config((), 2)
    with pytest.raises(UsageError, match="no core"):
        pinned(Watched(), ())


@several
def test_a_run_is_on_the_cores_and_the_thread_goes_back():
    inner, core = Watched(), max(HERE)
    stretch, value = pinned(inner, [core]), [np.zeros(1)]
    assert stretch.run(value) == value
    assert stretch.run_until(value, StopSignal()) == value
    assert inner.seen == [{core}, {core}]
    assert os.sched_getaffinity(0) == HERE
    assert stretch.why_not is None


@several
def test_the_thread_goes_back_after_an_error_too():
    stretch = pinned(Watched(fails=True), [max(HERE)])
    with pytest.raises(RuntimeFailedError, match="it failed"):
        stretch.run([])
    with pytest.raises(RuntimeFailedError, match="it failed"):
        stretch.run_until([], StopSignal())
    assert os.sched_getaffinity(0) == HERE


@several
def test_other_threads_stay_where_they_are():
    inner, elsewhere = Watched(), []

    class Asking(Watched):
        def run(self, inputs):
            other = threading.Thread(target=lambda: elsewhere.append(os.sched_getaffinity(main)))
            other.start()
            other.join()
            return inner.run(inputs)

    main = threading.main_thread().native_id
    caller = threading.Thread(target=lambda: pinned(Asking(), [max(HERE)]).run([]))
    caller.start()
    caller.join()
    assert (inner.seen, elsewhere) == ([{max(HERE)}], [HERE])


@pins
def test_cores_that_are_not_there_leave_the_run_where_it_is_and_say_so():
    inner = Watched()
    stretch = pinned(inner, [ABSENT])
    stretch.run([])
    assert inner.seen == [HERE]
    assert stretch.why_not == "none of the cores is usable"


@pins
def test_a_stop_and_closing_reach_the_stretch():
    inner, stop = Watched(), StopSignal()
    stretch = pinned(inner, HERE)
    stop.set()
    assert stretch.run_until([], stop) is None
    stretch.close()
    assert inner.closed
    assert stretch.nodes_by_provider == {}


@several
def test_threads_that_begin_within_a_block_inherit_its_cores():
    seen = []
    with on_cores([min(HERE)]) as why_not:
        begun = threading.Thread(target=lambda: seen.append(os.sched_getaffinity(0)))
        begun.start()
        begun.join()
    assert (why_not, seen, os.sched_getaffinity(0)) == (None, [{min(HERE)}], HERE)


@several
def test_onnx_runtime_takes_the_entry_and_answers_as_before(bundle):
    class Placed(OnnxRuntime):
        def session_options(self):
            options = super().session_options()
            options.add_session_config_entry(AFFINITIES, affinity_config(HERE, 2))
            return options

    stretch = bundle.stretch(bundle.supernet.original.edges)
    inputs = golden_inputs(bundle.supernet.cut_points[0], seed=0, batch=2)
    expected = OnnxRuntime(threads=2).load(stretch).run(inputs)[-1]
    found = pinned(Placed(threads=2).load(stretch), HERE).run(inputs)[-1]
    assert np.allclose(found, expected, rtol=1e-5, atol=1e-6)


@several
def test_the_threads_of_a_pool_are_on_the_cores_that_the_entry_names(bundle):
    def threads():
        return set(map(int, os.listdir("/proc/self/task")))

    class Placed(OnnxRuntime):
        def session_options(self):
            options = super().session_options()
            options.add_session_config_entry(AFFINITIES, affinity_config([core], 3))
            return options

    core, before = max(HERE), threads()
    session = Placed(threads=3).load(bundle.stretch(bundle.supernet.original.edges))
    pool = threads() - before
    deadline = time.monotonic() + 60
    while {frozenset(os.sched_getaffinity(one)) for one in pool} != {frozenset([core])}:
        assert time.monotonic() < deadline, "the pool's threads are elsewhere"
        time.sleep(0.005)  # they place themselves when they begin
    assert len(pool) == 2
    session.close()
