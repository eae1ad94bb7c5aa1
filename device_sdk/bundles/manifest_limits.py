"""Limits on the counts and lengths in a manifest, checked before anything is built from it.

They keep all later work proportional to the manifest's bytes. EfficientNet-Lite0's bundle has 33 cut points, 57 blocks
and 114 renditions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from device_sdk.bundles.manifest import Manifest
from device_sdk.errors import ManifestError
from device_sdk.supernet.blocks import Block, Exit

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
MAX_CLASSES = 1 << 20
MAX_TEXT = 4_096  # characters of a name; notes and the recipe are not limited


def check_limits(manifest: Manifest) -> None:
    """Raise ManifestError if the manifest has more of something than a bundle may have."""
    _count("cut points", len(manifest.cut_points), MAX_CUT_POINTS)
    _count("blocks", len(manifest.blocks), MAX_BLOCKS)
    _count("exits", len(manifest.exits), MAX_EXITS)
    _count("input sizes", len(manifest.input_sizes), MAX_INPUT_SIZES)
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
    for cut in manifest.cut_points:
        yield from (spec.name for spec in cut.tensors)
    for owner in _owners(manifest):
        for one in owner.renditions:
            yield from (one.name, one.runtime, one.entry_point or "", *one.providers)


def _count(what: str, count: int, most: int) -> None:
    if count > most:
        raise ManifestError(f"the manifest has {count} {what}; {most} are allowed")
