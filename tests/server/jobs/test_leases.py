"""Who runs a job, on SQLite and on PostgreSQL; the clock is the test's."""

from __future__ import annotations

import threading

import pytest

from server.jobs.job_request import JobRequest
from server.jobs.leases import LEASE_S, MOST_LOST, Leases, data_of_machines
from server.jobs.store import JobStore, State


class Seconds:
    """The database's clock."""

    time_s = 1000.0

    def __call__(self, connection):
        return self.time_s


@pytest.fixture
def seconds():
    return Seconds()


@pytest.fixture
def machine(database, clock, seconds):
    return lambda name: Leases(database, name, now=clock, now_s=seconds)


@pytest.fixture
def store(database, clock):
    return JobStore(database, now=clock)


@pytest.fixture
def add(store):
    numbers = iter(range(100))

    def one(**changes):
        request = JobRequest(**{"name": "a", "model": "zoo:x", "data": "d", "validation": "v"} | changes)
        return store.add(f"{next(numbers)}", request, client="me", weights_sha256=None, max_queued=100).id

    return one


def taken(leases, **has):
    found = leases.take(**has)
    return None if found is None else found[0]


def test_a_job_is_one_machines(machine, add):
    job_id = add()
    a, b = machine("a"), machine("b")
    job = taken(a)
    assert (job.id, job.state, job.attempt, job.owner) == (job_id, State.RUNNING, 1, "a")
    assert taken(b) is None


def test_of_many_that_reach_for_jobs_each_gets_another(machine, add):
    expected = {add() for _ in range(6)}
    got, threads = [], []
    for name in "abcdef":
        threads.append(threading.Thread(target=lambda name=name: got.append(taken(machine(name)))))
        threads[-1].start()
    for thread in threads:
        thread.join()
    rest = taken(machine("g"))
    found = [job.id for job in (*got, rest) if job is not None]
    assert len(found) == len(set(found))
    while (more := taken(machine("h"))) is not None:
        found.append(more.id)
    assert sorted(found) == sorted(expected)


def test_a_lease_that_is_renewed_does_not_run_out(machine, add, store, seconds):
    add()
    a, b = machine("a"), machine("b")
    job = taken(a)
    for _ in range(3):
        seconds.time_s += LEASE_S - 1
        assert a.renew(job, progress='{"task": "x"}', log="line\n")
        assert taken(b) is None
    assert store.find(job.id).progress == '{"task": "x"}'
    assert store.log_of(job.id) == "line\n"
    a.renew(job)
    assert store.log_of(job.id) == "line\n"


def test_who_lost_a_job_changes_nothing_any_more(machine, add, store, seconds):
    add()
    a, b = machine("a"), machine("b")
    old = taken(a)
    a.renew(old, progress="{}")
    seconds.time_s += LEASE_S + 1
    new, before = b.take()
    assert (new.id, new.attempt, new.owner, new.progress, before) == (old.id, 2, "b", None, "a")
    refused = (
        a.renew(old),
        a.give_back(old),
        store.note_worker(old, "17 x"),
        store.note_checkpoint(old, "[]"),
        store.finish(old, "ff", bundle="[]"),
        store.fail(old, "x"),
    )
    assert not any(refused)
    assert store.find(old.id) == new
    assert b.renew(new)


def test_a_machine_that_was_away_keeps_a_job_that_nobody_took(machine, add, seconds):
    add()
    a = machine("a")
    job = taken(a)
    seconds.time_s += 100 * LEASE_S
    assert a.renew(job)
    assert taken(machine("b")) is None


def test_a_machine_that_lost_a_job_and_takes_it_again_has_another_lease(machine, add, store, seconds):
    add()
    a = machine("a")
    old = taken(a)
    seconds.time_s += LEASE_S + 1
    assert taken(a, busy={old.id}) is None  # its process may still be ending
    new = taken(a)
    assert not store.finish(old, "ff")
    assert store.finish(new, "ff")


def test_a_job_that_stops_machine_after_machine_fails(machine, add, store, seconds):
    job_id, other = add(), add()
    for number in range(MOST_LOST):
        assert taken(machine(f"m{number}")).id == job_id
        seconds.time_s += LEASE_S + 1
    assert taken(machine("next")).id == other
    job = store.find(job_id)
    assert (job.state, job.error) == (State.FAILED, "3 machines in a row stopped while they ran the job")
    assert "memory" in job.hint


def test_a_machine_that_gives_a_job_back_is_not_lost(machine, add, store):
    job_id = add()
    for number in range(MOST_LOST + 1):
        leases = machine(f"m{number}")
        assert leases.give_back(taken(leases))
    assert store.find(job_id).state is State.QUEUED


def test_a_machine_that_is_started_again_counts_as_lost(machine, add, store):
    job_id, a = add(), machine("a")
    for _ in range(MOST_LOST):
        taken(a)
        [mine] = a.mine()
        a.give_back(mine, lost=True)
    assert taken(a) is None
    assert store.find(job_id).state is State.FAILED


def test_higher_priorities_are_first_and_equal_ones_in_order(machine, add):
    low, first, second, high = add(priority=-1), add(), add(), add(priority=5)
    a = machine("a")
    assert [taken(a).id for _ in range(4)] == [high, first, second, low]


def test_a_job_goes_to_a_machine_that_has_what_it_needs(machine, add):
    tagged, other_data, plain = add(needs=("gpu", "big")), add(data="faces"), add()
    a = machine("a")
    assert taken(a, tags=["gpu"], data={"d", "v"}).id == plain
    assert taken(a, tags=["gpu"], data={"d", "v"}) is None
    assert taken(a, data={"d", "v", "faces"}).id == other_data
    assert taken(a, tags=["big", "gpu", "x"]).id == tagged


def test_a_cancelled_job_is_not_kept(machine, add, store):
    add()
    a = machine("a")
    job = taken(a)
    a.renew(job, log="secret")
    assert store.cancel(job.id)
    assert not a.renew(job, log="more")
    assert store.log_of(job.id) == ""
    assert not store.finish(job, "ff")


def test_one_server_publishes_a_bundle(machine, add, store, seconds):
    add()
    a, b = machine("a"), machine("b")
    job = taken(a)
    assert not a.take_publication(job.id)  # it is not done
    store.finish(job, "ff", bundle="[]")
    assert a.take_publication(job.id)
    assert a.take_publication(job.id)
    assert not b.take_publication(job.id)
    a.end_publication(job.id)
    assert b.take_publication(job.id)
    seconds.time_s += 601  # it was killed
    assert a.take_publication(job.id)


def test_machines_say_what_data_they_have_until_they_are_gone_for_a_day(machine, database, seconds):
    machine("a").announce(tags=["gpu"], data=["d", "v"])
    machine("b").announce(tags=[], data=["d", "w"])
    assert data_of_machines(database) == {"d", "v", "w"}
    machine("b").announce(tags=[], data=["w"])
    assert data_of_machines(database) == {"d", "v", "w"}
    seconds.time_s += 86_401
    machine("b").announce(tags=[], data=["w"])
    assert data_of_machines(database) == {"w"}
