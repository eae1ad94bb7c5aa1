"""Small objects that say what is published: one for each version, and a pointer for each name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec

from device_sdk.bundles.bundle import BLOB_MAX_BYTES, MANIFEST, MANIFEST_MAX_BYTES, SIGNATURE, Bundle
from device_sdk.files.atomic import decode_json
from device_sdk.supernet.blocks import IDENTIFIER
from server.state.object_store import ObjectError

RECORD_MAX_BYTES, POINTER_MAX_BYTES = 8_000_000, 4096
_Sha256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
_Version = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
_Told = TypeVar("_Told")

POINTERS = "latest"


class VersionRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A published version, which never changes. ``manifest``, ``signature``: the sha256 of each; both are blobs too."""

    format: Literal[1] = 1
    manifest: _Sha256
    manifest_bytes: Annotated[int, msgspec.Meta(ge=1, le=MANIFEST_MAX_BYTES)]
    signature: _Sha256 | None
    blobs: dict[_Sha256, Annotated[int, msgspec.Meta(ge=0, le=BLOB_MAX_BYTES)]]


class Pointer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The highest version of a name that is served (0: none). ``revision``: rises with every change of the name."""

    format: Literal[1] = 1
    version: _Version
    revision: Annotated[int, msgspec.Meta(ge=0, le=2**53)]


def record_of(bundle: Bundle, *, signature: str | None) -> VersionRecord:
    """The record of a bundle in a folder, whose blobs were verified."""
    return VersionRecord(
        manifest=bundle.digest,
        manifest_bytes=bundle.manifest_bytes,
        signature=signature,
        blobs=dict(sorted(bundle.blob_sizes().items())),
    )


def files_of(bundle: Bundle) -> dict[str, Path]:
    """The files that are stored beside its blobs."""
    names = (MANIFEST, SIGNATURE) if bundle.has_signature else (MANIFEST,)
    return {name: bundle.folder / name for name in names}


def decoded(data: bytes, kind: type[_Told], key: str) -> _Told:
    """An object's contents, checked (ObjectError if they are no such ``kind``)."""
    try:
        return decode_json(data, kind)
    except ValueError as error:
        raise ObjectError(f"{key} in the store of bundles is not valid: {error}", hint="publish it again") from error


def blob_key(digest: str) -> str:
    """The key of a blob, a manifest or a signature, by its sha256."""
    return f"blobs/{digest}"


def pointer_key(name: str) -> str:
    """The key of a name's pointer."""
    return f"{POINTERS}/{name}.json"


def record_key(name: str, version: int) -> str:
    """The key of a version's record."""
    return f"{records_of(name)}/{version}.json"


def release_key(name: str, version: int) -> str:
    """The key of a version's release, which is replaced when it is renewed."""
    return f"{records_of(name)}/{version}.release"


def rollback_key(name: str, version: int) -> str:
    """The key of the signed rollback to a version."""
    return f"{records_of(name)}/{version}.rollback"


def records_of(name: str) -> str:
    """The folder of a name's records, releases and key lists."""
    return f"bundles/{name}"


def named_by(key: str) -> str | None:
    """The name that a pointer's key is for; None if it is none."""
    folder, _, file = key.partition("/")
    name = file.removesuffix(".json")
    return name if folder == POINTERS and file != name and IDENTIFIER.fullmatch(name) else None


def version_of(key: str, suffix: str) -> int | None:
    """The version in the key of a record or a release; None if it is none."""
    stem = key.rpartition("/")[2].removesuffix(suffix)
    plain = key.endswith(suffix) and stem.isascii() and stem.isdigit() and len(stem) <= 10 and stem[0] != "0"
    return int(stem) if plain else None
