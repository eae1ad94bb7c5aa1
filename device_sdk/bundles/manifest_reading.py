"""Manifests from untrusted bytes, read within limits."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator

import msgspec

from device_sdk.bundles.hybrid import check_hybrid
from device_sdk.bundles.manifest import FORMAT_VERSION, TASK_OUTPUTS, Manifest, decoding_hook
from device_sdk.errors import ManifestError, UnsupportedFormatError
from device_sdk.files.atomic import decode_json
from device_sdk.supernet.blocks import IDENTIFIER, Block, Exit

MAX_CUT_POINTS = 4_096
MAX_TENSORS = 64  # per cut point
MAX_AXES = 8
MAX_GOLDEN_ELEMENTS = 1 << 28  # of one tensor in the self-test: 1 GB of float32
MAX_BLOCKS = 16_384
MAX_EXITS = 4_096
MAX_RENDITIONS = 64  # per block or exit
MAX_SHARED = 4_096  # per rendition
MAX_INPUT_SIZES = 256
MAX_EDGES = 1 << 18
MAX_MEMBERS = 64
MAX_CLASSES = 1 << 20
MAX_TEXT = 4_096  # characters of a name; notes and the recipe are not limited


def check_limits(manifest: Manifest) -> None:
    """Raise ManifestError if the manifest has more of something than a bundle may have."""
    _count("cut points", len(manifest.cut_points), MAX_CUT_POINTS)
    _count("blocks", len(manifest.blocks), MAX_BLOCKS)
    _count("exits", len(manifest.exits), MAX_EXITS)
    _count("input sizes", len(manifest.input_sizes), MAX_INPUT_SIZES)
    _count("members", len(manifest.members), MAX_MEMBERS)
    _count("class names", len(manifest.task.class_names), MAX_CLASSES)
    for cut in manifest.cut_points:
        _count(f"tensors at cut point {cut.index}", len(cut.tensors), MAX_TENSORS)
    edges = 0
    for owner in _owners(manifest):
        edges += _check_owner(owner)
    _count("edges", edges * (1 + len(manifest.input_sizes)), MAX_EDGES)
    for shape in _shapes(manifest):
        _count("axes of a tensor", len(shape), MAX_AXES)
        _count(
            "elements of a tensor in the self-test", math.prod(shape) * manifest.self_test.batch, MAX_GOLDEN_ELEMENTS
        )
    for text in _texts(manifest):
        if len(text) > MAX_TEXT:
            raise ManifestError(f"the name {text[:40]!r}… has more than {MAX_TEXT} characters")


def _owners(manifest: Manifest) -> Iterator[Block | Exit]:
    yield from manifest.blocks
    yield from manifest.exits


def _check_owner(owner: Block | Exit) -> int:
    """The number of an owner's renditions."""
    _count(f"renditions of {owner.id[:80]}", len(owner.renditions), MAX_RENDITIONS)
    for one in owner.renditions:
        _count(f"shared blobs of {owner.id[:80]}", len(one.shared), MAX_SHARED)
    return len(owner.renditions)


def _shapes(manifest: Manifest) -> Iterator[tuple[int, ...]]:
    for cut in manifest.cut_points:
        yield from (spec.shape for spec in cut.tensors)
    for size in manifest.input_sizes:
        for shapes in size.shapes:
            yield from shapes


def _texts(manifest: Manifest) -> Iterable[str]:
    yield from manifest.task.class_names
    for ids in manifest.task.class_ids:
        yield from ids
    yield from (one.name for one in manifest.members)
    for cut in manifest.cut_points:
        yield from (spec.name for spec in cut.tensors)
    for owner in _owners(manifest):
        for one in owner.renditions:
            yield from (one.name, one.runtime, one.entry_point or "", *one.providers)


def _count(what: str, count: int, most: int) -> None:
    if count > most:
        raise ManifestError(f"the manifest has {count} {what}; {most} are allowed")


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
        manifest = decode_json(data, Manifest, hook=decoding_hook)
    except ValueError as error:
        raise ManifestError(f"manifest.json breaks the schema: {error}") from error
    check_limits(manifest)
    _check_names(manifest)
    _check_shared_sizes(manifest)
    _check_output(manifest)
    _check_input(manifest)
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


def _check_input(manifest: Manifest) -> None:
    first, prepared = manifest.cut_points[0].tensors, manifest.preprocessing
    if not prepared.accepts(first[0].shape, first[0].dtype) or (prepared.blobs() and len(first) > 1):
        shown = ", ".join(f"{one.dtype} {list(one.shape)}" for one in first)
        raise ManifestError(f"the model's input is {shown}, which its preprocessing does not prepare")


_OUTPUT_AXES = {"segmentation": 3, "detection": 3, "token_classification": 2}


def _check_output(manifest: Manifest) -> None:
    outputs = manifest.supernet().cut_points[-1].tensors[-1].shape
    classes, kind = len(manifest.task.class_names), manifest.task.kind
    channels = classes + _BOX_SIDES if kind == "detection" else classes
    axes = _OUTPUT_AXES.get(kind, 1)
    if kind == "embedding" and not classes and outputs:
        channels = outputs[0]
    if len(outputs) != axes or outputs[0] != channels:
        raise ManifestError(f"the model's output has shape {list(outputs)} for {kind} of {classes} classes")
    if manifest.task.output != TASK_OUTPUTS[kind]:
        raise ManifestError(f"{kind} cannot have {manifest.task.output} as output")
