"""Transfers over real HTTP that are cut, stalled, altered: what was cut goes on, what is altered is refused."""

from __future__ import annotations

import json
import os
import random
import shutil

import pytest

from device_sdk.errors import BlobError, DeadlineError, ProtocolError, RefusedError, SignatureError, TransferError
from device_sdk.transports.port import Deadlines


def largest(sizes):
    return max(sizes, key=lambda name: sizes[name])


@pytest.mark.parametrize("seed", range(5))
def test_a_download_cut_at_ten_random_places_resumes_without_fetching_anything_twice(fetch, server, sizes, fault, seed):
    random_ = random.Random(seed)
    places = [(name, at) for name in sorted(sizes) for at in range(1, sizes[name])]
    for name, at in sorted(random_.sample(places, 10)):
        server.faults.setdefault(f"blobs/{name}", []).append(fault(cut_at=at))
    cut = {path: len(faults) for path, faults in server.faults.items()}
    delivered = fetch()
    assert not any(server.faults.values())
    assert delivered.resumed == 10
    assert delivered.blobs_fetched == len(sizes)
    assert server.blob_bytes() == sizes  # every byte exactly once
    for name in sizes:
        assert len(server.of(f"blobs/{name}")) == 1 + cut.get(f"blobs/{name}", 0)
    assert delivered.bytes_fetched == sum(sizes.values())


def test_deliveries_that_end_one_after_the_other_add_up(fetch, server, store, sizes, fault):
    """Each ends at a cut; the next one goes on there."""
    fetch(good=False)
    name = largest(sizes)
    (store.blobs / name).unlink()
    server.served.clear()
    server.faults[f"blobs/{name}"] = [fault(cut_at=at) for at in (1000, 2000, 3000)]
    for _ in range(3):
        with pytest.raises(TransferError):
            fetch(attempts=1, sleep=asleep)
    delivered = fetch()
    assert [one.start for one in server.of(f"blobs/{name}")] == [0, 1000, 2000, 3000]
    assert server.blob_bytes() == {name: sizes[name]}
    assert (delivered.blobs_fetched, delivered.resumed) == (1, 1)


def asleep(seconds):
    raise TransferError("the device went to sleep")


@pytest.mark.parametrize("shared", [False, True], ids=["known size", "size not stated"])
def test_what_a_dead_process_left_complete_is_not_sent_again(fetch, server, store, own_bundle, sizes, shared):
    manifest = json.loads(own_bundle.manifest_path.read_bytes())
    name = manifest["blocks"][0]["renditions"][0]["shared"][0] if shared else largest(sizes)
    (store.folder / "partial").mkdir(parents=True)
    shutil.copy(own_bundle.folder / "blobs" / name, store.folder / "partial" / f"{name}.0.ab.part")
    fetch()
    assert server.blob_bytes().get(name, 0) == 0
    assert [one.status for one in server.of(f"blobs/{name}")] == ([416] if shared else [])


def test_a_server_that_brings_a_byte_at_a_time_is_given_up(fetch, server, sizes, fault):
    name = largest(sizes)
    server.faults[f"blobs/{name}"] = [fault(cut_at=at) for at in range(1, 200)]
    with pytest.raises(TransferError, match="did not come whole in 100 requests"):
        fetch()
    assert len(server.of(f"blobs/{name}")) == 100


@pytest.mark.parametrize("etags", [True, False])
def test_a_reset_connection_is_resumed(fetch, server, sizes, fault, etags):
    server.etags = etags
    server.faults[f"blobs/{largest(sizes)}"] = [fault(cut_at=4000, reset=True)]
    fetch()
    assert len(server.of(f"blobs/{largest(sizes)}")) == 2


def test_a_server_without_ranges_sends_everything_again(fetch, server, sizes, fault):
    name = largest(sizes)
    server.faults[f"blobs/{name}"] = [fault(cut_at=4000), fault(ignore_range=True)]
    assert fetch().resumed == 0
    assert server.blob_bytes()[name] == 4000 + sizes[name]


def test_a_part_from_another_place_is_not_used(fetch, server, sizes, fault):
    name = largest(sizes)
    server.faults[f"blobs/{name}"] = [fault(cut_at=4000), fault(wrong_range=True)]
    fetch()
    # noted when an answer ends, and the wrong one is not read to its end
    assert sorted(one.start for one in server.of(f"blobs/{name}")) == [0, 0, 4000]


@pytest.mark.parametrize("delta", [-1, -4000, 1, 4000])
def test_a_wrong_length_is_made_good(fetch, server, sizes, fault, delta):
    server.faults[f"blobs/{largest(sizes)}"] = [fault(length_delta=delta)]
    if delta < 0:
        fetch()
    else:  # more announced than the manifest allows: not our blob
        with pytest.raises(ProtocolError, match="more than"):
            fetch()


def test_a_stalled_transfer_goes_on_after_the_idle_deadline(fetch, server, sizes, fault):
    server.faults[f"blobs/{largest(sizes)}"] = [fault(stall_at=4000)]
    assert fetch().resumed == 1


def test_a_dripping_server_is_given_up_after_the_total_deadline(fetch, server, sizes, fault):
    server.faults[f"blobs/{largest(sizes)}"] = [fault(drip=True)]
    with pytest.raises(DeadlineError):
        fetch(deadlines=Deadlines(idle_s=60.0, total_s=0.7))


def test_a_server_that_fails_and_recovers_is_asked_again(fetch, server, sizes, fault):
    for path in ("manifest.json", "manifest.sig", f"blobs/{largest(sizes)}"):
        server.faults[path] = [fault(status=500), fault(status=503)]
    assert fetch().source == "downloaded"


def test_a_server_that_keeps_failing_is_given_up(fetch, server, fault):
    server.faults["manifest.json"] = [fault(status=500)] * 10
    with pytest.raises(RefusedError, match="500"):
        fetch(attempts=4)
    assert len(server.of("manifest.json")) == 4


def test_no_progress_on_a_blob_ends_after_the_attempts_and_the_others_stop(fetch, server, sizes, fault):
    name = largest(sizes)
    server.faults[f"blobs/{name}"] = [fault(cut_at=0)] * 100
    with pytest.raises(TransferError):
        fetch(attempts=4)
    assert len(server.of(f"blobs/{name}")) == 4


@pytest.mark.parametrize("at", [0, 1, -1])
def test_a_flipped_byte_is_refused(fetch, server, store, sizes, fault, at):
    name = largest(sizes)
    server.faults[f"blobs/{name}"] = [fault(flip_at=at % sizes[name])] * 2
    with pytest.raises(BlobError, match="digest"):
        fetch()
    assert not store.has_blob(name, None)
    assert not [path for path in os.listdir(store.folder / "partial") if path.startswith(name)]


def test_a_byte_flipped_once_on_the_way_is_fetched_again(fetch, server, sizes, fault):
    server.faults[f"blobs/{largest(sizes)}"] = [fault(flip_at=100)]
    assert fetch().source == "downloaded"


def test_a_flipped_byte_of_a_shared_blob_is_refused(fetch, server, own_bundle, fault):
    manifest = json.loads(own_bundle.manifest_path.read_bytes())
    (shared,) = manifest["blocks"][0]["renditions"][0]["shared"]
    server.faults[f"blobs/{shared}"] = [fault(flip_at=3)] * 2
    with pytest.raises(BlobError):
        fetch()


def test_a_flipped_byte_of_the_manifest_is_refused(fetch, server, store, fault):
    server.faults["manifest.json"] = [fault(flip_at=200)] * 3
    with pytest.raises(SignatureError):
        fetch()
    assert not store.folder.exists()


def test_a_blob_that_decayed_in_the_store_comes_again(fetch, server, store, sizes):
    fetch()
    path = store.blobs / largest(sizes)
    path.write_bytes(bytes(sizes[path.name]))
    assert store.remove_altered(sizes) == (path.name,)
    assert fetch().blobs_fetched == 1
