"""Bottlenecks put into a finished bundle: cut points numbered anew, fragments renamed, new blocks beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
from torch import nn

from device_sdk.bundles.bundle import Bundle
from device_sdk.bundles.manifest import FORMAT_VERSION, Manifest
from device_sdk.progress import Progress
from device_sdk.supernet.blocks import DECODER, ENCODER, CutPoint, InputSize, TensorSpec
from packager.joining.block_store import BlockStore, StoredBlock
from packager.joining.maps import with_channels
from packager.joining.renaming import FragmentRenaming, cut_name, shared_blobs
from packager.output.bundle_folder import BundleWriter


@dataclass(frozen=True)
class Insertion:
    """A bottleneck behind cut point ``cut`` of the bundle.

    ``encoder`` [n, *cut] → [n, *bottleneck]; ``decoder`` [n, *bottleneck] → [n, *cut point behind ``cut``]. ``low``,
    ``high`` bound most of the values between them. ``error``: of what the decoder makes, relative squared.
    """

    cut: int
    channels: int
    encoder: nn.Module
    decoder: nn.Module
    low: float
    high: float
    encoder_macs: int
    decoder_macs: int
    error: float


def inserted(bundle: Bundle, insertions: Sequence[Insertion], writer: BundleWriter, *, progress: Progress) -> Manifest:
    """Store all fragments of ``bundle`` and of ``insertions``; returns the manifest with both.

    Raises:
        PackagingError: the bundle has a rendition whose program cannot be renamed.
        VerificationError: a fragment does not compute what its module computes.
    """
    manifest = bundle.manifest
    numbers = _Numbers([one.cut for one in insertions], len(manifest.cut_points))
    cut_points = _cut_points(manifest.cut_points, insertions, numbers)
    sizes = tuple(_with_shapes(one, insertions, numbers) for one in manifest.input_sizes)
    rename = FragmentRenaming(bundle, None, numbers.places, cut_points, writer)
    blocks, exits = [], []
    with progress.task("number cut points", len(manifest.blocks) + len(manifest.exits)) as task:
        for block in manifest.blocks:
            blocks.append(rename.block(block))
            task.advance()
        for exit_ in manifest.exits:
            exits.append(rename.exit(exit_))
            task.advance()
    store = BlockStore(cut_points, ())  # a split runs at the model's own input size
    with progress.task("export bottlenecks", len(insertions)) as task:
        for one in insertions:
            blocks += [made.written(writer) for made in _stored(one, store, numbers)]
            task.advance()
    return msgspec.structs.replace(
        manifest,
        format_version=FORMAT_VERSION,
        cut_points=cut_points,
        blocks=tuple(blocks),
        exits=tuple(exits),
        input_sizes=sizes,
        shared_sizes=writer.sizes_of(shared_blobs(blocks, exits)),
    )


class _Numbers:
    """The new numbers of cut points; a bottleneck comes right behind the cut point that it is for."""

    def __init__(self, cuts: Sequence[int], count: int) -> None:
        self.places: Mapping[int, int] = {number: number + sum(cut < number for cut in cuts) for number in range(count)}

    def bottleneck(self, cut: int) -> int:
        """The number of the bottleneck behind ``cut``."""
        return self.places[cut] + 1

    def following(self, cut: int) -> int:
        """The new number of the cut point behind ``cut``."""
        return self.places[cut + 1]


def _cut_points(
    cut_points: Sequence[CutPoint], insertions: Sequence[Insertion], numbers: _Numbers
) -> tuple[CutPoint, ...]:
    found: dict[int, CutPoint] = {}
    for cut in cut_points:
        tensors = tuple(msgspec.structs.replace(spec, name=cut_name(spec.name, numbers.places)) for spec in cut.tensors)
        found[numbers.places[cut.index]] = CutPoint(numbers.places[cut.index], tensors, cut.mandatory)
    for one in insertions:
        number, wide = numbers.bottleneck(one.cut), cut_points[one.cut].tensors[0].shape
        spec = TensorSpec(f"cut_{number}", with_channels(wide, one.channels), low=one.low, high=one.high)
        found[number] = CutPoint(number, (spec,))
    return tuple(found[number] for number in sorted(found))


def _with_shapes(size: InputSize, insertions: Sequence[Insertion], numbers: _Numbers) -> InputSize:
    shapes = {numbers.places[cut]: found for cut, found in enumerate(size.shapes)}
    for one in insertions:
        shapes[numbers.bottleneck(one.cut)] = (with_channels(size.shapes[one.cut][0], one.channels),)
    return msgspec.structs.replace(size, shapes=tuple(shapes[number] for number in sorted(shapes)))


def _stored(one: Insertion, store: BlockStore, numbers: _Numbers) -> tuple[StoredBlock, StoredBlock]:
    number, name = numbers.bottleneck(one.cut), f"b{one.cut}-{one.channels}"
    into, behind = (numbers.places[one.cut], number), (number, numbers.following(one.cut))
    return (
        store.stored(f"{name}-encoder", ENCODER, one.encoder, into, macs=one.encoder_macs, error=0.0),
        store.stored(f"{name}-decoder", DECODER, one.decoder, behind, macs=one.decoder_macs, error=one.error),
    )
