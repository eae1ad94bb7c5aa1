"""Updates from a server: what opens, and what is refused, when the disk, the network or the server misbehave."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.faults.tools.fault_proxy import Fault, FaultProxy, behind_proxy
from benchmarks.faults.tools.full_disk import fill, small_disk, without_room
from device_sdk.bundles.bundle import Bundle
from device_sdk.delivery.store import BundleStore
from device_sdk.errors import BlobError, BundleError, PathweaveError, RollbackError, SelfTestError, StorageError
from device_sdk.runtimes import runs_on
from device_sdk.runtimes.settings import RuntimeSettings
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.session.device_state import DeviceState
from device_sdk.session.opening import open_location
from device_sdk.signing import signatures
from device_sdk.supernet.plan import Edge, Plan, Subnet


@dataclass
class Served:
    """A bundle at ``url`` that a test replaces, and a device's state folder in which every version has passed."""

    folder: Path
    proxy: FaultProxy
    state: Path
    key: Path
    private_key: Path
    runtime: object

    @property
    def url(self) -> str:
        return f"{self.proxy.url}/v1/bundles/tiny"

    @property
    def store(self) -> BundleStore:
        return BundleStore(self.state / "store")

    def publish(self, **changes: object) -> None:
        """Replace the served bundle: other fields of the manifest, signed again."""
        path = self.folder / "manifest.json"
        data = json.dumps(json.loads(path.read_bytes()) | changes).encode()
        path.write_bytes(data)
        (self.folder / "manifest.sig").write_bytes(signatures.sign(data, private_key=self.private_key))
        self.passes()

    def passes(self) -> None:
        DeviceState(self.state, Bundle.open(self.folder), self.runtime).remember_self_test()

    def open(self, **settings: object) -> int:
        """Open it as an application does; the version."""
        with AdaptiveModel.open(self.url, trust=self.key, state_folder=self.state, **settings) as model:
            return model.bundle.manifest.version


@pytest.fixture
def served(own_bundle, tmp_path, runtime):
    folder = tmp_path / "www" / "v1" / "bundles" / "tiny"
    shutil.copytree(own_bundle.folder, folder)
    with behind_proxy(tmp_path / "www") as proxy:
        state = tmp_path / "state"
        one = Served(folder, proxy, state, own_bundle.public_key, own_bundle.private_key, runtime)
        one.passes()
        yield one


@pytest.fixture
def updated(served):
    """A device that has had version 1 and now has version 2."""
    assert served.open() == 1
    served.publish(version=2)
    assert served.open() == 2
    return served


def new_blob(served, version):
    """A new version with one blob that no device has."""
    manifest = json.loads((served.folder / "manifest.json").read_bytes())
    rendition = manifest["blocks"][1]["renditions"][1]
    data = bytes([version]) * rendition["size_bytes"]
    rendition["blob"] = hashlib.sha256(data).hexdigest()
    (served.folder / "blobs" / rendition["blob"]).write_bytes(data)
    served.publish(**manifest | {"version": version})


# A full disk


@pytest.mark.slow
@pytest.mark.parametrize("server", ["the same version", "a new version", "no server"])
def test_on_a_full_disk_the_last_good_bundle_opens(served, server, tmp_path, caplog):
    with small_disk(tmp_path / "disk", 4_000_000) as mounted:
        if not mounted:
            pytest.skip("needs a tmpfs, which root can mount")
        served.state = tmp_path / "disk" / "state"
        served.passes()
        assert served.open() == 1
        if server == "a new version":
            new_blob(served, 2)
        elif server == "no server":
            served.proxy.close()
        (served.store.folder / "lock").unlink(missing_ok=True)
        (served.store.folder / "installing").unlink(missing_ok=True)
        fill(tmp_path / "disk")
        with caplog.at_level(logging.WARNING):
            assert served.open() == 1
    if server != "the same version":
        assert "stays" in caplog.text


def test_where_no_file_can_be_written_the_last_good_bundle_opens(served):
    served.open()
    new_blob(served, 2)

    def update() -> None:
        bundle, delivered = open_location(
            served.url,
            trust=served.key,
            runtime=served.runtime,
            settings=RuntimeSettings(),
            accepts=runs_on("onnxruntime"),
            state_folder=served.state,
        )
        assert (bundle.manifest.version, delivered.source) == (1, "kept")

    without_room(update)
    assert served.open() == 2


def test_a_plan_that_cannot_be_stored_is_not_used_either(served, tmp_path):
    other = Plan(Subnet((Edge("o0"), Edge("m1-4"), Edge("o4"))))
    with small_disk(tmp_path / "disk", 4_000_000) as mounted:
        if not mounted:
            pytest.skip("needs a tmpfs, which root can mount")
        served.state = tmp_path / "disk" / "state"
        served.passes()
        with AdaptiveModel.open(served.url, trust=served.key, state_folder=served.state) as model:
            before = model.plan
            filler = fill(tmp_path / "disk")
            with pytest.raises(StorageError):
                model.use(other)
            assert model.plan == before
            filler.unlink()
            model.use(other)
        with AdaptiveModel.open(served.url, trust=served.key, state_folder=served.state) as model:
            assert model.plan == other


def test_a_first_bundle_that_cannot_be_written_is_a_storage_error(served):
    served.state.rename(served.state.with_name("moved"))
    served.state.write_bytes(b"a file in the way")
    with pytest.raises(StorageError):
        served.open()


# No rollback


RECORDS = ("current", "previous", "mark", "mark.copy", "manifest.json", "manifest.sig")


def damage(served, record, how):
    digest = hashlib.sha256((served.folder / "manifest.json").read_bytes()).hexdigest()
    folder = served.store.bundles / "tiny"
    path = (folder / digest if record.startswith("manifest") else folder) / record
    data = path.read_bytes()
    middle = len(data) // 2
    path.write_bytes(b"" if how == "empty" else data[:middle] + bytes([data[middle] ^ 4]) + data[middle + 1 :])


@pytest.mark.parametrize("how", ["empty", "flipped"])
@pytest.mark.parametrize("record", RECORDS)
def test_no_damaged_file_brings_back_an_older_version(updated, record, how):
    damage(updated, record, how)
    updated.publish(version=1)
    try:
        assert updated.open() == 2
    except PathweaveError:
        assert record.startswith("manifest")
    updated.publish(version=2)
    assert updated.open() == 2


@pytest.mark.slow
@pytest.mark.parametrize("record", ["current", "mark", "mark.copy", "previous"])
def test_offline_a_damaged_record_does_not_keep_the_bundle_from_opening(updated, record):
    damage(updated, record, "empty")
    updated.proxy.close()
    assert updated.open() == 2


@pytest.mark.slow
def test_offline_with_a_damaged_manifest_the_previous_version_opens_only_on_demand(updated):
    damage(updated, "manifest.json", "flipped")
    updated.proxy.close()
    with pytest.raises(PathweaveError):
        updated.open()
    assert updated.open(allow_rollback=True) == 1
    assert updated.open() == 1


def test_a_late_installer_of_an_older_version_does_not_replace_a_newer_one(updated):
    store = updated.store
    [old] = [digest for digest in store.digests_of("tiny") if digest != store.last_good("tiny").digest]
    with pytest.raises(RollbackError, match="has had 2"):
        store.remember_good(updated.url, "tiny", old)
    assert store.last_good("tiny").version == 2


def test_another_product_of_the_same_key_is_refused_at_this_address(served):
    served.open()
    before = served.store.last_good("tiny")
    served.publish(name="other", version=9)
    assert served.open() == 1
    assert served.store.last_good_at(served.url) == before
    assert list(served.store.names()) == ["tiny"]


def test_other_contents_under_the_same_version_are_refused_unless_allowed(updated):
    before = updated.store.last_good("tiny").digest
    provenance = json.loads((updated.folder / "manifest.json").read_bytes())["provenance"]
    updated.publish(provenance=provenance | {"source": "elsewhere"})
    assert updated.open() == 2
    assert updated.store.last_good("tiny").digest == before
    assert updated.open(allow_rollback=True) == 2
    assert updated.store.last_good("tiny").digest != before


def test_after_an_allowed_rollback_the_older_version_stays(updated):
    updated.publish(version=1)
    assert updated.open(allow_rollback=True) == 1
    assert updated.open() == 1
    updated.publish(version=2)
    assert updated.open() == 2


# A slow server


def test_an_update_that_drips_ends_at_its_deadline_and_the_last_good_bundle_opens(served):
    served.open()
    served.publish(version=2)
    served.proxy.faults["manifest.json"] = [Fault("drip")]
    assert served.open(update_deadline_s=0.5) == 1
    assert served.open() == 2


# A bad bundle


def open_with(served, self_test):
    return open_location(
        served.url,
        trust=served.key,
        runtime=served.runtime,
        settings=RuntimeSettings(),
        accepts=runs_on("onnxruntime"),
        state_folder=served.state,
        self_test=self_test,
    )


def test_a_new_bundle_that_fails_its_self_test_is_tested_once_and_the_old_one_stays(served):
    served.open()
    served.publish(version=2)
    shutil.rmtree(DeviceState(served.state, Bundle.open(served.folder), served.runtime).folder)
    tested = []

    def fails(bundle):
        tested.append(bundle.manifest.version)
        raise SelfTestError("wrong")

    for _ in range(2):
        bundle, delivered = open_with(served, fails)
        assert (bundle.manifest.version, delivered.source) == (1, "kept")
        assert "wrong" in delivered.failure
    assert tested == [2]
    served.publish(version=3)
    assert served.open() == 3


@pytest.mark.slow
def test_a_blob_that_decayed_is_fetched_again(served):
    served.open()
    blob = next(served.store.blobs.iterdir())
    blob.write_bytes(bytes(blob.stat().st_size))
    assert served.open() == 1
    blob.write_bytes(bytes(blob.stat().st_size))
    served.proxy.close()
    with pytest.raises((BlobError, BundleError)):
        served.open()


# What is deleted


def test_old_versions_and_their_blobs_go_and_those_that_are_open_stay(served):
    with AdaptiveModel.open(served.url, trust=served.key, state_folder=served.state) as first:
        for version in (2, 3, 4):
            new_blob(served, version)
            served.open()
        first.bundle.verify()
        assert len(served.store.digests_of("tiny")) == 2
        first.use(Plan(Subnet((Edge("o0"), Edge("m1-4"), Edge("o4")))))
    needed = Bundle.open(served.folder).manifest.blobs()
    del first
    new_blob(served, 5)
    served.open()
    stored = {path.name for path in served.store.blobs.iterdir()}
    assert len(stored) == len(needed) + 1  # the previous version's
    assert {path.name for path in (served.store.bundles / "tiny").iterdir() if path.is_dir()} == (
        served.store.digests_of("tiny")
    )


def test_no_secret_of_an_address_is_logged_or_raised(tmp_path, caplog):
    for settings in ({}, {"trust": None}):
        with caplog.at_level(logging.DEBUG), pytest.raises(PathweaveError) as caught:
            AdaptiveModel.open("http://me:secret@host/v1/bundles/tiny", state_folder=tmp_path, **settings)
        assert "secret" not in str(caught.value) + caplog.text
