from __future__ import annotations

import threading
from collections import Counter

import pytest

from server.state.log_store import Ingested, LogStore, check_lines


@pytest.fixture
def lines(log_line, ndjson):
    """Lines of the minutes, checked."""
    return lambda *minutes: check_lines(ndjson(*(log_line(minute) for minute in minutes)), max_line_bytes=64_000)


@pytest.fixture
def store(database, clock):
    return LogStore(database, keep_lines=5, now=clock)


def minutes(store):
    return [int(line.time[14:16]) for line in store.latest(100)]


def test_the_same_line_is_stored_once_per_device(store, lines):
    assert store.add("a", lines(1, 2)) == Ingested(2, 0)
    assert store.add("a", lines(2, 3)) == Ingested(1, 1)
    assert store.add("b", lines(2)) == Ingested(1, 0)
    assert store.add("b", lines(4, 4)) == Ingested(1, 1)
    assert store.add("a", []) == Ingested(0, 0)
    assert Counter(line.device for line in store.latest(99)) == {"a": 3, "b": 2}


def test_the_oldest_lines_go(store, lines):
    store.add("a", lines(*range(4)))
    store.add("b", lines(0))
    store.add("a", lines(*range(10, 14)))
    assert minutes(store) == [13, 12, 11, 10, 3, 0]


def test_lines_that_went_do_not_come_in_again(store, lines):
    store.add("a", lines(*range(20)))
    assert store.add("a", lines(*range(20))) == Ingested(0, 20, dropped=15)
    assert minutes(store) == [19, 18, 17, 16, 15]
    assert store.add("a", lines(*range(21))) == Ingested(1, 20, dropped=16)
    assert minutes(store) == [20, 19, 18, 17, 16]


def test_devices_may_send_at_once_to_any_replica(new_database, clock, lines):
    stores = [LogStore(new_database(), keep_lines=5, now=clock) for _ in range(3)]
    bodies = [lines(*range(start, start + 3)) for start in (0, 1, 2)]
    results = []

    def send(body):
        for number in range(6):
            results.append(stores[number % 3].add("a", body))

    threads = [threading.Thread(target=send, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert minutes(stores[0]) == [4, 3, 2, 1, 0]
    assert sum(result.accepted for result in results) == 5


def test_lines_from_the_future_push_out_only_what_arrived_first_and_count_as_of_now(store, log_line, ndjson, lines):
    store.add("a", lines(1, 2, 3))
    future = [{**log_line(n), "time": f"9999-01-01T00:{n:02d}:00.000+00:00"} for n in range(4)]
    assert store.add("a", check_lines(ndjson(*future), max_line_bytes=64_000)) == Ingested(4, 0, dropped=2)
    assert store.add("a", lines(4, 5)) == Ingested(2, 0, dropped=4)
    assert {line.time[:16] for line in store.latest(9)} == {"2026-05-01T00:04", "2026-05-01T00:05", "2026-05-01T12:00"}


def test_a_clock_that_is_a_little_fast_is_believed(store, log_line, ndjson):
    line = {**log_line(), "time": "2026-05-01T12:04:00.000+00:00"}
    store.add("a", check_lines(ndjson(line), max_line_bytes=64_000))
    assert store.latest(1)[0].time == "2026-05-01T12:04:00.000+00:00"


def test_an_old_line_that_was_never_sent_is_no_duplicate(store, lines):
    store.add("a", lines(*range(10, 20)))
    assert store.add("a", lines(1)) == Ingested(1, 0, dropped=6)


def test_retention_of_one_device_leaves_the_others_alone(store, lines):
    store.add("a", lines(1, 2))
    assert store.add("b", lines(*range(20))).dropped == 15
    assert store.add("a", []).dropped == 0
    assert Counter(line.device for line in store.latest(99)) == {"a": 2, "b": 5}


def test_digests_of_dropped_lines_are_bounded(database, clock, lines):
    store = LogStore(database, keep_lines=1, keep_digests=2, now=clock)
    store.add("a", lines(*range(5)))
    assert store.add("a", lines(2, 3)).duplicates == 2
    assert store.add("a", lines(0)).accepted == 1


def test_observers_see_each_new_line_once_in_the_transaction_that_stores_it(database, clock, lines):
    seen = []
    store = LogStore(
        database, keep_lines=5, observers=[lambda _, device, new: seen.append((device, len(new)))], now=clock
    )
    store.add("a", lines(1, 2, 2))
    store.add("a", lines(1, 2))
    store.add("a", lines(2, 3))
    assert seen == [("a", 2), ("a", 1)]


def test_lines_whose_observer_fails_are_not_stored(database, clock, lines):
    def fail(*_):
        raise RuntimeError("no")

    store = LogStore(database, keep_lines=5, observers=[fail], now=clock)
    with pytest.raises(RuntimeError):
        store.add("a", lines(1))
    assert LogStore(database, keep_lines=5, now=clock).latest(10) == []
