from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from device_sdk.bundles.bundle import Bundle
from device_sdk.bundles.releasing import read_chain
from device_sdk.errors import BlobError, SignatureError, StorageError, UsageError
from device_sdk.signing import signatures
from server.errors import PublishError
from server.jobs.publishing import Signer, check_made, is_published, seal
from server.state.catalogue import place_of
from server.state.folder_bundles import FolderBundles
from tests.contract.signed_files import DAY_S, START_S, key_list, write_pair


@pytest.fixture
def made(tiny, tmp_path):
    return tiny.copy_to(tmp_path / "out", name="digits", version=2)


@pytest.fixture
def catalogue(bundles):
    return FolderBundles(bundles)


@pytest.fixture
def publish_made(made, bundles, catalogue):
    return lambda version=2: catalogue.publish(made, name="digits", version=version)


def test_the_first_version_is_one(bundles, catalogue):
    assert catalogue.next_version("digits") == 1


def test_the_next_version_is_above_all_that_are_served(tiny, bundles, catalogue):
    tiny.copy_to(bundles / "old", name="digits", version=3)
    tiny.copy_to(bundles / "other", name="other", version=9)
    assert catalogue.next_version("digits") == 4


def test_a_version_whose_folder_holds_something_else_is_passed_over(bundles, catalogue):
    (bundles / "digits-1").mkdir()
    (bundles / "digits-2").write_text("")
    assert catalogue.next_version("digits") == 3


def test_sealing_signs_with_the_key_of_the_server(tiny, made):
    (made / "manifest.sig").unlink()
    digest = seal(made, name="digits", version=2, signer=Signer(tiny.private_key), now_s=0)
    signatures.verify(
        (made / "manifest.json").read_bytes(), (made / "manifest.sig").read_bytes(), public_key=tiny.public_key
    )
    assert Bundle.open(made, trust=tiny.public_key).digest == digest


def test_sealing_without_a_key_leaves_it_unsigned(made):
    seal(made, name="digits", version=2, signer=None, now_s=0)
    assert not (made / "manifest.sig").exists()


def test_sealing_writes_the_served_name_and_version_and_nothing_else(made):
    before = json.loads((made / "manifest.json").read_bytes())
    seal(made, name="served", version=7, signer=None, now_s=0)
    assert json.loads((made / "manifest.json").read_bytes()) == {**before, "name": "served", "version": 7}


def test_what_a_worker_made_is_refused_if_it_was_not_ordered_or_is_damaged(made):
    assert check_made(made, name="digits", version=2) == Bundle.open(made).digest
    with pytest.raises(PublishError, match="digits 2 instead of digits 1"):
        check_made(made, name="digits", version=1)
    blob = next((made / "blobs").iterdir())
    blob.write_bytes(blob.read_bytes()[:-1])
    with pytest.raises(BlobError):
        check_made(made, name="digits", version=2)


def test_sealing_refuses_a_key_that_cannot_sign_and_what_is_damaged(made, tmp_path):
    with pytest.raises(SignatureError):
        seal(made, name="digits", version=2, signer=Signer(tmp_path / "no.key"), now_s=0)
    blob = next((made / "blobs").iterdir())
    blob.write_bytes(blob.read_bytes()[:-1])
    with pytest.raises(BlobError):
        seal(made, name="digits", version=2, signer=None, now_s=0)


def test_publishing_moves_it_to_where_it_is_served(made, bundles, catalogue, publish_made):
    digest = Bundle.open(made).digest
    publish_made()
    assert not made.exists()
    assert catalogue.find("digits").bundle.blobs == bundles / "digits-2" / "blobs"
    assert is_published("digits", 2, digest, bundles=catalogue)
    assert not is_published("digits", 2, "0" * 64, bundles=catalogue)
    assert not is_published("other", 2, digest, bundles=catalogue)


def test_a_version_that_was_taken_meanwhile_is_not_replaced(tiny, made, bundles, catalogue, publish_made):
    tiny.copy_to(bundles / "mine", name="digits", version=2)
    with pytest.raises(PublishError, match="version 2 of digits exists"):
        publish_made()
    shutil.rmtree(bundles / "mine")
    (bundles / "digits-2").mkdir()
    with pytest.raises(PublishError):
        publish_made()
    assert made.exists()


def test_a_folder_that_is_gone_is_a_storage_error(made, bundles, publish_made):
    bundles.rmdir()
    with pytest.raises(StorageError):
        publish_made()


def test_across_file_systems_it_is_copied_and_nothing_is_left_over(tiny, tmp_path, bundles, catalogue):
    elsewhere = Path("/dev/shm")
    if not elsewhere.is_dir() or elsewhere.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("needs a second file system at /dev/shm")
    out = elsewhere / f"pathweave-test-{tmp_path.name}" / "out"
    out.parent.mkdir()
    try:
        tiny.copy_to(out, name="digits", version=2)
        catalogue.publish(out, name="digits", version=2)
    finally:
        shutil.rmtree(out.parent)
    assert [path.name for path in bundles.iterdir()] == ["digits-2"]
    Bundle.open(place_of("digits", 2, folder=bundles)).verify()


@pytest.fixture
def signer(bundles, tmp_path):
    """What a server signs with whose served folder has a key list, valid from START_S on, that names release-1."""
    (bundles / "keys").mkdir()
    (bundles / "keys" / "1.json").write_bytes(key_list())
    return lambda name: Signer.of(write_pair(tmp_path, name)[0], bundles)


def test_where_key_lists_are_served_sealing_writes_a_release_that_devices_install_by(made, bundles, signer):
    digest = seal(made, name="digits", version=2, signer=signer("release-1"), now_s=START_S + DAY_S)
    chain = read_chain(bundles / "keys")
    release = chain.release((made / "release.json").read_bytes())
    assert (release.name, release.version, release.manifest_sha256) == ("digits", 2, digest)
    assert release.expires_at_s == START_S + 31 * DAY_S
    assert Bundle.open(made, trust=bundles / "keys" / "1.json").digest == digest


@pytest.mark.parametrize(("key", "days"), [("release-2", 1), ("root-1", 1), ("release-1", 366)])
def test_a_key_that_may_release_nothing_seals_nothing(made, signer, key, days):
    with pytest.raises(UsageError, match=r"not a release key|expired"):
        seal(made, name="digits", version=2, signer=signer(key), now_s=START_S + days * DAY_S)
    assert not (made / "manifest.sig").exists()
    assert not (made / "release.json").exists()


def test_sealing_again_after_a_key_list_was_added_replaces_the_signature(tiny, made, bundles, signer):
    seal(made, name="digits", version=2, signer=Signer(tiny.private_key), now_s=START_S)
    assert not (made / "release.json").exists()
    seal(made, name="digits", version=2, signer=signer("release-1"), now_s=START_S)
    assert (made / "release.json").exists()
