"""Key lists and releases from a server: what is installed, what is refused, what stays in use."""

from __future__ import annotations

import json
import logging

import pytest

from benchmarks.faults.tools.full_disk import without_room
from device_sdk.bundles.bundle import Bundle
from device_sdk.delivery.download import fetch_bundle
from device_sdk.delivery.key_lists import LISTS_AT_ONCE, stored_lists
from device_sdk.delivery.time_marks import time_mark
from device_sdk.errors import ClockError, ExpiredError, RollbackError, SignatureError, StorageError, TransferError
from device_sdk.signing import signatures
from device_sdk.signing.trust import load_trust
from tests.contract.signed_files import DAY_S, START_S, key_list, release

SOON_S = START_S + DAY_S
END_S = START_S + 30 * DAY_S


class Device:
    """Trusts list 1, and has a clock."""

    def __init__(self, server, store, transport, quick):
        self.server, self.store, self.transport, self.quick = server, store, transport, quick
        self.pinned, self.clock_s = key_list(), SOON_S

    def publish(self, *, version=1, **changes):
        """Serve a version of the bundle with its release."""
        path = self.server.folder / "manifest.json"
        data = json.dumps(json.loads(path.read_bytes()) | {"version": version}).encode()
        path.write_bytes(data)
        self.release(data, version=version, **changes)

    def release(self, manifest=None, **changes):
        manifest = manifest or (self.server.folder / "manifest.json").read_bytes()
        (self.server.folder / "release.json").write_bytes(release(manifest, **changes))

    def give_list(self, number, **changes):
        path = self.server.folder / "keys" / f"{number}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(key_list(number, **changes))

    def fetch(self, **settings):
        delivered = fetch_bundle(
            self.server.url,
            self.store,
            self.transport,
            trust=self.pinned,
            wall_clock=lambda: self.clock_s,
            **self.quick,
            **settings,
        )
        opened = Bundle.open(
            delivered.folder, trust=stored_lists(load_trust(self.pinned), self.store), blobs=delivered.blobs
        )
        assert opened.digest == delivered.digest
        allow = {name: settings[name] for name in ("allow_rollback",) if name in settings}
        self.store.remember_good(self.server.url, delivered.name, delivered.digest, **allow)
        return delivered

    def kept(self, error, **settings):
        """The last good bundle stays, and the failure is this error's; without one, it is raised."""
        delivered = self.fetch(**settings)
        assert delivered.source == "kept"
        assert error in delivered.failure
        return delivered


@pytest.fixture
def quick():
    return {"sleep": lambda seconds: None}


@pytest.fixture
def device(server, store, transport, quick):
    (server.folder / "manifest.sig").unlink()  # releases stand in for it
    made = Device(server, store, transport, quick)
    made.publish()
    return made


def test_a_release_by_a_pinned_list_is_installed_and_not_fetched_twice(device):
    assert (device.fetch().source, device.fetch().source) == ("downloaded", "unchanged")
    assert {one.path for one in device.server.served} >= {"keys/2.json", "release.json", "manifest.json"}


def test_the_list_may_be_pinned_as_a_file_too(device, tmp_path):
    path = tmp_path / "keys.json"
    path.write_bytes(device.pinned)
    device.pinned = path
    assert device.fetch().source == "downloaded"


def test_without_a_release_nothing_is_installed(device):
    (device.server.folder / "release.json").unlink()
    with pytest.raises(SignatureError, match=r"has no release\.json"):
        device.fetch()


def test_a_manifest_signature_does_not_stand_in_for_a_release(device, own_bundle):
    (device.server.folder / "release.json").unlink()
    manifest = (device.server.folder / "manifest.json").read_bytes()
    signature = signatures.sign(manifest, private_key=own_bundle.private_key)
    (device.server.folder / "manifest.sig").write_bytes(signature)
    with pytest.raises(SignatureError, match=r"has no release\.json"):
        device.fetch()


def test_with_a_single_key_releases_are_not_asked_for(fetch, server, own_bundle):
    (server.folder / "release.json").write_bytes(b"not a release")
    assert fetch(trust=own_bundle.public_key).source == "downloaded"
    assert not server.of("release.json")
    assert not server.of("keys/2.json")


# Rotation and revocation


def test_a_rotated_release_key_is_taken_and_the_old_one_refused(device):
    device.fetch()
    device.give_list(2, releases=["release-2"])
    device.publish(version=2, by=["release-1"])
    device.kept("is not signed by a release key of key list 2")
    device.publish(version=2, by=["release-2"], keys=2)
    assert device.fetch().version == 2


def test_a_revoked_key_stays_revoked_when_the_server_withholds_the_list(device):
    device.fetch()
    device.give_list(2, releases=["release-2"])
    device.kept("key list 2")
    (device.server.folder / "keys" / "2.json").unlink()
    device.publish(version=2, by=["release-1"])
    assert device.kept("key list 2").version == 1


def test_root_keys_rotate_over_several_lists_in_one_delivery(device):
    device.give_list(2, roots=["root-2", "root-4"], by=["root-1", "root-2", "root-4"])
    device.give_list(3, roots=["root-4", "root-5"], by=["root-2", "root-4", "root-5"], releases=["release-3"])
    device.publish(version=2, by=["release-3"], keys=3)
    assert device.fetch().version == 2
    before = len(device.server.served)
    device.fetch()
    assert {one.path for one in device.server.served[before:]} >= {"keys/4.json"}
    assert not {"keys/2.json", "keys/3.json"} & {one.path for one in device.server.served[before:]}


def test_a_list_that_the_previous_root_keys_did_not_sign_is_refused(device):
    device.fetch()
    device.give_list(2, roots=["root-4", "root-5"], by=["root-4", "root-5"], releases=["release-2"])
    device.publish(version=2, by=["release-2"], keys=2)
    assert device.kept("0 of 2 signatures by list 1's root keys").version == 1
    assert stored_lists(load_trust(device.pinned), device.store).newest.number == 1


def test_the_installed_bundle_opens_after_its_key_was_revoked(device, caplog):
    device.fetch()
    device.give_list(2, releases=["release-2"])
    with caplog.at_level(logging.WARNING):
        device.kept("key list 2")
    assert "the key that released tiny 1 was revoked" in caplog.text


def test_an_application_that_pins_a_newer_list_goes_on_with_the_stored_ones(device):
    device.give_list(2, releases=["release-2"])
    device.give_list(3, releases=["release-3"])
    device.release(by=["release-3"], keys=3)
    device.fetch()
    device.pinned = key_list(2, releases=["release-2"])
    for number in (2, 3):
        (device.server.folder / "keys" / f"{number}.json").unlink()
    assert device.fetch().source == "unchanged"


@pytest.fixture
def rotated(device):
    """It has installed by list 2, whose key list 1 does not have."""
    device.give_list(2, releases=["release-2"])
    device.release(by=["release-2"], keys=2)
    device.fetch()
    return device


def withhold(device, number):
    path = device.server.folder / "keys" / f"{number}.json"
    return path.rename(device.server.folder / "withheld"), path


@pytest.mark.parametrize("ending", ["json", "copy"])
def test_one_damaged_copy_of_a_list_loses_nothing(rotated, ending):
    withhold(rotated, 2)
    [path] = (rotated.store.folder / "keys").glob(f"*.{ending}")
    path.write_bytes(path.read_bytes()[:-9])
    assert rotated.fetch().source == "unchanged"
    rotated.publish(version=2, by=["release-1"])
    assert rotated.kept("key list 2").version == 1


def test_with_both_copies_damaged_no_revoked_key_comes_back(rotated):
    for path in (rotated.store.folder / "keys").iterdir():
        path.write_bytes(b"")
    withheld, path = withhold(rotated, 2)
    rotated.publish(version=2, by=["release-1"])
    with pytest.raises(SignatureError):  # nothing here verifies what is installed
        rotated.fetch()
    assert rotated.store.highest("tiny").version == 1
    withheld.rename(path)
    rotated.publish(version=3, by=["release-2"], keys=2)
    assert rotated.fetch().version == 3


def test_new_root_keys_from_number_1_on_are_a_rollback_unless_allowed(rotated):
    withhold(rotated, 2)
    rotated.pinned = key_list(roots=["root-7"], threshold=1, by=["root-7"], releases=["release-7"])
    rotated.publish(version=2, by=["release-7"])
    with pytest.raises(SignatureError):  # what is installed is by keys that are not trusted any more
        rotated.fetch()
    assert rotated.store.highest("tiny").version == 1
    assert rotated.fetch(allow_rollback=True).version == 2
    assert rotated.fetch().source == "unchanged"


def test_a_long_chain_is_taken_over_several_deliveries(device):
    newest = LISTS_AT_ONCE + 6
    for number in range(2, newest + 1):
        device.give_list(number)
    for expected in (LISTS_AT_ONCE + 1, newest):
        device.fetch()
        assert stored_lists(load_trust(device.pinned), device.store).newest.number == expected


# Freeze


def test_an_expired_release_is_not_installed(device):
    device.clock_s = END_S + 1
    with pytest.raises(ExpiredError, match="the release of tiny 1 expired on 2027-02-14 08:00 UTC"):
        device.fetch()


def test_a_frozen_server_is_told_and_the_installed_bundle_stays_in_use(device, caplog):
    device.fetch()
    device.clock_s = END_S + 1
    with caplog.at_level(logging.WARNING):
        assert device.kept("expired").version == 1
    assert "newer ones may be withheld" in caplog.text
    device.release(signed_at_s=END_S, expires_at_s=END_S + DAY_S)
    assert device.fetch().source == "unchanged"


def test_an_expired_key_list_stops_updates_until_there_is_a_newer_one(device):
    device.fetch()
    device.clock_s = START_S + 366 * DAY_S
    renewed = {"signed_at_s": device.clock_s - 1, "expires_at_s": device.clock_s + DAY_S}
    device.publish(version=2, **renewed)
    device.kept("key list 1 expired")
    device.give_list(2, **renewed)
    assert device.fetch().version == 2


# Mix and match, rollback


@pytest.mark.parametrize("part", ["manifest", "release"])
def test_parts_of_two_releases_are_not_installed(device, part):
    device.fetch()
    old = {name: (device.server.folder / name).read_bytes() for name in ("manifest.json", "release.json")}
    device.publish(version=2)
    (device.server.folder / f"{part}.json").write_bytes(old[f"{part}.json"])
    assert device.kept("is not the one that release.json names").version == 1


def test_a_bundle_that_is_replaced_during_the_download_is_fetched_again(device):
    device.fetch()
    device.publish(version=2)
    replaced = []

    def replace(path):
        if path == "manifest.json" and not replaced:
            replaced.append(path)
            device.publish(version=3)

    device.server.before = replace
    assert device.fetch().version == 3


def test_a_key_that_is_rotated_during_the_download_is_fetched_again(device):
    device.fetch()
    rotated = []

    def rotate(path):
        if path == "release.json" and not rotated:
            rotated.append(path)
            device.give_list(2, releases=["release-2"])
            device.publish(version=2, by=["release-2"], keys=2)

    device.server.before = rotate
    assert device.fetch().version == 2


def test_an_older_release_that_has_not_expired_is_a_rollback(device):
    device.fetch()
    device.publish(version=2)
    device.fetch()
    device.publish(version=1)
    assert device.kept("this device has had 2").version == 2
    assert device.fetch(allow_rollback=True).version == 1


def test_a_release_that_says_another_version_than_the_manifest_is_refused(device):
    device.fetch()
    device.publish(version=2)
    device.release(version=3)
    device.kept("release.json is of tiny 3, manifest.json of tiny 2")


# Clocks


@pytest.mark.parametrize("clock_s", [0, START_S - 999 * DAY_S])
def test_a_clock_that_is_behind_does_not_keep_from_installing(device, clock_s):
    device.clock_s = clock_s
    assert device.fetch().version == 1


def test_setting_the_clock_back_does_not_bring_back_an_expired_release(device):
    device.fetch()
    old = (device.server.folder / "release.json").read_bytes()
    device.release(signed_at_s=END_S + DAY_S, expires_at_s=END_S + 9 * DAY_S)
    device.clock_s = END_S + DAY_S
    device.fetch()
    (device.server.folder / "release.json").write_bytes(old)
    device.clock_s = SOON_S
    device.kept("expired")


def test_the_time_is_remembered_even_if_what_was_signed_then_is_not_installed(device):
    device.release(signed_at_s=END_S + DAY_S, expires_at_s=END_S + 2 * DAY_S)
    device.clock_s = END_S + 9 * DAY_S
    with pytest.raises(ExpiredError):
        device.fetch()
    device.release()
    device.clock_s = SOON_S
    with pytest.raises(ExpiredError):
        device.fetch()


@pytest.mark.parametrize("damaged", ["time", "time.copy"])
def test_one_damaged_copy_of_the_time_loses_nothing(device, damaged):
    device.fetch()
    before = time_mark(device.store, "tiny")
    path = device.store.folder / "bundles" / "tiny" / damaged
    path.write_bytes(path.read_bytes()[:-5])
    assert time_mark(device.store, "tiny") == before
    assert before.signed_at_s == START_S


def test_a_clock_far_ahead_is_doubted_and_does_not_lose_what_is_installed(device):
    device.fetch()
    device.clock_s = END_S + 80 * 365 * DAY_S
    device.publish(version=2)
    assert device.kept("it may be wrong").version == 1
    device.clock_s = SOON_S
    assert device.fetch().version == 2


def test_a_clock_far_ahead_at_the_first_download_is_a_clock_error(device):
    device.clock_s = 2**60
    with pytest.raises(ClockError, match="clock says second 1152921504606846976 since 1970: it may be wrong") as caught:
        device.fetch()
    assert "set the clock" in caught.value.hint


def test_a_release_signed_with_a_clock_far_ahead_is_undone_by_a_new_key_list(device):
    far_s = START_S + 300 * DAY_S
    device.release(signed_at_s=far_s, expires_at_s=far_s + DAY_S)
    device.fetch()
    device.release()
    device.kept("expired")
    device.give_list(2)
    assert device.fetch().source == "unchanged"


# Bounds


@pytest.mark.parametrize("name", ["release.json", "keys/2.json"])
def test_a_file_that_is_too_large_is_not_read_to_its_end(device, name):
    device.fetch()
    path = device.server.folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b" " * 10_000_000)
    delivered = device.fetch()
    assert delivered.source == "kept"
    assert "more than" in delivered.failure


def test_a_server_that_answers_every_address_with_a_page_is_refused(device):
    device.fetch()
    path = device.server.folder / "keys" / "2.json"
    path.parent.mkdir()
    path.write_bytes(b"<html>welcome</html>")
    device.kept("keys/2.json is not a signed file")


def test_a_server_that_fails_is_not_taken_for_one_without_further_lists(device, fault):
    device.fetch()
    device.server.faults["keys/2.json"] = [fault(status=403)]
    device.kept("403")


# The disk


def test_where_no_file_can_be_written_the_installed_bundle_stays(device):
    device.fetch()
    device.give_list(2, releases=["release-2"])
    device.publish(version=2, by=["release-2"], keys=2)
    without_room(lambda: _kept_on_a_full_disk(device))
    assert device.fetch().version == 2


def _kept_on_a_full_disk(device):
    delivered = fetch_bundle(
        device.server.url,
        device.store,
        device.transport,
        trust=device.pinned,
        wall_clock=lambda: device.clock_s,
        **device.quick,
    )
    assert (delivered.source, delivered.version) == ("kept", 1)


def test_the_errors_are_bundle_errors_and_no_transfer_errors():
    for error in (ExpiredError, ClockError, RollbackError, SignatureError):
        assert not issubclass(error, (TransferError, StorageError))
