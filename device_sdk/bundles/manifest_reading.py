"""Reading of manifest.json from untrusted bytes."""

from __future__ import annotations

import re

import msgspec

from device_sdk.bundles.hybrid import check_hybrid
from device_sdk.bundles.manifest import FORMAT_VERSION, Manifest
from device_sdk.bundles.manifest_limits import check_limits
from device_sdk.errors import ManifestError, UnsupportedFormatError
from device_sdk.files.untrusted_json import decode_json
from device_sdk.supernet.blocks import IDENTIFIER

_SHARED_SIZED_SINCE = 3  # minor version from which every shared blob has a size
_BLOB_NAME = re.compile(r"[0-9a-f]{64}")
_BOX_SIDES = 4


def decode_manifest(data: bytes) -> Manifest:
    """Read a manifest.

    Raises:
        UnsupportedFormatError: the format's major version is not supported.
        ManifestError: not JSON, a missing or mistyped field, an invalid graph, more of something than a bundle may
            have (``manifest_limits``), a name that is unsafe in a path, a number of outputs that does not match the
            classes, or a hybrid's path that is none.
    """
    _check_format_version(data)
    try:
        manifest = decode_json(data, Manifest)
    except ValueError as error:
        raise ManifestError(f"manifest.json breaks the schema: {error}") from error
    check_limits(manifest)
    _check_names(manifest)
    _check_shared_sizes(manifest)
    _check_output(manifest)
    check_hybrid(manifest)
    return manifest


class _Head(msgspec.Struct):
    format_version: str


def _check_format_version(data: bytes) -> None:
    try:
        version = decode_json(data, _Head).format_version
    except ValueError as error:
        raise ManifestError(f"manifest.json is not a manifest: {error}") from error
    if version.split(".")[0] != FORMAT_VERSION.split(".")[0]:
        raise UnsupportedFormatError(
            f"the bundle has format version {version}; this SDK reads {FORMAT_VERSION.split('.')[0]}.x",
            hint="update Pathweave on the device or package the model again",
        )


def _check_names(manifest: Manifest) -> None:
    for blob in manifest.blobs():
        if not _BLOB_NAME.fullmatch(blob):
            raise ManifestError(f"blob name {blob[:80]!r} is not 64 hexadecimal digits")
    owned = [block.id for block in manifest.blocks] + [exit_.id for exit_ in manifest.exits]
    for name in (manifest.name, *owned, *(block.kind for block in manifest.blocks)):
        if not IDENTIFIER.fullmatch(name):
            raise ManifestError(f"name {name[:80]!r} has characters that names must not have")


def _check_shared_sizes(manifest: Manifest) -> None:
    if manifest.minor_version < _SHARED_SIZED_SINCE:
        return
    unsized = [name for name, size in manifest.blobs().items() if size is None]
    if unsized:
        raise ManifestError(f"the manifest states no size for the shared blob {unsized[0][:12]}…")


def _check_output(manifest: Manifest) -> None:
    outputs = manifest.supernet().cut_points[-1].tensors[-1].shape
    classes, kind = len(manifest.task.class_names), manifest.task.kind
    channels = classes + _BOX_SIDES if kind == "detection" else classes
    axes = 1 if kind == "classification" else 3
    if len(outputs) != axes or outputs[0] != channels:
        raise ManifestError(f"the model's output has shape {list(outputs)} for {kind} of {classes} classes")
    if (manifest.task.output == "cells") != (kind == "detection"):
        raise ManifestError(f"{kind} cannot have {manifest.task.output} as output")
