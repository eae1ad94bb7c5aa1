"""Writes trust.json: key lists and releases that are taken, and those that are refused (see README.md)."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from device_sdk.delivery.marks import Mark, encode_mark
from device_sdk.signing.release import TimeMark
from tests.contract.signed_files import DAY_S, KEYS, RELEASE, START_S, digits, key_list, private, release, signed

MANIFEST = b'{"name": "tiny", "version": 1}'  # any bytes: only their digest counts
LISTS = {
    "one": key_list(),
    "two": key_list(2, releases=["release-2"]),  # release-1 is revoked
    "new roots": key_list(2, roots=["root-2", "root-4"], by=["root-1", "root-2", "root-4"]),
    "three": key_list(3, roots=["root-2", "root-4"], by=["root-2", "root-4"], releases=["release-3"]),
}
SIGNED, BAD, OTHER_FORMAT = "SignatureError", "SignatureError", "UnsupportedFormatError"


def main(target: Path) -> None:
    """Lists by name, then cases that name them."""
    found = {
        "lists": {name: data.decode() for name, data in LISTS.items()},
        "pinned": pinned_cases(),
        "next": next_cases(),
        "releases": release_cases(),
        "signed_manifest": {
            "manifest": MANIFEST.decode(),
            "by_release_1": private("release-1").sign(MANIFEST).hex(),
            "by_root_1": private("root-1").sign(MANIFEST).hex(),
        },
        "time_marks": time_mark_cases(),
    }
    target.write_text(json.dumps(found, indent=1) + "\n")


def _altered(data: bytes, old: str, new: str) -> bytes:
    assert old.encode() in data
    return data.replace(old.encode(), new.encode())


def _signatures(data: bytes, change: Any) -> bytes:
    envelope = json.loads(data)
    return json.dumps({**envelope, "signatures": change(envelope["signatures"])}).encode()


def pinned_cases() -> list[dict[str, Any]]:
    """What a caller may pin; with an error: what is refused."""
    good = key_list()
    cases: list[tuple[str, bytes, str | None]] = [
        ("a list", good, None),
        ("all of its root keys signed", key_list(by=["root-1", "root-2", "root-3"]), None),
        ("a stranger signed too", key_list(by=["stranger", "root-3", "root-1"]), None),
        ("a later list", key_list(9), None),
        ("too few signatures", key_list(by=["root-1"]), SIGNED),
        ("one root key signed twice", _signatures(key_list(by=["root-1"]), lambda given: given * 2), SIGNED),
        ("a stranger instead", key_list(by=["root-1", "stranger"]), SIGNED),
        ("a release key instead", key_list(by=["root-1", "release-1"]), SIGNED),
        ("signed as a release", key_list(context=RELEASE), SIGNED),
        ("an altered payload", _altered(good, '\\"root_threshold\\": 2', '\\"root_threshold\\": 1'), SIGNED),
        (
            "a signature of other bytes",
            _signatures(good, lambda given: [given[0], given[1] | {"signature": "0" * 128}]),
            SIGNED,
        ),
        ("a threshold of none", key_list(threshold=0), BAD),
        ("a threshold above its keys", key_list(roots=["root-1", "root-2"], threshold=3), BAD),
        ("a root key twice", key_list(roots=["root-1", "root-1", "root-2"]), BAD),
        ("a release key twice", key_list(releases=["release-1", "release-1"]), BAD),
        ("no release key", key_list(releases=[]), BAD),
        ("33 release keys", key_list(releases=[f"release-{number}" for number in range(33)]), BAD),
        ("number 0", key_list(0), BAD),
        ("a number above 31 bits", key_list(2**31), BAD),
        ("a fraction as its number", key_list(number=1.0), BAD),  # type: ignore[arg-type]
        ("a key in capitals", key_list(release_keys=[digits("release-1").upper()]), BAD),
        ("a key that is too short", key_list(release_keys=[digits("release-1")[:-2]]), BAD),
        ("a time before 1970", key_list(signed_at_s=-1), BAD),
        ("a time after the year 9999", key_list(expires_at_s=253_402_300_800), BAD),
        ("a field that is missing", key_list(expires_at_s=None), BAD),
        ("a field that is unknown", key_list(also=1), BAD),
        ("no format", key_list(format=None), BAD),
        ("another format", key_list(format=2), OTHER_FORMAT),
        ("not JSON", b"keys", BAD),
        ("no envelope", json.dumps(json.loads(good)["payload"]).encode(), BAD),
        ("an unknown field in the envelope", json.dumps(json.loads(good) | {"also": 1}).encode(), BAD),
        ("a payload that is an object", b'{"payload": {}, "signatures": []}', BAD),
        ("65 signatures", _signatures(good, lambda given: (given * 33)[:65]), BAD),
        ("64 signatures", _signatures(good, lambda given: (given * 32)[:64]), None),
        ("more than 65536 bytes", good + b" " * (65_537 - len(good)), BAD),
        ("65536 bytes", good + b" " * (65_536 - len(good)), None),
        ("letters beyond ASCII in the payload", signed('{"format": 1, "é": "∞"}', ["root-1", "root-2"], KEYS), BAD),
    ]
    return [{"case": name, "list": data.decode(), "error": error} for name, data, error in cases]


def next_cases() -> list[dict[str, Any]]:
    """Lists after list ``after``; with an error: refused."""
    both = ["root-1", "root-2", "root-3", "root-4", "root-5"]
    new = {"roots": ["root-4", "root-5"], "threshold": 2}
    cases: list[tuple[str, str, bytes, str | None]] = [
        ("a release key is replaced", "one", LISTS["two"], None),
        ("a root key is replaced", "one", LISTS["new roots"], None),
        ("the list after it", "new roots", LISTS["three"], None),
        ("all root keys are replaced", "one", key_list(2, **new, by=both), None),
        ("only the new root keys signed", "one", key_list(2, **new, by=["root-4", "root-5"]), SIGNED),
        ("only the old root keys signed", "one", key_list(2, **new, by=["root-1", "root-2"]), SIGNED),
        ("one of the old root keys is missing", "one", key_list(2, **new, by=["root-1", "root-4", "root-5"]), SIGNED),
        ("a lower threshold of its own", "one", key_list(2, threshold=1, by=["root-3"]), SIGNED),
        ("a higher threshold that it does not reach", "one", key_list(2, threshold=3), SIGNED),
        (
            "a root key that was revoked",
            "new roots",
            key_list(3, roots=["root-2", "root-4"], by=["root-1", "root-2"]),
            SIGNED,
        ),
        ("the same number", "one", key_list(1, releases=["release-2"]), SIGNED),
        ("a number is left out", "one", key_list(3), SIGNED),
        ("a number back", "two", LISTS["one"], SIGNED),
        ("another format", "one", key_list(2, format=2), OTHER_FORMAT),
        ("not a list", "one", b"{}", BAD),
    ]
    return [{"case": name, "after": after, "list": data.decode(), "error": error} for name, after, data, error in cases]


def release_cases() -> list[dict[str, Any]]:
    """Releases by the lists that a device has, its clock and what it has seen; with an error: nothing is installed.

    The time mark after each release that verifies is ``mark_after``.
    """
    day, end = DAY_S, START_S + 30 * DAY_S
    one, two = ["one"], ["one", "two"]
    plain = release(MANIFEST)
    later = release(MANIFEST, signed_at_s=START_S + 40 * day, expires_at_s=START_S + 70 * day)
    by_two = release(MANIFEST, by=["release-2"], keys=2)
    expired, clock = "ExpiredError", "ClockError"

    def case(
        name: str,
        data: bytes,
        error: str | None = None,
        *,
        lists: list[str] = one,
        clock_s: int = START_S + day,
        mark: tuple[int, int] = (0, 0),
        mark_after: tuple[int, int] | None = None,
        manifest: bytes = MANIFEST,
        bundle: tuple[str, int] = ("tiny", 1),
    ) -> dict[str, Any]:
        return {
            "case": name,
            "release": data.decode(),
            "lists": lists,
            "clock_s": clock_s,
            "mark": mark,
            "mark_after": mark_after,
            "manifest_sha256": hashlib.sha256(manifest).hexdigest(),
            "name": bundle[0],
            "version": bundle[1],
            "error": error,
        }

    seen = (1, START_S)
    return [
        case("a release", plain, mark_after=seen),
        case("the last second", plain, clock_s=end, mark_after=seen),
        case("a second later", plain, expired, clock_s=end + 1, mark_after=seen),
        case("a clock that stands at 1970", plain, clock_s=0, mark_after=seen),
        case("a clock before it was signed", plain, clock_s=START_S - 99 * day, mark_after=seen),
        case("a clock far ahead", plain, clock, clock_s=end + 367 * day, mark_after=seen),
        case("a year after it expired", plain, expired, clock_s=end + 366 * day, mark_after=seen),
        case("a clock at the end of time", plain, clock, clock_s=2**53, mark_after=seen),
        case(
            "the clock was set back, but a later release was seen",
            plain,
            expired,
            clock_s=START_S,
            mark=(1, end + 1),
            mark_after=(1, end + 1),
        ),
        case(
            "a clock far ahead, and a later release was seen",
            plain,
            expired,
            clock_s=end + 999 * day,
            mark=(1, end + 1),
            mark_after=(1, end + 1),
        ),
        case("what was seen lies before its end", plain, clock_s=START_S, mark=(1, end), mark_after=(1, end)),
        case("a renewed release", later, clock_s=START_S, mark=seen, mark_after=(1, START_S + 40 * day)),
        case(
            "a new key list ends what was seen",
            by_two,
            lists=two,
            clock_s=START_S,
            mark=(1, 2 * START_S),
            mark_after=(2, START_S),
        ),
        case(
            "what was seen under the same list counts",
            by_two,
            expired,
            lists=two,
            clock_s=START_S,
            mark=(2, end + 1),
            mark_after=(2, end + 1),
        ),
        case("an older key list than was seen", plain, "RollbackError", mark=(2, START_S)),
        case("it expires before it was signed", release(MANIFEST, expires_at_s=START_S - 1), expired, mark_after=seen),
        case(
            "the key list has expired",
            release(MANIFEST, expires_at_s=START_S + 999 * day),
            expired,
            clock_s=START_S + 366 * day,
            mark_after=seen,
        ),
        case(
            "the key list has expired, by what was signed",
            release(MANIFEST, signed_at_s=START_S + 366 * day, expires_at_s=START_S + 999 * day),
            expired,
            clock_s=0,
            mark_after=(1, START_S + 366 * day),
        ),
        case("its key was replaced", plain, SIGNED, lists=two),
        case("the new key", by_two, lists=two, mark_after=(2, START_S)),
        case("a key of a later list", by_two, SIGNED),
        case("a later list, a key of this one", release(MANIFEST, keys=2), SIGNED),
        case(
            "an earlier list, a key of this one",
            release(MANIFEST, by=["release-2"], keys=1),
            lists=two,
            mark_after=(2, START_S),
        ),
        case("a root key", release(MANIFEST, by=["root-1", "root-2"]), SIGNED),
        case("a stranger", release(MANIFEST, by=["stranger"]), SIGNED),
        case("a stranger beside the key", release(MANIFEST, by=["stranger", "release-1"]), mark_after=seen),
        case("nobody", release(MANIFEST, by=[]), SIGNED),
        case("signed as a key list", release(MANIFEST, context=KEYS), SIGNED),
        case("signed without a context", release(MANIFEST, context=b""), SIGNED),
        case(
            "an altered time", _altered(plain, f'\\"expires_at_s\\": {end}', f'\\"expires_at_s\\": {end + 1}'), SIGNED
        ),
        case("another manifest", plain, SIGNED, manifest=MANIFEST + b" ", mark_after=seen),
        case("another version", plain, SIGNED, bundle=("tiny", 2), mark_after=seen),
        case("another name", plain, SIGNED, bundle=("tiny-2", 1), mark_after=seen),
        case("a name with a path", release(MANIFEST, name="../tiny"), BAD, bundle=("../tiny", 1)),
        case("version 0", release(MANIFEST, version=0), BAD, bundle=("tiny", 0)),
        case("a digest in capitals", release(MANIFEST, manifest_sha256="A" * 64), BAD),
        case("a fraction as its time", release(MANIFEST, expires_at_s=end + 0.5), BAD),
        case("a field that is missing", release(MANIFEST, keys=None), BAD),
        case("a field that is unknown", release(MANIFEST, also=1), BAD),
        case("another format", release(MANIFEST, format=2), OTHER_FORMAT),
        case("a key list instead", key_list(by=["release-1"], context=RELEASE), BAD),
        case("not JSON", b"release", BAD),
        case("more than 16384 bytes", plain + b" " * (16_385 - len(plain)), BAD),
        case("16384 bytes", plain + b" " * (16_384 - len(plain)), mark_after=seen),
    ]


def time_mark_cases() -> list[dict[str, Any]]:
    """Marks of time as the store keeps them, byte for byte; without a mark: a damaged record."""
    marks = [TimeMark(), TimeMark(1, START_S), TimeMark(2**31 - 1, 253_402_300_799)]
    whole = encode_mark(marks[1])
    damaged = {
        "empty": b"",
        "cut short": whole[:-9],
        "another time": whole.replace(b"1800000000", b"1900000000"),
        "another digest": whole.replace(b'"sha256":"', b'"sha256":"0'),
        "a mark of a version": encode_mark(Mark("tiny", 1, "0" * 64))[:-2] + b"0\n",
    }
    kept = [{"mark": [mark.keys, mark.signed_at_s], "record": encode_mark(mark).hex()} for mark in marks]
    return [*kept, *({"case": name, "mark": None, "record": data.hex()} for name, data in damaged.items())]


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("trust.json"))
