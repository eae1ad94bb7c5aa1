"""R1 on a device: after a kill at any point of an update, the next open gives exactly the old or the new bundle."""

from __future__ import annotations

import hashlib
import json
import os
import shutil

import pytest

from device_sdk.bundles import signing
from device_sdk.delivery.store import BundleStore
from device_sdk.errors import PathweaveError
from device_sdk.runtimes import runs_on
from device_sdk.runtimes.settings import RuntimeSettings
from device_sdk.session.opening import open_location
from tests.faults.crash_points import each_crash
from tests.faults.fault_proxy import Fault, FolderServer, behind_proxy

BUNDLE = "v1/bundles/tiny"
MIN_POINTS = 30  # an update of one blob makes about 50 changes


class Runtime:
    """A runtime in name: the self-test is none here."""

    identity = "none"


def publish(bundle, folder, version):
    """Copy the bundle to ``folder`` as ``version``, from 2 on with one blob of its own."""
    shutil.copytree(bundle.folder, folder)
    manifest = json.loads((folder / "manifest.json").read_bytes()) | {"version": version}
    if version > 1:
        rendition = manifest["blocks"][1]["renditions"][1]
        data = bytes([version]) * rendition["size_bytes"]
        rendition["blob"] = hashlib.sha256(data).hexdigest()
        (folder / "blobs" / rendition["blob"]).write_bytes(data)
    data = json.dumps(manifest).encode()
    (folder / "manifest.json").write_bytes(data)
    (folder / "manifest.sig").write_bytes(signing.sign(data, private_key=bundle.private_key))


def open_at(url, state, bundle):
    """Version and source of what opens, all its blobs read and verified."""
    opened, delivered = open_location(
        url,
        trust=bundle.public_key,
        runtime=Runtime(),
        settings=RuntimeSettings(),
        accepts=runs_on("onnxruntime"),
        state_folder=state,
        self_test=lambda bundle: None,
    )
    opened.verify()
    return opened.manifest.version, delivered.source


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("first", [pytest.param(True, marks=pytest.mark.slow), False], ids=["first install", "update"])
def test_after_a_kill_at_any_point_the_old_or_the_new_bundle_opens(own_bundle, tmp_path, first):
    www = tmp_path / "www"
    publish(own_bundle, www / BUNDLE, 1)
    with FolderServer(www) as server:
        url = f"http://127.0.0.1:{server.port}/{BUNDLE}"
        start, state = tmp_path / "start", tmp_path / "state"
        start.mkdir()
        if not first:
            open_at(url, start, own_bundle)
            shutil.rmtree(www / BUNDLE)
            publish(own_bundle, www / BUNDLE, 2)
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
            stored = BundleStore(offline / "store").last_good_at(url)
            version = 0 if stored is None else stored.version
            assert version in ((0, 1) if first else (1, 2)), crash
            seen.add(version)
            assert open_at(url, state, own_bundle)[0] == new, crash
            assert_nothing_is_left(state)
        assert points > MIN_POINTS
        assert seen == ({0, 1} if first else {1, 2})


def assert_nothing_is_left(state):
    store = BundleStore(state / "store")
    assert not store.partial.exists() or not list(store.partial.iterdir())
    assert not list(state.rglob(".*.tmp"))
    digests = store.digests_of("tiny")
    assert {path.name for path in (store.bundles / "tiny").iterdir() if path.is_dir()} <= digests


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
    publish(own_bundle, www / BUNDLE, 1)
    with behind_proxy(www) as proxy:
        url, state = f"{proxy.url}/{BUNDLE}", tmp_path / "state"
        at = min(fault.at, 60) if part == "manifest.sig" else fault.at
        proxy.faults[part] = [Fault(fault.kind, at)]
        try:
            assert open_at(url, state, own_bundle) == (1, "downloaded")
        except PathweaveError:
            assert open_at(url, state, own_bundle) == (1, "downloaded")
        shutil.rmtree(www / BUNDLE)
        publish(own_bundle, www / BUNDLE, 2)
        proxy.faults[part] = [Fault(fault.kind, at)]
        assert open_at(url, state, own_bundle) in ((1, "kept"), (2, "downloaded"))
        assert open_at(url, state, own_bundle)[0] == 2
