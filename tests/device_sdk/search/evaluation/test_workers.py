from __future__ import annotations

import threading

import pytest

from device_sdk.errors import ClosedError
from device_sdk.search.evaluation.workers import Workers
from device_sdk.search.port import EvaluationStopped


def never() -> bool:
    return False


@pytest.fixture(params=[1, 3])
def workers(request):
    made = Workers(request.param)
    yield made
    made.close()


def test_every_item_is_worked_on_once(workers):
    done, lock = [], threading.Lock()

    def work(item: int) -> None:
        with lock:
            done.append(item)

    workers.each(range(50), work, never)
    assert sorted(done) == list(range(50))


def test_as_many_items_are_worked_on_at_once_as_there_are_workers():
    workers, together = Workers(3), threading.Barrier(3, timeout=30)
    workers.each(range(3), lambda _: together.wait() and None, never)
    workers.close()


def test_one_worker_is_the_calling_thread():
    seen = []
    Workers(1).each([0], lambda _: seen.append(threading.current_thread()), never)
    assert seen == [threading.current_thread()]


def test_a_stop_lets_what_was_begun_end(workers):
    done, asked = [], []

    def stop() -> bool:
        asked.append(None)
        return len(asked) > 5

    with pytest.raises(EvaluationStopped):
        workers.each(range(50), done.append, stop)
    assert sorted(done) == list(range(5))


def test_the_first_failure_ends_the_rest(workers):
    done = []

    def work(item: int) -> None:
        if item == 2:
            raise ValueError("item 2")
        done.append(item)

    with pytest.raises(ValueError, match="item 2"):
        workers.each(range(100), work, never)
    assert len(done) < 100
    workers.each(["again"], lambda _: None, never)


def test_a_closed_one_works_on_nothing(workers):
    workers.close()
    with pytest.raises(ClosedError):
        workers.each([0], lambda _: None, never)
    workers.close()
