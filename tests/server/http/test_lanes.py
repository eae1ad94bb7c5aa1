from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from server.http.lanes import Lane, LaneDispatcher, lane_of


@pytest.mark.parametrize(
    ("path", "lane"),
    [
        ("/health", Lane.QUICK),
        ("/v2/health/ready", Lane.QUICK),
        ("/v2/models/a/infer", Lane.INFERENCE),
        ("/v2/models/a/versions/1/infer", Lane.INFERENCE),
        ("/v1/bundles", Lane.DELIVERY),
        ("/v1/bundles/a/blobs/b", Lane.DELIVERY),
        ("/v1/bundles/a/profile", Lane.OTHER),
        ("/v1/jobs", Lane.OTHER),
        ("/v2/models/a", Lane.OTHER),
        ("/", Lane.OTHER),
        ("", Lane.OTHER),
    ],
)
def test_every_address_has_a_lane(path, lane):
    assert lane_of(path, refused=False) is lane
    assert lane_of(path, refused=True) is Lane.QUICK


class Work:
    """What the dispatcher takes for a connection: it waits until it may end."""

    def __init__(self, path):
        self.requests = [SimpleNamespace(path=path, error=None)]
        self.may_end, self.ended = threading.Event(), threading.Event()

    def service(self):
        assert self.may_end.wait(10)
        self.ended.set()

    def cancel(self):
        pass


def test_a_full_lane_does_not_stop_the_others():
    dispatcher = LaneDispatcher(dict.fromkeys(Lane, 1))
    stuck = [Work("/v2/models/a/infer") for _ in range(3)]
    quick = Work("/health")
    quick.may_end.set()
    try:
        for work in (*stuck, quick):
            dispatcher.add_task(work)
        assert quick.ended.wait(10)
        assert not any(work.ended.is_set() for work in stuck)
    finally:
        for work in stuck:
            work.may_end.set()
        assert all(work.ended.wait(10) for work in stuck)
        dispatcher.shutdown(timeout=4)
