"""R1 and R9 with key lists: after a kill at any point of a rotation and an update, nothing goes back."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from benchmarks.faults.tools.crash_points import each_crash
from benchmarks.faults.tools.fault_proxy import FolderServer
from device_sdk.bundles.bundle import Bundle
from device_sdk.delivery.key_lists import stored_lists
from device_sdk.delivery.store import BundleStore
from device_sdk.delivery.time_marks import time_mark
from device_sdk.runtimes import runs_on
from device_sdk.runtimes.settings import RuntimeSettings
from device_sdk.session.opening import open_location
from device_sdk.signing.trust import load_trust
from tests.contract.signed_files import START_S, key_list, release

BUNDLE = "v1/bundles/tiny"
MIN_POINTS = 40
PINNED = key_list()


class Runtime:
    """A runtime in name: the self-test is none here."""

    identity = "none"


def publish(folder, version, **changes):
    """Give the served bundle a version and a release."""
    path = folder / "manifest.json"
    data = json.dumps(json.loads(path.read_bytes()) | {"version": version}).encode()
    path.write_bytes(data)
    (folder / "release.json").write_bytes(release(data, version=version, **changes))


def open_at(url, state):
    bundle, delivered = open_location(
        url,
        trust=PINNED,
        runtime=Runtime(),
        settings=RuntimeSettings(),
        accepts=runs_on("onnxruntime"),
        state_folder=state,
        self_test=lambda bundle: None,
        wall_clock=lambda: START_S + 1,
    )
    bundle.verify()
    return bundle.manifest.version, delivered.source


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_after_a_kill_at_any_point_of_a_rotation_the_old_or_the_new_bundle_opens(own_bundle, tmp_path):
    served = tmp_path / "www" / BUNDLE
    shutil.copytree(own_bundle.folder, served)
    publish(served, 1)
    with FolderServer(tmp_path / "www") as server:
        url = f"http://127.0.0.1:{server.port}/{BUNDLE}"
        start, state, offline = (tmp_path / name for name in ("start", "state", "offline"))
        assert open_at(url, start) == (1, "downloaded")
        (served / "keys").mkdir()
        (served / "keys" / "2.json").write_bytes(key_list(2, releases=["release-2"]))
        publish(served, 2, by=["release-2"], keys=2, signed_at_s=START_S + 9)

        def begin():
            shutil.rmtree(state, ignore_errors=True)
            shutil.copytree(start, state)
            return lambda: open_at(url, state)

        seen, points = set(), 0
        for crash in each_crash(begin):
            points = crash.point
            shutil.rmtree(offline, ignore_errors=True)
            shutil.copytree(state, offline)
            store = BundleStore(offline / "store")
            lists = stored_lists(load_trust(PINNED), store).newest.number
            mark = time_mark(store, "tiny")
            assert (mark.keys, lists) in {(1, 1), (1, 2), (2, 2)}, crash
            stored = store.last_good_at(url)
            Bundle.open(stored.folder, trust=stored_lists(load_trust(PINNED), store), blobs=store.blobs).verify()
            assert stored.version in (1, 2), crash
            seen.add((lists, stored.version))
            assert open_at(url, state)[0] == 2, crash
            assert not list(state.rglob(".*.tmp"))
        assert points > MIN_POINTS
        assert seen == {(1, 1), (2, 1), (2, 2)}
