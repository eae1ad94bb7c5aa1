"""Key lists and releases for tests, signed by keys that have names."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

DAY_S = 24 * 3600
START_S = 1_800_000_000  # 2027-01-15
KEYS, RELEASE = b"pathweave keys\n", b"pathweave release\n"


def private(name: str) -> Ed25519PrivateKey:
    """For tests only: anybody can make it from its name."""
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest())


def digits(name: str) -> str:
    """The public half as lists have it."""
    return private(name).public_key().public_bytes_raw().hex()


def write_pair(folder: Path, name: str) -> tuple[Path, Path]:
    """PEM files of both halves."""
    key = private(name)
    paths = folder / f"{name}.key", folder / f"{name}.pub"
    paths[0].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    paths[1].write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return paths


def signed(payload: str, by: Iterable[str], context: bytes) -> bytes:
    """An envelope."""
    made = [{"key": digits(name), "signature": private(name).sign(context + payload.encode()).hex()} for name in by]
    return json.dumps({"payload": payload, "signatures": made}).encode()


def key_list(
    number: int = 1,
    *,
    roots: Iterable[str] = ("root-1", "root-2", "root-3"),
    threshold: int = 2,
    releases: Iterable[str] = ("release-1",),
    by: Iterable[str] = ("root-1", "root-2"),
    context: bytes = KEYS,
    **changes: Any,
) -> bytes:
    """A list that is valid for a year from ``START_S`` on; ``changes`` to its payload, None removes a field."""
    payload = {
        "format": 1,
        "number": number,
        "signed_at_s": START_S,
        "expires_at_s": START_S + 365 * DAY_S,
        "root_keys": [digits(name) for name in roots],
        "root_threshold": threshold,
        "release_keys": [digits(name) for name in releases],
    }
    return signed(_changed(payload, changes), by, context)


def release(
    manifest: bytes,
    *,
    name: str = "tiny",
    version: int = 1,
    by: Iterable[str] = ("release-1",),
    context: bytes = RELEASE,
    **changes: Any,
) -> bytes:
    """A release that is valid for 30 days from ``START_S`` on."""
    payload = {
        "format": 1,
        "name": name,
        "version": version,
        "manifest_sha256": hashlib.sha256(manifest).hexdigest(),
        "signed_at_s": START_S,
        "expires_at_s": START_S + 30 * DAY_S,
        "keys": 1,
    }
    return signed(_changed(payload, changes), by, context)


def _changed(payload: dict[str, Any], changes: dict[str, Any]) -> str:
    return json.dumps({field: value for field, value in (payload | changes).items() if value is not None})


def rollback(
    manifest: bytes,
    *,
    name: str = "tiny",
    from_version: int = 3,
    to_version: int = 2,
    by: Iterable[str] = ("release-1",),
    context: bytes = b"pathweave rollback\n",
    **changes: Any,
) -> bytes:
    """A rollback that is valid for 30 days from ``START_S`` on."""
    payload = {
        "format": 1,
        "name": name,
        "from_version": from_version,
        "to_version": to_version,
        "to_manifest_sha256": hashlib.sha256(manifest).hexdigest(),
        "signed_at_s": START_S,
        "expires_at_s": START_S + 30 * DAY_S,
    }
    return signed(_changed(payload, changes), by, context)
