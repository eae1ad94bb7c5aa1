"""A server of a bundle in two versions, with a signed rollback, and devices that ask and report."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest

from device_sdk.bundles.bundle import Bundle
from device_sdk.bundles.releasing import sign_rollback

ALL_AT_ONCE = {"stages": [{"percent": 100, "hold_minutes": 60}]}


@dataclass
class Fleet:
    """Some devices of a server. ``digests``: of the manifests by version."""

    server: object
    clock: object
    digests: dict[int, str]
    lines: list[dict] = field(default_factory=list)

    def ask(self, device="a", tags=None, **headers):
        headers = {"Pathweave-Device": device, **({} if tags is None else {"Pathweave-Tags": tags}), **headers}
        return self.server.ask("/v1/bundles/tiny/assignment", headers=headers)

    def version(self, device="a", tags=None):
        reply = self.ask(device, tags)
        assert reply.status == 200, reply.body
        return reply.json()["version"]

    def say(self, device, version, *events, at=None, **headers):
        """Send lines of the log of a version; returns how many were new."""
        time = (at or self.clock.time).isoformat(timespec="milliseconds")
        lines = [
            {"schema": 1, "time": time, "bundle": self.digests[version], "runtime": "onnxruntime", "event": event}
            for event in events or [OPENED]
        ]
        body = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        headers = {"Pathweave-Device": device, **headers}
        reply = self.server.ask("/v1/logs", method="POST", body=body, headers=headers)
        assert reply.status == 200, reply.body
        return reply.json()["accepted"]

    def start(self, plan=ALL_AT_ONCE, *, version=2, status=201, **more):
        reply = self.server.post("/v1/rollouts", {"bundle": "tiny", "version": version, "plan": plan, **more})
        assert reply.status == status, reply.body
        return reply.json()

    def change(self, action, number=1, status=200):
        reply = self.server.ask(f"/v1/rollouts/{number}/{action}", method="POST")
        assert reply.status == status, reply.body
        return reply.json()

    def show(self, number=1):
        return self.server.ask(f"/v1/rollouts/{number}").json()


OPENED = {"event": "opened", "subnet": "o0", "restored": False}


def refused(version=2, digest=None, reason="self_test"):
    """The event of a device that does not use a version."""
    return {"event": "refused", "version": version, "digest": digest, "reason": reason, "failure": "x"}


def profiled(original_ms):
    """The event of a device whose full model takes so long."""
    return {"event": "profiled", "original_ms": original_ms, "scale": 1.0, "offset_ms": 0.0, "median_error": 0.0}


@pytest.fixture
def folder(tiny, tmp_path):
    """Versions 1 and 2, and a rollback from 2 to 1."""
    folder = tmp_path / "bundles"
    folder.mkdir()
    for version in (1, 2):
        tiny.copy_to(folder / f"tiny-{version}", version=version)
    sign_rollback(folder / "tiny-1", None, tiny.private_key, from_version=2, now_s=1_777_000_000, days=365)
    return folder


@pytest.fixture
def fleet(serve, folder, clock):
    digests = {version: Bundle.open(folder / f"tiny-{version}").digest for version in (1, 2)}
    return Fleet(serve(folder, now=clock), clock, digests)
