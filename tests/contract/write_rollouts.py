"""Writes rollouts.json: versions that servers assign, rollbacks to them, and reports of refusals (see README.md)."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import msgspec

from device_sdk.delivery.assignment import asking_headers
from device_sdk.delivery.download import Delivered
from device_sdk.delivery.marks import Mark, encode_mark
from device_sdk.delivery.refusals import Refusal
from device_sdk.logs import adaptation_log
from tests.contract.signed_files import DAY_S, KEYS, RELEASE, START_S, digits, release, rollback

MANIFEST = b'{"name": "tiny", "version": 2}'  # any bytes: only their digest counts
PROTOCOL, USAGE = "ProtocolError", "UsageError"
SIGNED, FORMAT, PERMITTED, EXPIRED = "SignatureError", "UnsupportedFormatError", "RollbackError", "ExpiredError"
VERSION_MAX = 2**53 - 1


def main(target: Path) -> None:
    """All parts."""
    found = {
        "questions": question_cases(),
        "assignments": assignment_cases(),
        "rollbacks": rollback_cases(),
        "marks": mark_cases(),
        "reasons": REASONS,
        "events": event_cases(),
    }
    target.write_text(json.dumps(found, indent=1) + "\n")


def question_cases() -> list[dict[str, Any]]:
    """Devices with their tags, and the headers that a server is sent; with an error: nothing is sent."""
    whole: list[tuple[str, dict[str, str] | None]] = [
        ("0123456789abcdef", None),
        ("a", {}),
        ("A.b_c-9", {"region": "eu", "board": "orin-8", "Zone": "1", "a.b": "x_y"}),
        ("d" * 128, {"n" * 64: "x" * 64}),
        ("many", {f"n{number}": "x" for number in range(16)}),
    ]
    refused: list[tuple[str, dict[str, str]]] = [
        ("a", {f"n{number}": "x" for number in range(17)}),
        ("a", {"": "x"}),
        ("a", {"region": ""}),
        ("a", {"region": "e u"}),
        ("a", {"region": "eu,board=orin"}),
        ("a", {"region=": "eu"}),
        ("a", {"region": "ü"}),
        ("a", {"region": "eu\n"}),
        ("a", {"region": "x" * 65}),
        ("a", {"x" * 65: "eu"}),
    ]
    cases = [{"device": device, "tags": tags, "headers": asking_headers(device, tags)} for device, tags in whole]
    return [*cases, *({"device": device, "tags": tags, "error": USAGE} for device, tags in refused)]


def assignment_cases() -> list[dict[str, Any]]:
    """Answers of a server; with an error: none."""
    whole: list[tuple[str, str, tuple[int, int | None, int | None, bool]]] = [
        ("a stage", '{"version": 2, "rollout": 1, "stage": 0, "rollback": false}', (2, 1, 0, False)),
        ("back", '{"version": 1, "rollout": 7, "stage": null, "rollback": true}', (1, 7, None, True)),
        ("no rollout", '{"version": 3, "rollout": null, "stage": null, "rollback": false}', (3, None, None, False)),
        ("a version alone", '{"version": 9007199254740991}', (VERSION_MAX, None, None, False)),
        ("a field of later servers", '{"version": 2, "until": "2027", "stage": 3}', (2, None, 3, False)),
        ("a field twice", '{"version": 2, "version": 3}', (3, None, None, False)),
    ]
    refused = {
        "nothing": "",
        "no object": "2",
        "no version": "{}",
        "version 0": '{"version": 0}',
        "a version below zero": '{"version": -1}',
        "a version beyond 53 bits": '{"version": 9007199254740992}',
        "a fraction": '{"version": 2.5}',
        "a version as text": '{"version": "2"}',
        "no version at all": '{"version": null}',
        "a rollout below zero": '{"version": 2, "rollout": -1}',
        "a stage as text": '{"version": 2, "stage": "0"}',
        "a stage beyond 53 bits": '{"version": 2, "stage": 9007199254740992}',
        "a rollback as a number": '{"version": 2, "rollback": 1}',
        "a rollback that is null": '{"version": 2, "rollback": null}',
        "two answers": '{"version": 2}{"version": 3}',
        "a page": "<html>welcome</html>",
    }
    cases: list[dict[str, Any]] = [
        {"case": name, "answer": text, "version": told[0], "rollout": told[1], "stage": told[2], "rollback": told[3]}
        for name, text, told in whole
    ]
    return [*cases, *({"case": name, "answer": text, "error": PROTOCOL} for name, text in refused.items())]


def rollback_cases() -> list[dict[str, Any]]:
    """Rollbacks by the keys that may sign, what the device has had, its clock and the latest signed time it knows."""
    plain, end = rollback(MANIFEST), START_S + 30 * DAY_S

    def case(
        name: str,
        data: bytes,
        error: str | None = None,
        *,
        signers: tuple[str, ...] | None = ("release-1",),
        bundle: tuple[str, int] = ("tiny", 2),
        manifest: bytes = MANIFEST,
        had: int = 3,
        clock_s: int = START_S + DAY_S,
        proven_s: int = 0,
    ) -> dict[str, Any]:
        return {
            "case": name,
            "rollback": data.decode(),
            "signers": None if signers is None else [digits(one) for one in signers],
            "name": bundle[0],
            "version": bundle[1],
            "manifest_sha256": hashlib.sha256(manifest).hexdigest(),
            "had": had,
            "clock_s": clock_s,
            "proven_s": proven_s,
            "error": error,
        }

    return [
        case("a rollback", plain),
        case("over several versions", rollback(MANIFEST, from_version=9), had=7),
        case("exactly from there", rollback(MANIFEST, from_version=9), had=9),
        case("the last second", plain, clock_s=end),
        case("a clock that stands at 1970", plain, clock_s=0),
        case("the key after a stranger", rollback(MANIFEST, by=("stranger", "release-1"))),
        case("one of several keys", rollback(MANIFEST, by=("release-2",)), signers=("release-1", "release-2")),
        case("unsigned, for a device that asks for no signature", rollback(MANIFEST, by=()), signers=None),
        case("the highest versions", rollback(MANIFEST, from_version=VERSION_MAX), had=VERSION_MAX),
        case("16384 bytes", plain + b" " * (16_384 - len(plain))),
        # the key
        case("a stranger", rollback(MANIFEST, by=("stranger",)), SIGNED),
        case("unsigned", rollback(MANIFEST, by=()), SIGNED),
        case("no key is trusted", plain, SIGNED, signers=()),
        case("a key that was replaced", plain, SIGNED, signers=("release-2",)),
        case("signed as a release", rollback(MANIFEST, context=RELEASE), SIGNED),
        case("signed as a key list", rollback(MANIFEST, context=KEYS), SIGNED),
        case("signed without a context", rollback(MANIFEST, context=b""), SIGNED),
        case("an altered version", plain.replace(b'\\"from_version\\": 3', b'\\"from_version\\": 4'), SIGNED, had=4),
        case("another signature", plain.replace(b'"signature": "', b'"signature": "' + b"0" * 128, 1), SIGNED),
        # what it leads to
        case("another manifest", plain, PERMITTED, manifest=MANIFEST + b" "),
        case("another name", plain, PERMITTED, bundle=("tiny-2", 2)),
        case("another version", plain, PERMITTED, bundle=("tiny", 1)),
        case("replayed on a device that has had more", plain, PERMITTED, had=4),
        case("unsigned, of another name", rollback(MANIFEST, by=(), name="other"), PERMITTED, signers=None),
        # the time
        case("a second too late", plain, EXPIRED, clock_s=end + 1),
        case("a clock far ahead", plain, "ClockError", clock_s=end + 367 * DAY_S),
        case("the clock was set back, but a later time was signed", plain, EXPIRED, clock_s=0, proven_s=end + 1),
        case("what was signed lies before its end", plain, clock_s=0, proven_s=end),
        case("it expires before it was signed", rollback(MANIFEST, expires_at_s=START_S - 1), EXPIRED, clock_s=0),
        # the payload
        case("back to the same version", rollback(MANIFEST, from_version=2), SIGNED, had=2),
        case("forward", rollback(MANIFEST, from_version=1), SIGNED, had=1),
        case("a name with a path", rollback(MANIFEST, name="../tiny"), SIGNED, bundle=("../tiny", 2)),
        case("version 0", rollback(MANIFEST, to_version=0), SIGNED, bundle=("tiny", 0)),
        case("a version beyond 53 bits", rollback(MANIFEST, from_version=2**53), SIGNED),
        case("a version as text", rollback(MANIFEST, from_version="3"), SIGNED),  # type: ignore[arg-type]
        case("a digest in capitals", rollback(MANIFEST, to_manifest_sha256="A" * 64), SIGNED),
        case("a digest that is too short", rollback(MANIFEST, to_manifest_sha256="0" * 63), SIGNED),
        case("a time after the year 9999", rollback(MANIFEST, expires_at_s=253_402_300_800), SIGNED),
        case("a fraction as its time", rollback(MANIFEST, signed_at_s=START_S + 0.5), SIGNED),
        case("a field that is missing", rollback(MANIFEST, signed_at_s=None), SIGNED),
        case("a field that is unknown", rollback(MANIFEST, more=1), SIGNED),
        case("no format", rollback(MANIFEST, format=None), SIGNED),
        case("another format", rollback(MANIFEST, format=2), FORMAT),
        case("a release instead", release(MANIFEST, context=b"pathweave rollback\n"), SIGNED),
        case("not JSON", b"rollback", SIGNED),
        case("more than 16384 bytes", plain + b" " * (16_385 - len(plain)), SIGNED),
    ]


def mark_cases() -> list[dict[str, Any]]:
    """Marks of a device that was rolled back, byte for byte, and which versions they permit; damaged ones without."""
    back, other, old = "b" * 64, "c" * 64, "a" * 64
    mark = Mark("tiny", 3, old, ("d" * 64,), back)
    permits = [(4, other), (3, old), (2, back)]
    refused = [(3, other), (2, other), (1, other)]
    whole = encode_mark(mark)
    return [
        {
            "mark": {**msgspec.to_builtins(mark), "version": str(mark.version)},
            "record": whole.hex(),
            "permits": permits,
            "refuses": refused,
        },
        {"case": "no digest to go back to", "record": encode_mark(Mark("tiny", 3, old, (), "b" * 63)).hex()},
        {"case": "null in its place", "record": encode_mark(Mark("tiny", 3, old, (), None)).hex()},  # type: ignore[arg-type]
        {"case": "another one to go back to", "record": whole.replace(b"b" * 64, b"e" * 64).hex()},
    ]


REASONS = {  # kinds of refusals, by the error
    "SelfTestError": "self_test",
    "CompositionError": "self_test",
    "RuntimeFailedError": "self_test",
    "BudgetError": "memory",
    "ExpiredError": "expired",
    "ClockError": "expired",
    "SignatureError": "signature",
    "RollbackError": "rollback",
    "TransferError": "transfer",
    "DeadlineError": "transfer",
    "RefusedError": "transfer",
    "ProtocolError": "transfer",
    "StorageError": "storage",
    "BundleError": "bundle",
    "ManifestError": "bundle",
    "UnsupportedFormatError": "bundle",
    "BlobError": "bundle",
}


def event_cases() -> list[dict[str, Any]]:
    """Deliveries, and the events that the log has of them."""
    digest = "0123456789abcdef" * 4
    refusals = [
        None,
        Refusal(3, digest, "self_test"),
        Refusal(2**53 - 1, None, "transfer"),
    ]
    return [
        _events(*told) for told in zip(("downloaded", "kept", "kept"), (None, "wrong", "cut"), refusals, strict=True)
    ]


def _events(how: Any, failure: str | None, refusal: Refusal | None) -> dict[str, Any]:
    delivery = Delivered(
        Path("f"), Path("b"), "tiny", "9" * 64, 2, how, 4, 5_000_000_000, 1, failure=failure, refused=refusal
    )
    events = [msgspec.json.encode(adaptation_log.delivered(delivery)).decode()]
    if refusal is not None:
        events.append(msgspec.json.encode(adaptation_log.refused(refusal, failure)).decode())
    return {"how": how, "failure": failure, "refused": refusal and msgspec.to_builtins(refusal), "events": events}


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("rollouts.json"))
