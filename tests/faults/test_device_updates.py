"""R1 on a device: after a kill at any point of an update, the next open gives exactly the old or the new bundle."""

from __future__ import annotations

import os
import shutil

import pytest

from benchmarks.faults.device import Device
from benchmarks.faults.small_bundle import publish
from benchmarks.faults.tools.crash_points import each_crash
from benchmarks.faults.tools.fault_proxy import Fault, FolderServer, behind_proxy
from device_sdk.errors import PathweaveError

BUNDLE = "v1/bundles/tiny"
MIN_POINTS = 30  # an update of one blob makes about 50 changes


def served(bundle, www, version):
    publish(bundle.folder, www / BUNDLE, version, private_key=bundle.private_key)


def open_at(url, state, bundle):
    """Version and source of what opens, all its blobs read and verified."""
    return Device(url, state, bundle.public_key).open()


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("first", [pytest.param(True, marks=pytest.mark.slow), False], ids=["first install", "update"])
def test_after_a_kill_at_any_point_the_old_or_the_new_bundle_opens(own_bundle, tmp_path, first):
    www = tmp_path / "www"
    served(own_bundle, www, 1)
    with FolderServer(www) as server:
        url = f"http://127.0.0.1:{server.port}/{BUNDLE}"
        start, state = tmp_path / "start", tmp_path / "state"
        start.mkdir()
        if not first:
            open_at(url, start, own_bundle)
            served(own_bundle, www, 2)
        new = 1 if first else 2

        def begin():
            shutil.rmtree(state, ignore_errors=True)
            shutil.copytree(start, state)
            return lambda: open_at(url, state, own_bundle)

        seen, points = set(), 0
        for crash in each_crash(begin):
            points = crash.point
            offline = tmp_path / "offline"
            shutil.rmtree(offline, ignore_errors=True)
            shutil.copytree(state, offline)
            version = Device(url, offline, own_bundle.public_key).stored_version()
            assert version in ((0, 1) if first else (1, 2)), crash
            seen.add(version)
            assert open_at(url, state, own_bundle)[0] == new, crash
            assert not Device(url, state, own_bundle.public_key).left_behind(), crash
        assert points > MIN_POINTS
        assert seen == ({0, 1} if first else {1, 2})


FAULTS = [
    Fault("cut", 100),
    Fault("reset", 0),
    Fault("flip", 100),
    Fault("wrong length", 1),
]


@pytest.mark.parametrize("part", ["manifest.json", "manifest.sig", "blobs/"])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.kind} at {fault.at}")
def test_no_fault_of_the_network_opens_anything_but_the_old_or_the_new_bundle(own_bundle, tmp_path, part, fault):
    www = tmp_path / "www"
    served(own_bundle, www, 1)
    with behind_proxy(www) as proxy:
        url, state = f"{proxy.url}/{BUNDLE}", tmp_path / "state"
        at = min(fault.at, 60) if part == "manifest.sig" else fault.at
        proxy.faults[part] = [Fault(fault.kind, at)]
        try:
            assert open_at(url, state, own_bundle) == (1, "downloaded")
        except PathweaveError:
            assert open_at(url, state, own_bundle) == (1, "downloaded")
        served(own_bundle, www, 2)
        proxy.faults[part] = [Fault(fault.kind, at)]
        assert open_at(url, state, own_bundle) in ((1, "kept"), (2, "downloaded"))
        assert open_at(url, state, own_bundle)[0] == 2
