"""Which version is this device's: asked with its tags, served by its number, gone back to only with a signature."""

from __future__ import annotations

import json
import shutil

import pytest

from device_sdk.delivery.assignment import decode_tags, encode_tags
from device_sdk.delivery.download import fetch_bundle
from device_sdk.errors import RollbackError, TransferError, UsageError
from device_sdk.signing import signatures
from tests.contract.signed_files import DAY_S, START_S, key_list, release, rollback, write_pair

SOON_S = START_S + DAY_S
QUICK = {"sleep": lambda seconds: None, "wall_clock": lambda: SOON_S}


class Fleet:
    """A server of numbered versions, and one device."""

    def __init__(self, server, store, transport, key, public):
        self.server, self.store, self.transport, self.key, self.trust = server, store, transport, key, public
        self.plain = (server.folder / "manifest.json").read_bytes()

    def publish(self, version):
        folder = self.server.folder / "versions" / str(version)
        folder.mkdir(parents=True)
        data = json.dumps(json.loads(self.plain) | {"version": version}).encode()
        for place in (folder, self.server.folder):
            (place / "manifest.json").write_bytes(data)
            (place / "manifest.sig").write_bytes(signatures.sign(data, private_key=self.key))
            (place / "release.json").write_bytes(release(data, version=version))
        shutil.copytree(self.server.folder / "blobs", folder / "blobs")
        return data

    def assign(self, version, **more):
        told = {"version": version, "rollout": 1, "stage": 0, "rollback": False, **more}
        (self.server.folder / "assignment").write_text(json.dumps(told))

    def permit(self, to, **changes):
        folder = self.server.folder / "versions" / str(to)
        made = rollback((folder / "manifest.json").read_bytes(), **{"to_version": to, **changes})
        (folder / "rollback.json").write_bytes(made)
        return folder / "rollback.json"

    def fetch(self, **settings):
        settings = {"trust": self.trust, "device": "a", **QUICK, **settings}
        delivered = fetch_bundle(self.server.url, self.store, self.transport, **settings)
        name, digest = delivered.name, delivered.digest
        self.store.remember_good(self.server.url, name, digest, rollback_from=delivered.rollback_from)
        return delivered

    @property
    def versions(self):
        """What opens offline, and the mark."""
        return self.store.last_good("tiny").version, self.store.highest("tiny").version


@pytest.fixture
def fleet(server, store, transport, tmp_path):
    made = Fleet(server, store, transport, *write_pair(tmp_path, "release-1"))
    for version in (1, 2, 3):
        made.publish(version)
    return made


@pytest.fixture
def at_three(fleet):
    """The device has version 3, and is to go back to 2."""
    fleet.assign(3)
    fleet.fetch()
    fleet.assign(2, rollback=True)
    return fleet


def kept(fleet, reason, failure):
    delivered = fleet.fetch()
    assert (delivered.version, delivered.source, delivered.refused.reason) == (3, "kept", reason)
    assert failure in delivered.failure
    assert fleet.versions == (3, 3)
    return delivered


def test_the_assigned_version_comes_by_its_number_and_not_the_highest(fleet):
    fleet.assign(2)
    delivered = fleet.fetch(tags={"region": "eu"})
    assert (delivered.version, delivered.source) == (2, "downloaded")
    assert {one.path.partition("/")[0] for one in fleet.server.served} == {"assignment", "versions"}
    assert fleet.fetch().source == "unchanged"


def test_without_a_device_nothing_is_asked(fleet):
    fleet.assign(2)
    assert fleet.fetch(device=None).version == 3
    assert not fleet.server.of("assignment")


def test_a_server_without_rollouts_gives_the_highest_version(fleet):
    assert (fleet.fetch().version, fleet.server.of("assignment")[0].status) == (3, 404)


@pytest.mark.parametrize(
    ("tags", "text"),
    [({}, ""), ({"region": "eu", "board": "orin-8"}, "board=orin-8,region=eu"), ({"a": "x" * 64},) * 2],
)
def test_tags_are_one_header(tags, text):
    text = text if isinstance(text, str) else f"a={'x' * 64}"
    assert encode_tags(tags) == text
    assert decode_tags(text) == tags


@pytest.mark.parametrize(
    "text",
    ["a", "=x", "a=", "a=b,a=c", "a=b,", "a=ü", "a=b\n", f"a={'x' * 65}", ",".join(f"n{i}=x" for i in range(17))],
)
def test_tags_are_bounded_and_plain(text):
    with pytest.raises(UsageError, match="tag"):
        decode_tags(text)


def test_tags_that_cannot_be_sent_are_the_callers_error(fleet):
    with pytest.raises(UsageError, match="tags"):
        fleet.fetch(tags={"region": "e u"})


@pytest.mark.parametrize("answer", [b"", b"{}", b'{"version": 0}', b'{"version": "2"}', b"x" * 5000])
def test_an_answer_that_makes_no_sense_changes_nothing(fleet, answer):
    fleet.assign(2)
    fleet.fetch()
    (fleet.server.folder / "assignment").write_bytes(answer)
    delivered = fleet.fetch()
    assert (delivered.version, delivered.source, delivered.refused) == (2, "kept", None)


def test_another_version_than_the_assigned_one_is_refused(at_three):
    shutil.rmtree(at_three.server.folder / "versions" / "2")
    shutil.copytree(at_three.server.folder / "versions" / "1", at_three.server.folder / "versions" / "2")
    kept(at_three, "transfer", "has version 1 of tiny")


def test_a_server_that_is_away_leaves_the_last_good_version(fleet):
    fleet.assign(2)
    fleet.fetch()
    fleet.server.close()
    delivered = fleet.fetch(attempts=1)
    assert (delivered.version, delivered.source, delivered.refused) == (2, "kept", None)


def test_a_server_that_refuses_to_assign_is_not_gone_around(fleet, fault):
    fleet.server.faults["assignment"] = [fault(status=403)]
    with pytest.raises(TransferError, match="403"):
        fleet.fetch()
    assert not fleet.server.of("manifest.json")


# Going back


def test_a_lower_version_is_refused_unless_a_signed_rollback_permits_it(at_three):
    kept(at_three, "rollback", "without a signed rollback")
    at_three.permit(2)
    delivered = at_three.fetch()
    assert (delivered.version, delivered.source, delivered.blobs_fetched) == (2, "downloaded", 0)
    assert at_three.versions == (2, 3)


def test_after_going_back_the_device_stays_there_offline_and_when_the_rollback_expires(at_three):
    path = at_three.permit(2)
    at_three.fetch()
    path.unlink()
    again = at_three.fetch(wall_clock=lambda: START_S + 300 * DAY_S)
    assert (again.version, again.source, at_three.versions) == (2, "unchanged", (2, 3))
    at_three.server.close()
    assert at_three.fetch(attempts=1).version == 2


def test_after_going_back_newer_versions_come_and_no_other_lower_one(at_three):
    at_three.permit(2)
    at_three.fetch()
    at_three.assign(1, rollback=True)
    assert (at_three.fetch().version, at_three.versions) == (2, (2, 3))
    at_three.publish(4)
    at_three.assign(4)
    assert (at_three.fetch().version, at_three.versions) == (4, (4, 4))


def test_the_version_that_was_left_may_come_again_and_going_back_needs_the_rollback_anew(at_three):
    path = at_three.permit(2)
    at_three.fetch()
    at_three.assign(3)
    assert (at_three.fetch().version, at_three.versions) == (3, (3, 3))
    path.unlink()
    at_three.assign(2, rollback=True)
    kept(at_three, "rollback", "without a signed rollback")


def test_a_rollback_is_not_looked_for_unless_the_server_says_so(at_three):
    at_three.permit(2)
    at_three.assign(2, rollback=False)
    kept(at_three, "rollback", "this device has had 3")
    assert not at_three.server.of("versions/2/rollback.json")


@pytest.mark.parametrize(
    ("changes", "reason", "failure"),
    [
        ({"by": ("stranger",)}, "signature", "not signed by a key"),
        ({"by": ()}, "signature", "not signed by a key"),
        ({"context": b"pathweave release\n"}, "signature", "not signed by a key"),
        ({"expires_at_s": START_S}, "expired", "expired"),
        ({"from_version": 2, "to": 1}, "rollback", "have had tiny 2 at most"),
        ({"to_manifest_sha256": "0" * 64}, "rollback", "leads to"),
        ({"to_version": 1}, "rollback", "leads to"),
        ({"name": "other"}, "rollback", "leads to"),
        ({"from_version": 1}, "signature", "no version to go back to"),
        ({"format": 2}, "bundle", "format 2"),
        ({"more": 1}, "signature", "not valid"),
    ],
)
def test_a_rollback_that_is_forged_expired_or_for_something_else_is_refused(at_three, changes, reason, failure):
    to = changes.pop("to", 2)
    path = at_three.permit(to, **changes)
    if to == 1:
        at_three.assign(1, rollback=True)
    kept(at_three, reason, failure)
    assert path.exists()


def test_a_huge_rollback_is_not_read(at_three):
    path = at_three.permit(2)
    path.write_bytes(path.read_bytes() + b" " * 17_000)
    kept(at_three, "transfer", "")


def test_a_clock_before_all_times_goes_back_and_one_far_ahead_says_so(at_three):
    at_three.permit(2)
    delivered = at_three.fetch(wall_clock=lambda: START_S + 900 * DAY_S)
    assert (delivered.refused.reason, "it may be wrong" in delivered.failure) == ("expired", True)
    assert at_three.fetch(wall_clock=lambda: 0).version == 2


def test_a_release_key_of_the_newest_list_signs_rollbacks_and_a_revoked_one_does_not(at_three):
    at_three.trust = key_list()
    keys = [place / "keys" for place in at_three.server.folder.glob("versions/*")]
    for folder in keys:
        folder.mkdir()
        (folder / "2.json").write_bytes(key_list(2, releases=("release-2",)))
    for version in (2, 3):
        folder = at_three.server.folder / "versions" / str(version)
        manifest = (folder / "manifest.json").read_bytes()
        (folder / "release.json").write_bytes(release(manifest, version=version, by=("release-2",), keys=2))
    at_three.permit(2)
    kept(at_three, "signature", "not signed by a key")
    at_three.permit(2, by=("release-2",))
    assert at_three.fetch().version == 2


def test_a_device_that_trusts_anybody_still_wants_the_rollback_to_be_for_it(at_three):
    at_three.trust = None
    at_three.permit(2, by=(), from_version=3, name="other")
    kept(at_three, "rollback", "leads to")
    at_three.permit(2, by=())
    assert at_three.fetch().version == 2


def test_a_device_that_has_had_more_meanwhile_does_not_go_back(at_three):
    """Another process of the device was faster with a newer version."""
    at_three.permit(2)
    back = fetch_bundle(
        at_three.server.url, at_three.store, at_three.transport, trust=at_three.trust, device="a", **QUICK
    )
    at_three.publish(4)
    at_three.assign(4)
    at_three.fetch()
    with pytest.raises(RollbackError):
        at_three.store.remember_good(at_three.server.url, "tiny", back.digest, rollback_from=back.rollback_from)
    assert at_three.versions == (4, 4)


def test_a_store_whose_mark_was_not_written_is_not_below_what_it_has(at_three):
    at_three.permit(2)
    folder = at_three.store.folder_of("tiny")
    marks = {name: (folder / name).read_bytes() for name in ("mark", "mark.copy")}
    at_three.fetch()
    for name, data in marks.items():  # as if the device was cut off before it wrote them
        (folder / name).write_bytes(data)
    assert at_three.versions == (3, 3)
    assert (at_three.fetch().version, at_three.versions) == (2, (2, 3))
