"""Why a job waits."""

from __future__ import annotations

import pytest

from server.jobs.job_request import JobRequest
from server.jobs.leases import Leases, Machine, machines
from server.jobs.store import JobStore
from server.jobs.waiting import SEEN_S, jobs_before, why_waiting

GPU = Machine(["gpu", "large"], ["faces"])
PLAIN = Machine([], ["digits"])


def request(*needs, data="digits", priority=0):
    return JobRequest("x", "zoo:x", data, data, {}, priority, needs)


@pytest.mark.parametrize(
    ("asked", "known", "before", "said"),
    [
        (request(), [], 0, "no machine runs jobs now"),
        (request("gpu"), [PLAIN], 0, "has the tags gpu"),
        (request("gpu", "tpu"), [PLAIN, GPU], 0, "has the tags gpu, tpu"),
        (request("gpu"), [PLAIN, GPU], 0, "has the data digits"),
        (request("gpu", data="faces"), [PLAIN, GPU], 0, "it is the next one"),
        (request(), [PLAIN, GPU], 1, "one job is before it"),
        (request(), [PLAIN, GPU], 7, "7 jobs are before it"),
    ],
)
def test_the_reason_is_what_is_missing_or_how_many_are_before(asked, known, before, said):
    assert said in why_waiting(asked, known, before=before)


def test_machines_count_that_were_seen_within_a_minute(database, clock):
    time_s = [1000.0]
    leases = Leases(database, "a", now=clock, now_s=lambda connection: time_s[0])
    leases.announce(tags=["gpu"], data=["digits"])
    assert machines(database, within_s=SEEN_S, now_s=lambda connection: 1059.0) == [Machine(["gpu"], ["digits"])]
    assert machines(database, within_s=SEEN_S, now_s=lambda connection: 1061.0) == []


def test_jobs_of_higher_priority_and_earlier_ones_are_before(database, clock):
    store = JobStore(database, now=clock)
    for name, priority in (("a", 0), ("b", 0), ("c", 5), ("d", 0)):
        store.add(name, request(priority=priority), client="me", weights_sha256=None, max_queued=9)
    assert [jobs_before(database, name) for name in "abcd"] == [1, 2, 0, 3]
    Leases(database, "m", now=clock).take()
    assert [jobs_before(database, name) for name in "abd"] == [0, 1, 2]
