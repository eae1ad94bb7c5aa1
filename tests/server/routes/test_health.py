from __future__ import annotations

import threading

import pytest

from device_sdk import __version__

pytestmark = pytest.mark.replicas(3)


def test_an_idle_server(server):
    expected = {"status": "ok", "version": __version__, "bundles": 1, "broken_bundles": 0, "queue_length": 0}
    assert server.ask("/health").json() == expected


@pytest.mark.embedded
def test_broken_bundles_and_waiting_requests_are_counted(serve, tiny, tmp_path, gated):
    tiny.copy_to(tmp_path / "bundles" / "good")
    (tiny.copy_to(tmp_path / "bundles" / "bad") / "manifest.json").write_text("{")
    server = serve(tmp_path / "bundles", runtime=gated)
    images = {"name": "image", "datatype": "UINT8", "shape": [1, 20, 20, 3], "data": [0] * 1200}
    asked = threading.Thread(target=server.post, args=("/v2/models/tiny:images/infer", {"inputs": [images]}))
    asked.start()
    assert gated.started.acquire(timeout=60)
    health = server.ask("/health").json()
    assert (health["bundles"], health["broken_bundles"], health["queue_length"]) == (1, 1, 1)
    gated.gate.set()
    asked.join()
    assert server.ask("/health").json()["queue_length"] == 0
