"""Key lists and releases as an operator makes them: on the command line."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from device_sdk.bundles.bundle import Bundle
from device_sdk.bundles.releasing import read_chain, sign_release
from device_sdk.errors import SignatureError
from packager.releasing import renew_releases
from pathweave.cli import main
from tests.contract.signed_files import DAY_S, digits, release, write_pair

CONTRACT = Path(__file__).parents[1] / "contract"
NOW_S = time.time()


class Operator:
    """Runs commands in a folder of its own."""

    def __init__(self, folder, capsys):
        self.folder, self.capsys = folder, capsys
        for name in ("root-1", "root-2", "root-3", "release-1", "release-2"):
            write_pair(folder, name)
        self.bundle = folder / "served" / "reference"
        self.bundle.mkdir(parents=True)
        for path in (CONTRACT / "bundle").rglob("*"):
            if path.is_file():
                copy = self.bundle / path.relative_to(CONTRACT / "bundle")
                copy.parent.mkdir(exist_ok=True)
                copy.write_bytes(path.read_bytes())

    def run(self, line, status=0):
        """The object that a command prints, or its error."""
        places = {"keys": "keys", "served": "served", "BUNDLE": "served/reference"}
        words = [
            str(self.folder / places.get(one, one)) if one in places or "." in one else one for one in line.split()
        ]
        assert main(["sign", *words, "--json"]) == status, self.capsys.readouterr()
        printed = json.loads(self.capsys.readouterr().out)
        return printed["error"] if status else printed

    def first_list(self):
        self.run("key list new keys --root root-1.pub --root root-2.pub --threshold 2 --release release-1.pub")
        self.run("key list sign keys --key root-1.key")
        return self.run("key list sign keys --key root-2.key")

    def chain(self):
        return read_chain(self.folder / "keys")

    def opens(self, number=1):
        """What a device that pins a list makes of the bundle."""
        return Bundle.open(self.bundle, trust=self.folder / "keys" / f"{number}.json")


@pytest.fixture
def operator(tmp_path, capsys):
    return Operator(tmp_path, capsys)


def test_a_draft_becomes_a_list_with_its_last_signature(operator):
    draft = operator.run("key list new keys --root root-1.pub --root root-2.pub --threshold 2 --release release-1.pub")
    assert (draft["complete"], draft["missing"]) == (False, 2)
    assert operator.run("key list sign keys --key root-1.key")["missing"] == 1
    assert operator.run("key list sign keys --key root-1.key")["missing"] == 1  # a second time counts for nothing
    assert [path.name for path in (operator.folder / "keys").iterdir()] == ["1.draft"]
    assert operator.run("key list sign keys --key root-2.key")["complete"]
    assert [path.name for path in (operator.folder / "keys").iterdir()] == ["1.json"]
    shown = operator.run("key list show keys")
    assert shown["numbers"] == [1]
    assert shown["newest"]["release_keys"] == [digits("release-1")]
    assert shown["newest"]["expires_at_s"] == pytest.approx(NOW_S + 365 * DAY_S, abs=3600)


def test_the_next_list_needs_the_signatures_of_the_roots_before_and_of_its_own(operator):
    operator.first_list()
    draft = operator.run(
        "key list next keys --add-root root-3.pub --remove-root root-1.pub"
        " --add-release release-2.pub --remove-release release-1.pub"
    )
    assert (draft["missing"], draft["missing_before"]) == (2, 2)
    for name, missing in (("root-3", [1, 2]), ("root-2", [0, 1])):
        draft = operator.run(f"key list sign keys --key {name}.key")
        assert [draft["missing"], draft["missing_before"]] == missing
        assert not draft["complete"]
    assert operator.run("key list sign keys --key root-1.key")["complete"]
    newest = operator.chain().newest
    assert newest.root_keys == (digits("root-2"), digits("root-3"))
    assert newest.release_keys == (digits("release-2"),)


def test_a_key_may_be_revoked_by_its_digits_when_its_file_is_lost(operator):
    operator.first_list()
    operator.run(f"key list next keys --add-release release-2.pub --remove-release {digits('release-1')}")
    for name in ("root-1", "root-2"):
        operator.run(f"key list sign keys --key {name}.key")
    assert operator.chain().newest.release_keys == (digits("release-2"),)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("key list new keys --root root-1.pub --threshold 1 --release release-1.pub", "has key lists already"),
        ("key list next keys --remove-root root-3.pub", "is not in the newest list"),
        ("key list next keys --remove-root root-1.pub", "asks for 2 signatures of 1 root keys"),
        ("key list next keys --remove-release release-1.pub", "valid"),
        ("key list next keys --add-release root-1.pub", "is a root key and a release key"),
        ("key list sign keys --key root-1.key", "has no draft"),
        ("release sign BUNDLE --keys keys --key release-2.key", "is not a release key of list 1"),
        ("release sign BUNDLE --keys keys --key root-1.key", "is not a release key of list 1"),
        ("release sign BUNDLE --keys served --key release-1.key", "has no key list"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(operator, line, message):
    operator.first_list()
    error = operator.run(line, status=2)
    assert message in error["message"]
    assert not list((operator.folder / "keys").glob("*.draft"))
    assert not (operator.bundle / "release.json").exists()


def test_one_draft_at_a_time(operator):
    operator.first_list()
    operator.run("key list next keys --add-release release-2.pub")
    assert "is not signed yet" in operator.run("key list next keys --add-release release-2.pub", status=2)["message"]
    error = operator.run("key list sign keys --key release-1.key", status=2)
    assert "is a root key of neither" in error["message"]


def test_an_altered_list_is_found(operator):
    operator.first_list()
    path = operator.folder / "keys" / "1.json"
    path.write_text(path.read_text().replace(digits("release-1"), digits("release-2")))
    assert operator.run("key list show keys", status=1)["type"] == "SignatureError"


def test_a_released_bundle_opens_by_the_pinned_list(operator):
    operator.first_list()
    with pytest.raises(SignatureError):
        operator.opens()
    made = operator.run("release sign BUNDLE --keys keys --key release-1.key --expires-days 7")
    assert made["expires_at_s"] == pytest.approx(NOW_S + 7 * DAY_S, abs=3600)
    assert (made["name"], made["keys"]) == (operator.opens().manifest.name, 1)


def test_a_damaged_bundle_is_not_released(operator):
    operator.first_list()
    blob = next((operator.bundle / "blobs").iterdir())
    data = blob.read_bytes()
    blob.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert operator.run("release sign BUNDLE --keys keys --key release-1.key", status=1)["type"] == "BlobError"
    assert not (operator.bundle / "release.json").exists()


def renewed(operator, *, now_s=NOW_S, name="release-1"):
    [one] = renew_releases(
        operator.folder / "served",
        operator.chain(),
        operator.folder / f"{name}.key",
        now_s=round(now_s),
        within_days=10,
        days=30,
    )
    return one


def test_releases_are_renewed_when_they_expire_soon(operator):
    operator.first_list()
    operator.run("release sign BUNDLE --keys keys --key release-1.key --expires-days 30")
    [one] = operator.run("release renew served --keys keys --key release-1.key")["releases"]
    assert (one["renewed"], one["reason"]) == (False, None)
    one = renewed(operator, now_s=NOW_S + 21 * DAY_S)
    assert one.renewed
    assert one.release.expires_at_s == pytest.approx(NOW_S + 51 * DAY_S, abs=3600)
    operator.opens()


@pytest.mark.parametrize("wrong", ["nothing", "a stranger's", "of another manifest"])
def test_what_was_not_released_is_not_renewed(operator, wrong):
    operator.first_list()
    manifest = (operator.bundle / "manifest.json").read_bytes()
    if wrong != "nothing":
        by, data = (["stranger"], manifest) if wrong == "a stranger's" else (["release-1"], manifest + b" ")
        (operator.bundle / "release.json").write_bytes(release(data, name="reference", by=by))
    before = [path.read_bytes() for path in operator.bundle.glob("release.json")]
    one = renewed(operator)
    assert not one.renewed
    assert "release.json" in one.reason
    assert [path.read_bytes() for path in operator.bundle.glob("release.json")] == before


def test_what_a_revoked_key_released_is_not_renewed_by_itself(operator):
    operator.first_list()
    operator.run("release sign BUNDLE --keys keys --key release-1.key --expires-days 5")
    operator.run("key list next keys --add-release release-2.pub --remove-release release-1.pub")
    for name in ("root-1", "root-2"):
        operator.run(f"key list sign keys --key {name}.key")
    one = renewed(operator, name="release-2")
    assert not one.renewed
    assert "key list 2" in one.reason


def test_nothing_is_released_with_a_wrong_clock_or_by_an_expired_list(operator):
    operator.first_list()
    key = operator.folder / "release-1.key"
    for now_s, message in ((0, "but it is 1970-01-01 00:00 UTC here"), (NOW_S + 366 * DAY_S, "expired on")):
        with pytest.raises(Exception, match=message):
            sign_release(operator.bundle, operator.chain(), key, now_s=round(now_s), days=30)
