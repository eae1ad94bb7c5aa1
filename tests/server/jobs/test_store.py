from __future__ import annotations

import threading

import pytest

from server.errors import NotFoundError, QueueFullError
from server.jobs.job_request import JobRequest
from server.jobs.leases import Leases
from server.jobs.store import JobStore, State


def request(name="a"):
    return JobRequest(name=name, model="zoo:x", data="d", validation="v", recipe={"steps": 1, "flip": False})


@pytest.fixture
def store(database, clock):
    return JobStore(database, now=clock)


@pytest.fixture
def leases(database, clock):
    return Leases(database, "here", now=clock)


def take(leases):
    job, _ = leases.take()
    return job


def add(store, job_id, name="a", max_queued=10):
    return store.add(job_id, request(name), client="me", weights_sha256=None, max_queued=max_queued)


def test_a_job_is_kept_as_it_was_asked_for(store, new_database):
    added = store.add("1", request(), client="me", weights_sha256="ab", max_queued=10)
    assert JobStore(new_database()).find("1") == added
    assert (added.state, added.request, added.client, added.weights_sha256) == (State.QUEUED, request(), "me", "ab")
    assert added.created == "2026-05-01T12:00:00.000+00:00"
    assert (added.version, added.worker, added.error, added.started, added.finished) == (None,) * 5


def test_a_job_that_is_done(store, leases, clock):
    add(store, "1")
    clock.forward(seconds=1)
    job = take(leases)
    assert store.note_worker(job, "17 boot/5")
    clock.forward(seconds=1)
    assert store.finish(job, "ff")
    job = store.find("1")
    assert (job.state, job.version, job.digest, job.worker, job.error) == (State.DONE, 1, "ff", None, None)
    assert [time[17:19] for time in (job.created, job.started, job.finished)] == ["00", "01", "02"]


def test_a_job_that_failed_says_why(store, leases):
    add(store, "1")
    assert store.fail(take(leases), "no\0 data", "bring some")
    job = store.find("1")
    assert (job.state, job.error, job.hint) == (State.FAILED, "no\N{REPLACEMENT CHARACTER} data", "bring some")


def test_a_job_that_goes_on_with_the_next_server_keeps_its_version_and_when_it_began(store, leases, clock):
    add(store, "1")
    job = take(leases)
    assert leases.give_back(job)
    clock.forward(hours=1)
    again = take(leases)
    assert (again.version, again.started, again.attempt) == (1, job.started, 2)


def test_only_what_may_follow_follows(store, leases):
    job = add(store, "1")
    assert not store.finish(job, "ff")
    assert not store.fail(job, "no data")
    assert not store.mark_published("1")
    assert store.cancel("1")
    assert not store.cancel("1")
    assert leases.take() is None
    assert not leases.give_back(job)
    assert store.find("1").state is State.CANCELLED
    assert not store.cancel("unknown")


def test_of_those_who_end_a_job_one_wins(store, leases):
    add(store, "1")
    job = take(leases)
    won, threads = [], []
    for end in (lambda: store.cancel("1"), lambda: store.finish(job, "ff")) * 4:
        threads.append(threading.Thread(target=lambda end=end: won.append(end())))
        threads[-1].start()
    for thread in threads:
        thread.join()
    assert won.count(True) == 1


def test_only_so_many_wait(store, leases):
    add(store, "1", max_queued=2)
    add(store, "2", max_queued=2)
    with pytest.raises(QueueFullError) as caught:
        add(store, "3", max_queued=2)
    assert (caught.value.status, caught.value.retry_after_s) == (503, 60)
    with pytest.raises(QueueFullError):
        store.require_place(2)
    take(leases)  # what runs does not wait
    store.require_place(2)
    add(store, "3", max_queued=2)


def test_jobs_are_listed_from_either_end(store):
    for job_id in "123":
        add(store, job_id)
    assert [job.id for job in store.latest(2)] == ["3", "2"]
    assert [job.id for job in store.in_state(State.QUEUED)] == ["1", "2", "3"]
    assert store.ids() == {"1", "2", "3"}


def test_a_client_sees_its_own_jobs(store):
    add(store, "1")
    store.add("2", request(), client="other", weights_sha256=None, max_queued=9)
    assert [job.id for job in store.latest(9, client="other")] == ["2"]
    assert [job.id for job in store.latest(9)] == ["2", "1"]
    assert store.find("2").private_name == "jobs/other/a"


def test_a_publication_is_noted_and_then_marked(store, leases):
    add(store, "1")
    store.finish(take(leases), "ff")
    assert store.note_publication("1", name="b", version=4, digest="ee", by="boss")
    noted = store.find("1")
    assert (noted.published_name, noted.published_version, noted.published_by) == ("b", 4, "boss")
    assert (noted.digest, noted.published) == ("ee", None)
    assert store.mark_published("1")
    assert store.find("1").published == "2026-05-01T12:00:00.000+00:00"


def test_many_jobs_of_one_client_do_not_push_out_those_of_another(store):
    store.add("0", request(), client="other", weights_sha256=None, max_queued=9)
    for job_id in "123":
        add(store, job_id)
    for job_id in "0123":
        store.cancel(job_id)
    assert sorted(store.forget_old(1)) == ["1", "2"]


def test_the_oldest_of_those_that_are_over_are_forgotten(store):
    for job_id in "1234":
        add(store, job_id)
    for job_id in "134":
        store.cancel(job_id)
    assert sorted(store.forget_old(1)) == ["1", "3"]
    assert store.ids() == {"2", "4"}


def test_an_unknown_job_is_not_found(store):
    with pytest.raises(NotFoundError):
        store.find("../x")
