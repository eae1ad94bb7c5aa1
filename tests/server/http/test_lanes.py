from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from server.app import create_app
from server.http.serving import LANE_OF, Lane, LaneDispatcher


@pytest.mark.parametrize(
    ("method", "path", "lane"),
    [
        ("GET", "/health", Lane.QUICK),
        ("HEAD", "/health", Lane.QUICK),
        ("GET", "/v2/health/ready", Lane.QUICK),
        ("POST", "/v2/models/a/infer", Lane.INFERENCE),
        ("POST", "/v2/models/a/versions/1/infer", Lane.INFERENCE),
        ("GET", "/v2/models/a/infer", Lane.OTHER),
        ("GET", "/v1/bundles", Lane.DELIVERY),
        ("GET", "/v1/bundles/a/blobs/b", Lane.DELIVERY),
        ("GET", "/v1/bundles/a/profile", Lane.OTHER),
        ("GET", "/v1/jobs", Lane.OTHER),
        ("GET", "/v2/models/a", Lane.OTHER),
        ("GET", "/", Lane.OTHER),
        ("GET", "", Lane.OTHER),
        ("BREW", "//\xff", Lane.OTHER),
    ],
)
def test_every_address_has_a_lane(server, method, path, lane):
    app = create_app(server.services.settings, services=server.services)
    assert app.extensions[LANE_OF](method, path) is lane


class Work:
    """What the dispatcher takes for a connection: it waits until it may end."""

    def __init__(self, lane, error=None):
        self.requests = [SimpleNamespace(command="GET", path=lane, error=error)]
        self.may_end, self.ended = threading.Event(), threading.Event()

    def service(self):
        assert self.may_end.wait(10)
        self.ended.set()

    def cancel(self):
        pass


def test_a_full_lane_does_not_stop_the_others():
    dispatcher = LaneDispatcher(dict.fromkeys(Lane, 1), lambda method, path: Lane[path])
    stuck = [Work("INFERENCE") for _ in range(3)]
    others = Work("QUICK"), Work("INFERENCE", error=ValueError("refused at the head"))
    try:
        for work in (*stuck, *others):
            dispatcher.add_task(work)
        for work in others:
            work.may_end.set()
            assert work.ended.wait(10)
        assert not any(work.ended.is_set() for work in stuck)
    finally:
        for work in stuck:
            work.may_end.set()
        assert all(work.ended.wait(10) for work in stuck)
        dispatcher.shutdown(timeout=4)
