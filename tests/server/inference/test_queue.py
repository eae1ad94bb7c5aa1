from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from device_sdk.errors import RuntimeFailedError
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
        self.beside = 0  # batches that had one core
        self.failure = None

    def run(self, inputs):
        self.batches.append(len(inputs[0]))
        self.started.release()
        assert self.gate.wait(PATIENCE_S)
        if self.failure:
            raise self.failure
        return [2 * inputs[0], inputs[0].sum(axis=1)]

    def run_beside(self, inputs):
        self.beside += 1
        return self.run(inputs)

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


def test_a_lone_request_runs_on_its_own_thread(make):
    threads = []

    class Noting(Doubling):
        def run(self, inputs):
            threads.append(threading.get_ident())
            return super().run(inputs)

    run(make(max_batch=2), Noting(), *range(5))
    assert threads == [threading.get_ident()] * 3


def test_a_leader_whose_rows_are_complete_leaves_the_others_to_the_next(make, model):
    queue = make(limit=20, max_batch=1)
    model.gate.clear()
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(run, queue, model, 0)
        assert model.started.acquire(timeout=PATIENCE_S)
        others = [pool.submit(run, queue, model, value) for value in (1, 2, 3)]
        wait_until(lambda: len(queue._waiting) == 3)
        model.gate.set()
        assert first.result(PATIENCE_S)[0][0, 0] == 0
        assert [other.result(PATIENCE_S)[0][0, 0] for other in others] == [2, 4, 6]
    assert queue._leaders == 0


def test_with_a_request_for_each_place_batches_run_side_by_side(make, model):
    queue = make(places=2)
    model.gate.clear()
    with ThreadPoolExecutor(2) as pool:
        futures = []
        for value in (1, 2):  # one after the other: both at once would be one batch
            futures.append(pool.submit(run, queue, model, value))
            assert model.started.acquire(timeout=PATIENCE_S)
        model.gate.set()
        assert [future.result(PATIENCE_S)[0][0, 0] for future in futures] == [2, 4]
    assert model.beside == 1  # the first was alone


def test_with_fewer_requests_than_places_one_batch_has_all_cores(make, model):
    queue = make(places=3)
    model.gate.clear()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(run, queue, model, 1)
        assert model.started.acquire(timeout=PATIENCE_S)
        second = pool.submit(run, queue, model, 2)
        wait_until(lambda: len(queue._waiting) == 1)
        assert len(model.batches) == 1
        model.gate.set()
        assert [future.result(PATIENCE_S)[0][0, 0] for future in (first, second)] == [2, 4]
    assert (model.batches, model.beside) == ([1, 1], 0)


def test_a_large_request_that_is_alone_has_all_cores(make, model):
    run(make(places=2, max_batch=4), model, *range(8))
    assert (model.batches, model.beside) == ([4, 4], 0)


def test_places_share_what_waits(make, model):
    queue = make(limit=20, max_batch=16, places=2)
    model.gate.clear()
    with ThreadPoolExecutor(10) as pool:
        futures = []
        for value in (0, 1):
            futures.append(pool.submit(run, queue, model, value))
            assert model.started.acquire(timeout=PATIENCE_S)
        futures += [pool.submit(run, queue, model, value) for value in range(2, 10)]
        wait_until(lambda: len(queue._waiting) == 8)
        model.gate.set()
        assert [future.result(PATIENCE_S)[0][0, 0] for future in futures] == [2 * value for value in range(10)]
    assert sum(model.batches) == 10
    assert max(model.batches) <= 4  # half of those that waited


class Noting(Doubling):
    """Notes the first value of each row that runs, of all models that share ``order``."""

    def __init__(self, order):
        super().__init__()
        self.order = order

    def run(self, inputs):
        result = super().run(inputs)
        self.order.append(inputs[0][:, 0].tolist())
        return result


def test_a_large_request_and_small_ones_take_turns(make):
    queue, order = make(limit=8, max_batch=4), []
    model = Noting(order)
    model.gate.clear()
    with ThreadPoolExecutor(8) as pool:
        large = pool.submit(run, queue, model, *range(100))
        assert model.started.acquire(timeout=PATIENCE_S)
        small = [pool.submit(run, queue, model, value) for value in range(100, 105)]
        wait_until(lambda: len(queue._waiting) == 6)
        model.gate.set()
        for value, future in enumerate(small, start=100):
            assert future.result(PATIENCE_S)[0][0, 0] == 2 * value
        np.testing.assert_array_equal(large.result(PATIENCE_S)[0], 2 * rows(*range(100)))
    assert {value for batch in order[:4] for value in batch} >= set(range(100, 105))  # two and two, then one
    assert order[1][:2] == [4.0, 5.0]  # the large one goes on beside them


def test_large_requests_of_two_models_take_turns(make):
    queue, order = make(max_batch=4), []
    one, other = Noting(order), Noting(order)
    one.gate.clear()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(run, queue, one, *range(16))
        assert one.started.acquire(timeout=PATIENCE_S)
        second = pool.submit(run, queue, other, *range(100, 108))
        wait_until(lambda: len(queue._waiting) == 2)
        one.gate.set()
        second.result(PATIENCE_S)
        first.result(PATIENCE_S)
    assert [batch[0] for batch in order] == [0, 4, 100, 8, 104, 12]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.integers(1, 9), st.integers(1, 3))
def test_every_request_gets_exactly_its_own_rows(sizes, max_batch, places):
    queue, model = BatchQueue(limit=20, max_batch=max_batch, places=places), Doubling()
    try:
        with ThreadPoolExecutor(len(sizes)) as pool:
            asked = [[100 * number + row for row in range(size)] for number, size in enumerate(sizes)]
            futures = [pool.submit(run, queue, model, *values) for values in asked]
            for values, future in zip(asked, futures, strict=True):
                doubled, summed = future.result(PATIENCE_S)
                np.testing.assert_array_equal(doubled, 2 * rows(*values))
                np.testing.assert_array_equal(summed, 2 * np.array(values, np.float32))
    finally:
        queue.close()
    assert sum(model.batches) == sum(sizes)
    assert max(model.batches) <= max_batch


def test_a_model_that_returns_another_number_of_rows_answers_nobody(make):
    class Wrong(Doubling):
        def run(self, inputs):
            return [super().run(inputs)[0][:-1]]

    with pytest.raises(RuntimeFailedError, match="1 rows for 2"):
        run(make(), Wrong(), 1, 2)


def test_what_is_no_longer_wanted_is_not_run(make, model):
    queue = make(ask_after_s=0)
    model.gate.clear()
    gone = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(run, queue, model, 1)
        assert model.started.acquire(timeout=PATIENCE_S)
        other = pool.submit(queue.run, model, [rows(2)], timeout_s=PATIENCE_S, abandoned=gone.is_set)
        wait_until(lambda: len(queue._waiting) == 1)
        gone.set()
        model.gate.set()
        first.result(PATIENCE_S)
        with pytest.raises(OverloadedError, match="gone"):
            other.result(PATIENCE_S)
    assert model.batches == [1]


def test_a_large_request_whose_time_is_up_runs_no_further(make, model):
    queue = make(max_batch=4)
    model.gate.clear()
    with ThreadPoolExecutor(1) as pool:
        large = pool.submit(run, queue, model, *range(100), timeout_s=0.05)
        assert model.started.acquire(timeout=PATIENCE_S)
        time.sleep(0.1)
        model.gate.set()
        with pytest.raises(OverloadedError, match="time of the request is up"):
            large.result(PATIENCE_S)
    run(queue, model, 1)
    assert model.batches == [4, 1]
