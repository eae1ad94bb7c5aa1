"""Bundles of the members become one: fragments renamed, cut points numbered together, golden vectors made again.

Only names change in a fragment, so a member's original path computes in the joint bundle what it computed in its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from device_sdk.bundles.bundle import Bundle
from device_sdk.bundles.manifest import FORMAT_VERSION, Manifest
from device_sdk.progress import Progress
from device_sdk.supernet.blocks import Block, CutPoint, Exit, InputSize, Member
from packager.family.numbering import Numbering
from packager.joining.block_store import StoredBlock
from packager.joining.renaming import FragmentRenaming, cut_name, shared_blobs
from packager.output.bundle_folder import BundleWriter


@dataclass(frozen=True)
class JoinedGraph:
    """The cut points and input sizes of all members together."""

    numbering: Numbering
    cut_points: tuple[CutPoint, ...]
    input_sizes: tuple[InputSize, ...]
    notes: tuple[str, ...] = ()


def joined_graph(bundles: Sequence[Bundle], numbering: Numbering) -> JoinedGraph:
    """The joint cut points, and the input sizes that all members have; those of the first name input and output."""
    cuts: dict[int, CutPoint] = {}
    for member, bundle in reversed(list(enumerate(bundles))):  # the first one last: its input and output stay
        for cut in bundle.supernet.cut_points:
            number = numbering.of((member, cut.index))
            tensors = tuple(
                msgspec.structs.replace(spec, name=cut_name(spec.name, numbering.places[member]))
                for spec in cut.tensors
            )
            cuts[number] = CutPoint(number, tensors)
    common = common_sizes(bundles)
    sizes = tuple(_joined_size(size, bundles, numbering) for size in common)
    lost = sorted({one.size for bundle in bundles for one in bundle.manifest.input_sizes} - set(common))
    notes = tuple(f"no input of {height}x{width}: not all members run at it" for height, width in lost)
    return JoinedGraph(numbering, tuple(cuts[number] for number in sorted(cuts)), sizes, notes)


def common_sizes(bundles: Sequence[Bundle]) -> tuple[tuple[int, ...], ...]:
    """The input sizes besides the own one that all members have, in the order of the first."""
    common = set.intersection(*({one.size for one in bundle.manifest.input_sizes} for bundle in bundles))
    return tuple(one.size for one in bundles[0].manifest.input_sizes if one.size in common)


def _joined_size(size: tuple[int, ...], bundles: Sequence[Bundle], numbering: Numbering) -> InputSize:
    shapes: dict[int, tuple[tuple[int, ...], ...]] = {}
    for member, bundle in reversed(list(enumerate(bundles))):
        own = next(one for one in bundle.manifest.input_sizes if one.size == size)
        shapes |= {numbering.of((member, cut)): found for cut, found in enumerate(own.shapes)}
    return msgspec.structs.replace(own, shapes=tuple(shapes[number] for number in sorted(shapes)))


def joined(
    bundles: Sequence[Bundle],
    names: Sequence[str],
    graph: JoinedGraph,
    stitches: Sequence[StoredBlock],
    writer: BundleWriter,
    *,
    losses: Sequence[float],
    name: str,
    progress: Progress,
) -> Manifest:
    """Store the fragments of all members and the stitches; returns the manifest of the family.

    ``losses``: of each member against the first, as ``losses`` measures them.

    Raises:
        PackagingError: a member has renditions of another runtime, whose programs cannot be renamed, or a fragment
            does not compute what it computed before.
    """
    blocks: list[Block] = []
    exits: list[Exit] = []
    members: list[Member] = []
    supernet_cuts = graph.cut_points
    total = sum(len(bundle.manifest.blocks) + len(bundle.manifest.exits) for bundle in bundles)
    with progress.task("join members", total) as task:
        for place, (bundle, member) in enumerate(zip(bundles, names, strict=True)):
            rename = FragmentRenaming(bundle, member, graph.numbering.places[place], supernet_cuts, writer)
            task.note(member)
            whole = sum(block.macs for block in bundle.manifest.blocks if block.is_original) or 1
            for block in bundle.manifest.blocks:
                moved = rename.block(block)
                if block.is_original and losses[place] > 0:
                    share = float(f"{losses[place] * block.macs / whole:.3g}")
                    moved = msgspec.structs.replace(moved, distillation_error=share)
                blocks.append(moved)
                task.advance()
            for exit_ in bundle.manifest.exits:
                exits.append(rename.exit(exit_))
                task.advance()
            chain = sorted((b for b in bundle.manifest.blocks if b.is_original), key=lambda b: b.start)
            members.append(
                Member(member, tuple(rename.named(b.id) for b in chain), bundle.manifest.metrics.original_accuracy)
            )
    blocks += [stitch.written(writer) for stitch in stitches]
    first = bundles[0].manifest
    notes = [
        f"{member}: {note}" for bundle, member in zip(bundles, names, strict=True) for note in bundle.manifest.notes
    ]
    return msgspec.structs.replace(
        first,
        format_version=FORMAT_VERSION,
        name=name,
        cut_points=graph.cut_points,
        blocks=tuple(blocks),
        exits=tuple(exits),
        input_sizes=graph.input_sizes,
        provenance=msgspec.structs.replace(
            first.provenance,
            model=" + ".join(names),
            source="; ".join(bundle.manifest.provenance.source for bundle in bundles),
            weights_sha256=_digest_of_all(bundle.manifest.provenance.weights_sha256 for bundle in bundles),
        ),
        notes=(*notes, *graph.notes),
        shared_sizes=writer.sizes_of(shared_blobs(blocks, exits)),
        members=tuple(members),
    )


def _digest_of_all(digests: Iterable[str | None]) -> str | None:
    found: list[str | None] = list(digests)
    if None in found:
        return None
    return hashlib.sha256("".join(map(str, found)).encode()).hexdigest()


def depths_of(bundles: Iterable[Bundle]) -> Iterator[list[float]]:
    """For each bundle the share of the work that is done at each cut point along its originals, from 0 to 1."""
    for bundle in bundles:
        macs = [bundle.supernet.block(edge.block).macs for edge in bundle.supernet.original.edges]
        whole, done = sum(macs) or 1, 0
        depths = [0.0]
        for number, one in enumerate(macs, start=1):
            done += one
            depths.append((done + number) / (whole + len(macs)))  # increasing also over blocks without a product
        yield depths
