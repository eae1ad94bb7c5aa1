"""Deliveries by real processes: killed in the middle, two at once, on a full disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from device_sdk.bundles.bundle import Bundle
from device_sdk.delivery.download import fetch_bundle

ROOT = Path(__file__).parents[3]
FETCH = """
import dataclasses, json, sys
from pathlib import Path
from device_sdk.delivery import BundleStore, fetch_bundle
from device_sdk.errors import PathweaveError
from device_sdk.transports import make_transport

url, store, key, *limit = sys.argv[1:]
if limit:
    import resource, signal
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit[0]), int(limit[0])))
try:
    delivered = fetch_bundle(url, BundleStore(Path(store)), make_transport(url), trust=Path(key))
    print(json.dumps(dataclasses.asdict(delivered), default=str))
except PathweaveError as error:
    print(json.dumps({"error": type(error).__name__}))
"""


def start(server, store, bundle, *limit: str) -> subprocess.Popen:
    command = [sys.executable, "-B", "-c", FETCH, server.url, str(store.folder), str(bundle.public_key), *limit]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen) -> dict:
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return json.loads(output)


def partial_sizes(store) -> list[int]:
    folder = store.folder / "partial"
    return [path.stat().st_size for path in folder.iterdir()] if folder.is_dir() else []


def test_after_a_kill_another_process_goes_on_without_fetching_verified_blobs_again(
    server, store, transport, own_bundle, sizes, fault
):
    stalled = sorted(sizes, key=lambda name: -sizes[name])[:3]
    for name in stalled:
        server.faults[f"blobs/{name}"] = [fault(stall_at=5000)]
    process = start(server, store, own_bundle)
    ends_s = time.monotonic() + 30
    while time.monotonic() < ends_s and not (
        len(os.listdir(store.blobs) if store.blobs.is_dir() else []) == len(sizes) - 3
        and partial_sizes(store) == [5000] * 3
    ):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    verified = set(os.listdir(store.blobs))
    assert verified == set(sizes) - set(stalled)
    server.served.clear()

    delivered = fetch_bundle(server.url, store, transport, trust=own_bundle.public_key)
    assert {path for path in (one.path for one in server.served) if path[6:] in verified} == set()
    assert {(one.path, one.start) for one in server.served if one.path.startswith("blobs/")} == {
        (f"blobs/{name}", 5000) for name in stalled
    }
    assert (delivered.blobs_fetched, delivered.resumed) == (3, 3)
    Bundle.open(delivered.folder, trust=own_bundle.public_key, blobs=delivered.blobs).verify()
    assert partial_sizes(store) == []


def test_two_processes_may_fetch_into_one_store_at_once(server, store, own_bundle, sizes):
    server.before = lambda path: time.sleep(0.02)  # so that they really meet
    processes = [start(server, store, own_bundle) for _ in range(2)]
    reports = [finish(process) for process in processes]
    assert len({report["digest"] for report in reports}) == 1
    for report in reports:
        Bundle.open(report["folder"], trust=own_bundle.public_key, blobs=store.blobs).verify()
    assert partial_sizes(store) == []
    assert set(os.listdir(store.blobs)) == set(sizes)


def test_on_a_full_disk_nothing_half_written_counts(server, store, transport, own_bundle, sizes):
    """A limit on the size of files stands in for the full disk."""
    report = finish(start(server, store, own_bundle, "5000"))
    assert report == {"error": "StorageError"}
    whole = set(os.listdir(store.blobs)) if store.blobs.is_dir() else set()
    assert all((store.blobs / name).stat().st_size == sizes[name] < 5000 for name in whole)
    assert not (store.folder / "bundles").exists()
    delivered = fetch_bundle(server.url, store, transport, trust=own_bundle.public_key)
    assert delivered.blobs_fetched == len(sizes) - len(whole)
