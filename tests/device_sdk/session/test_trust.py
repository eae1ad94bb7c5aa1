"""Who is trusted when a bundle is opened: it has to be said for an address, and may be said for a folder."""

from __future__ import annotations

import contextlib
import shutil

import pytest

from benchmarks.faults.tools.fault_proxy import behind_proxy
from device_sdk.bundles.bundle import Bundle
from device_sdk.errors import SignatureError, UsageError
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.session.device_state import DeviceState
from device_sdk.session.opening import bundle_at
from device_sdk.signing import signatures
from tests.contract.signed_files import key_list, private, release, write_pair


@pytest.fixture
def state(own_bundle, tmp_path, runtime):
    """A state folder in which the bundle has passed its self-test."""
    folder = tmp_path / "state"
    DeviceState(folder, Bundle.open(own_bundle.folder), runtime).remember_self_test()
    return folder


@pytest.fixture
def address(own_bundle, tmp_path):
    shutil.copytree(own_bundle.folder, tmp_path / "www" / "v1" / "bundles" / "tiny")
    with behind_proxy(tmp_path / "www") as proxy:
        yield f"{proxy.url}/v1/bundles/tiny"


def test_with_an_address_trust_may_not_be_left_out(address, state):
    with pytest.raises(UsageError, match=r"who signed the bundle at http://.*/tiny\? Give trust.*--trust") as caught:
        AdaptiveModel.open(address, state_folder=state)
    assert "trust=None (--no-trust)" in caught.value.hint
    assert "\n" not in str(caught.value)
    assert not (state / "store").exists()


def test_a_caller_may_say_that_anybody_is_trusted(address, state):
    with AdaptiveModel.open(address, trust=None, state_folder=state) as model:
        assert model.bundle.manifest.name == "tiny"


def test_what_was_fetched_is_not_opened_without_a_word_on_trust_either(address, state, own_bundle):
    AdaptiveModel.open(address, trust=own_bundle.public_key, state_folder=state).close()
    with pytest.raises(UsageError, match="Give trust"):
        bundle_at(address, state_folder=state)
    assert bundle_at(address, trust=None, state_folder=state).manifest.name == "tiny"
    assert bundle_at(address, trust=own_bundle.public_key, state_folder=state).manifest.name == "tiny"


def test_a_folder_opens_without_a_word_on_trust(own_bundle, state):
    AdaptiveModel.open(own_bundle.folder, state_folder=state).close()
    assert bundle_at(own_bundle.folder, state_folder=state).manifest.name == "tiny"


@pytest.mark.parametrize("form", ["path", "text", "bytes"])
@pytest.mark.parametrize("kind", ["public key", "key list"])
def test_a_key_and_a_key_list_are_taken_in_every_form(own_bundle, tmp_path, kind, form):
    (own_bundle.folder / "release.json").write_bytes(release(own_bundle.manifest_path.read_bytes()))
    data = own_bundle.public_key.read_bytes() if kind == "public key" else key_list()
    path = tmp_path / "trusted"
    path.write_bytes(data)
    trust = {"path": path, "text": str(path), "bytes": data}[form]
    assert Bundle.open(own_bundle.folder, trust=trust).manifest.name == "tiny"


@pytest.mark.parametrize("data", [b"", b"{}", b"nonsense", b"\xff\xfe"])
def test_what_is_neither_a_key_nor_a_key_list_is_refused(own_bundle, data):
    with pytest.raises(SignatureError):
        Bundle.open(own_bundle.folder, trust=data)


def test_a_folder_by_a_key_list_needs_a_release_of_exactly_this_manifest(own_bundle):
    with pytest.raises(SignatureError, match=r"has no release\.json"):
        Bundle.open(own_bundle.folder, trust=key_list())
    manifest = own_bundle.manifest_path.read_bytes()
    for made in (release(manifest + b" "), release(manifest, version=2), release(manifest, by=["stranger"])):
        (own_bundle.folder / "release.json").write_bytes(made)
        with pytest.raises(SignatureError):
            Bundle.open(own_bundle.folder, trust=key_list())


def test_a_folder_without_a_release_opens_by_a_manifest_signature_of_a_release_key(own_bundle):
    manifest = own_bundle.manifest_path.read_bytes()
    for name, taken in (("release-1", True), ("release-2", False), ("root-1", False)):
        (own_bundle.folder / "manifest.sig").write_bytes(private(name).sign(manifest))
        if taken:
            assert Bundle.open(own_bundle.folder, trust=key_list()).manifest.name == "tiny"
        else:
            with pytest.raises(SignatureError, match=r"has no release\.json"):
                Bundle.open(own_bundle.folder, trust=key_list())
    (own_bundle.folder / "manifest.sig").write_bytes(private("release-1").sign(manifest))
    (own_bundle.folder / "release.json").write_bytes(release(manifest, by=["stranger"]))
    with pytest.raises(SignatureError, match="not signed by a release key"):  # a bad release is not passed over
        Bundle.open(own_bundle.folder, trust=key_list())


def test_an_installed_bundle_opens_offline_after_its_single_key_became_a_release_key(address, state):
    private_key, public_key = write_pair(state.parent, "release-1")
    www = state.parent / "www" / "v1" / "bundles" / "tiny"
    data = (www / "manifest.json").read_bytes()
    (www / "manifest.sig").write_bytes(signatures.sign(data, private_key=private_key))
    AdaptiveModel.open(address, trust=public_key, state_folder=state).close()
    with AdaptiveModel.open(address, trust=key_list(), state_folder=state) as model:  # the server has no release yet
        assert model.bundle.manifest.name == "tiny"


def test_a_release_is_checked_before_the_manifest_is_parsed(own_bundle):
    (own_bundle.folder / "release.json").write_bytes(release(own_bundle.manifest_path.read_bytes()))
    own_bundle.manifest_path.write_bytes(b"not even JSON")
    with pytest.raises(SignatureError):
        Bundle.open(own_bundle.folder, trust=key_list())


def test_a_folder_opens_whether_its_release_has_expired_or_not(own_bundle, state):
    made = release(own_bundle.manifest_path.read_bytes(), signed_at_s=1, expires_at_s=2)
    (own_bundle.folder / "release.json").write_bytes(made)
    AdaptiveModel.open(own_bundle.folder, trust=key_list(), state_folder=state).close()


def test_without_trust_a_release_is_not_read(own_bundle):
    with contextlib.suppress(FileNotFoundError):
        (own_bundle.folder / "release.json").unlink()
    (own_bundle.folder / "release.json").mkdir()
    Bundle.open(own_bundle.folder)
    with pytest.raises(SignatureError, match=r"cannot read release\.json"):
        Bundle.open(own_bundle.folder, trust=key_list())
