from __future__ import annotations

import threading
from itertools import permutations

import pytest
import sqlalchemy as sa

from server.fleet.filling import Filling, count_again, devices_with_lines
from server.fleet.listing import DeviceFilter, Order
from server.state.tables import FLEET_DEVICE_DAYS, FLEET_PERIODS


def over(log_line, minute):
    return log_line(minute, "adapted", measured_ms=9.0)


def failed(log_line, minute):
    return {**log_line(minute), "event": {"event": "switch_failed", "subnet": "o0", "failure": "no memory"}}


def test_devices_count_once_in_an_hour_and_in_a_day(fleet, log_line, clock):
    fleet.send("a", over(log_line, 1), over(log_line, 2), over(log_line, 63))
    fleet.send("b", over(log_line, 5))
    clock.forward(hours=1)
    fleet.send("a", failed(log_line, 64))
    hours = fleet.store.periods("hour", since="2026-05-01")
    assert hours == {
        "2026-05-01T00": {"over_budget": 2},
        "2026-05-01T01": {"over_budget": 1, "switch": 1},
        "2026-05-01T12": {"seen": 2},
        "2026-05-01T13": {"seen": 1},
    }
    assert fleet.store.periods("day", since="2026-05-01") == {"2026-05-01": {"over_budget": 2, "switch": 1, "seen": 2}}


def test_lines_that_come_again_change_nothing(fleet, log_line):
    lines = [log_line(1), over(log_line, 2), failed(log_line, 3)]
    fleet.send("a", *lines)
    before = fleet.rows()
    fleet.send("a", *lines, lines[0])
    fleet.send("a")
    assert fleet.rows() == before
    assert fleet.store.device("a").lines == 3


def test_the_order_of_uploads_does_not_matter(new_fleet, log_line):
    fleet = new_fleet()
    bodies = [[over(log_line, 1), log_line(70)], [failed(log_line, 30), log_line(2, "adapted")], [log_line(3)]]
    found = []
    for order in permutations(bodies):
        fleet.forget()
        fleet.logs.add("other", [])
        name = f"device-{len(found)}"
        for body in order:
            fleet.send(name, *body)
        rows = {kind: [row[1:] if kind != "periods" else row for row in rows] for kind, rows in fleet.rows().items()}
        found.append(rows)
    assert all(rows == found[0] for rows in found)


def test_counting_again_from_stored_lines_gives_what_came_step_by_step(fleet, log_line, clock):
    fleet.send("a", over(log_line, 1), log_line(2))
    clock.forward(hours=30)
    fleet.send("a", failed(log_line, 700), {**log_line(0), "time": "2031-01-01T00:00:00.000+00:00", "bundle": "new"})
    fleet.send("b", log_line(8))
    clock.forward(minutes=90)
    fleet.send("a", over(log_line, 3))
    before = fleet.rows()
    for device in ("a", "b"):
        count_again(fleet.database, fleet.aggregates, device)
    assert fleet.rows() == before
    assert devices_with_lines(fleet.database) == ["a", "b"]
    fleet.forget()
    assert devices_with_lines(fleet.database, uncounted=True) == ["a", "b"]
    filling = Filling(fleet.database, fleet.aggregates)
    filling._fill()
    assert fleet.rows() == before
    assert devices_with_lines(fleet.database, uncounted=True) == []
    assert filling.devices_left == 0


def test_a_device_of_an_older_server_is_counted_whole_with_its_next_line(fleet, log_line):
    fleet.send("a", over(log_line, 1), log_line(2))
    fleet.forget()
    fleet.send("a", log_line(3))
    assert fleet.store.device("a").lines == 3
    assert fleet.store.periods("day", since="2026")["2026-05-01"]["over_budget"] == 1


def test_lines_that_retention_drops_stay_counted(new_fleet, log_line):
    fleet = new_fleet(keep_lines=2)
    fleet.send("a", failed(log_line, 1), *(log_line(minute) for minute in range(2, 9)))
    before = fleet.rows()
    assert fleet.store.device("a").lines == 8
    assert fleet.store.device("a").failure == "switch"
    count_again(fleet.database, fleet.aggregates, "a")
    assert fleet.rows() == before


def test_a_clock_that_is_ahead_counts_with_the_time_of_arrival(fleet, log_line):
    fleet.send("a", {**over(log_line, 1), "time": "2040-01-01T00:00:00+00:00"})
    assert fleet.store.device("a").line_time == "2026-05-01T12:00:00.000+00:00"
    assert fleet.store.periods("day", since="2026") == {"2026-05-01": {"seen": 1, "over_budget": 1}}


def test_days_are_kept_for_ninety(fleet, log_line, clock):
    fleet.send("a", over(log_line, 1))
    clock.forward(days=91)
    fleet.send("a", log_line(2))
    assert fleet.store.periods("day", since="2026") == {"2026-07-31": {"seen": 1}}
    with fleet.database.reading() as connection:
        assert connection.execute(sa.select(FLEET_DEVICE_DAYS.c.day)).scalars().all() == ["2026-07-31"]
        assert set(connection.execute(sa.select(FLEET_PERIODS.c.period)).scalars()) == {"2026-07-31", "2026-07-31T12"}


def test_what_cannot_be_stored_is_not_counted(fleet, log_line):
    def failing(connection, device, lines):
        raise RuntimeError

    fleet.logs._observers = [*fleet.logs._observers, failing]
    with pytest.raises(RuntimeError):
        fleet.send("a", over(log_line, 1))
    assert fleet.rows() == {"devices": [], "days": [], "periods": []}


def test_devices_may_send_at_once_to_any_replica(new_fleet, log_line):
    replicas, failures = [new_fleet() for _ in range(3)], []

    def send(number):
        try:
            for minute in range(6):
                replicas[number % 3].send(f"device-{number % 4}", over(log_line, 10 * minute), failed(log_line, minute))
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=send, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    store = replicas[0].store
    assert store.periods("day", since="2026") == {"2026-05-01": {"over_budget": 4, "switch": 4, "seen": 4}}
    assert [state.lines for state in store.devices(DeviceFilter(), Order(), most=9)[0]] == [12] * 4


def test_a_thread_counts_what_is_missing_and_ends(fleet, log_line):
    fleet.send("a", log_line(1))
    fleet.forget()
    filling = Filling(fleet.database, fleet.aggregates)
    filling.start()
    filling._thread.join(20)
    filling.close()
    assert fleet.store.device_count() == 1
