from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest

from server.errors import BusyClientError, OverloadedError
from server.inference.queue import BatchQueue

PATIENCE_S = 10.0


class Doubling:
    """A model that doubles its input and notes its batches; it waits for ``gate``."""

    def __init__(self):
        self.gate = threading.Event()
        self.gate.set()
        self.started = threading.Semaphore(0)
        self.batches = []
        self.failure = None

    def run(self, inputs):
        self.batches.append(len(inputs[0]))
        self.started.release()
        assert self.gate.wait(PATIENCE_S)
        if self.failure:
            raise self.failure
        return [2 * inputs[0], inputs[0].sum(axis=1)]

    def close(self):
        pass


def rows(*values):
    return np.array([[value, value] for value in values], np.float32)


@pytest.fixture
def make():
    with ExitStack() as stack:

        def build(**settings):
            queue = BatchQueue(**{"limit": 8, "max_batch": 4, **settings})
            stack.callback(queue.close)
            return queue

        yield build


@pytest.fixture
def model():
    doubling = Doubling()
    yield doubling
    doubling.gate.set()


def run(queue, model, *values, timeout_s=PATIENCE_S):
    return queue.run(model, [rows(*values)], timeout_s=timeout_s)


def wait_until(condition):
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it never happened")


def test_a_lone_request_is_answered(make, model):
    doubled, summed = run(make(), model, 1, 2)
    np.testing.assert_array_equal(doubled, [[2, 2], [4, 4]])
    np.testing.assert_array_equal(summed, [2, 4])


def test_what_waits_is_run_together_and_everybody_gets_his_own(make, model):
    queue = make(limit=20, max_batch=4)
    model.gate.clear()
    with ThreadPoolExecutor(20) as pool:
        first = pool.submit(run, queue, model, 0)
        assert model.started.acquire(timeout=PATIENCE_S)
        others = [pool.submit(run, queue, model, value) for value in range(1, 11)]
        wait_until(lambda: len(queue._waiting) == 10)
        model.gate.set()
        answers = [future.result(PATIENCE_S)[0][0, 0] for future in (first, *others)]
    assert answers == [2 * value for value in range(11)]
    assert model.batches == [1, 4, 4, 2]


def test_different_models_are_not_mixed(make):
    queue, one, other = make(), Doubling(), Doubling()
    one.gate.clear()
    with ThreadPoolExecutor(5) as pool:
        futures = [pool.submit(run, queue, one, 1)]
        assert one.started.acquire(timeout=PATIENCE_S)
        futures += [pool.submit(run, queue, model, value) for value, model in enumerate((one, other, one, other))]
        wait_until(lambda: len(queue._waiting) == 4)
        one.gate.set()
        assert [future.result(PATIENCE_S)[0][0, 0] for future in futures] == [2, 0, 2, 4, 6]
    assert (sorted(one.batches), other.batches) == ([1, 2], [2])


def test_a_large_request_is_run_in_slices(make, model):
    [doubled, summed] = run(make(max_batch=4), model, *range(10))
    np.testing.assert_array_equal(doubled, 2 * rows(*range(10)))
    assert summed.shape == (10,)
    assert model.batches == [4, 4, 2]


def test_a_full_queue_refuses_and_has_room_again(make):
    queue = make(limit=2)
    with queue.admit("a"), queue.admit("b"):
        assert len(queue) == 2
        with pytest.raises(OverloadedError) as caught, queue.admit("c"):
            pass
        assert caught.value.retry_after_s
    with queue.admit("c"):
        assert len(queue) == 1
    assert len(queue) == 0


def test_one_client_gets_no_more_than_its_share(make):
    queue = make(limit=4, client_share=2)
    with queue.admit("greedy"), queue.admit("greedy"):
        with pytest.raises(BusyClientError), queue.admit("greedy"):
            pass
        with queue.admit("other"):
            pass
    with queue.admit("greedy"):
        pass


def test_a_place_is_given_back_after_an_error(make):
    queue = make(limit=1)
    for _ in range(3):
        with pytest.raises(KeyError), queue.admit("a"):
            raise KeyError
    assert len(queue) == 0


def test_a_failure_is_told_to_all_of_the_batch_and_ends_nothing(make, model):
    queue = make()
    model.failure = ValueError("broken")
    with pytest.raises(ValueError, match="broken"):
        run(queue, model, 1)
    model.failure = None
    assert run(queue, model, 1)[0][0, 0] == 2


def test_who_waited_too_long_is_told_and_not_run(make, model):
    queue = make()
    model.gate.clear()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(run, queue, model, 1)
        assert model.started.acquire(timeout=PATIENCE_S)
        with pytest.raises(OverloadedError, match=r"no answer within 0\.05 s"):
            run(queue, model, 2, timeout_s=0.05)
        model.gate.set()
        first.result(PATIENCE_S)
    run(queue, model, 3)
    assert model.batches == [1, 1]


def test_closing_finishes_what_runs_and_refuses_the_rest(make, model):
    queue = make()
    model.gate.clear()
    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(run, queue, model, 1)
        assert model.started.acquire(timeout=PATIENCE_S)
        waiting = pool.submit(run, queue, model, 2)
        wait_until(lambda: queue._waiting)
        queue.close()
        with pytest.raises(OverloadedError, match="shutting down"):
            waiting.result(PATIENCE_S)
        model.gate.set()
        assert running.result(PATIENCE_S)[0][0, 0] == 2
    with pytest.raises(OverloadedError), queue.admit("a"):
        pass
    with pytest.raises(OverloadedError):
        run(queue, model, 3)
    for worker in queue._workers:
        worker.join(PATIENCE_S)
        assert not worker.is_alive()


def test_several_workers_run_side_by_side(make, model):
    queue = make(workers=2)
    model.gate.clear()
    with ThreadPoolExecutor(2) as pool:
        futures = []
        for value in (1, 2):  # one after the other: both at once would be one batch
            futures.append(pool.submit(run, queue, model, value))
            assert model.started.acquire(timeout=PATIENCE_S)
        model.gate.set()
        assert [future.result(PATIENCE_S)[0][0, 0] for future in futures] == [2, 4]
