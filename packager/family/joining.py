"""Bundles of the members become one: fragments renamed, cut points numbered together, golden vectors made again.

Only names change in a fragment, so a member's original path computes in the joint bundle what it computed in its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import onnx

from device_sdk.bundles.bundle import Bundle
from device_sdk.bundles.manifest import FORMAT_VERSION, Manifest
from device_sdk.bundles.runnable import golden_inputs, sample_outputs
from device_sdk.fragments.composition import COMPOSED, Stretch
from device_sdk.progress import Progress
from device_sdk.runtimes import OnnxRuntime
from device_sdk.supernet.blocks import Block, CutPoint, Exit, InputSize, Member, Rendition, TensorSpec
from packager.errors import PackagingError
from packager.family.numbering import Numbering
from packager.output.bundle_folder import BundleWriter

_CUT = re.compile(r"cut_(\d+)((?:_\d+)?)")


@dataclass(frozen=True)
class JoinedGraph:
    """The cut points and input sizes of all members together."""

    numbering: Numbering
    cut_points: tuple[CutPoint, ...]
    input_sizes: tuple[InputSize, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class StoredBlock:
    """A further block: its entry in the manifest but for the renditions' blobs, and the fragment of each rendition."""

    block: Block
    fragments: Mapping[str, bytes] = field(repr=False)


def joined_graph(bundles: Sequence[Bundle], numbering: Numbering) -> JoinedGraph:
    """The joint cut points, and the input sizes that all members have; those of the first name input and output."""
    cuts: dict[int, CutPoint] = {}
    for member, bundle in reversed(list(enumerate(bundles))):  # the first one last: its input and output stay
        for cut in bundle.supernet.cut_points:
            number = numbering.of((member, cut.index))
            tensors = tuple(
                msgspec.structs.replace(spec, name=_cut_name(spec.name, numbering.places[member]))
                for spec in cut.tensors
            )
            cuts[number] = CutPoint(number, tensors)
    common = common_sizes(bundles)
    sizes = tuple(_joined_size(size, bundles, numbering) for size in common)
    lost = sorted({one.size for bundle in bundles for one in bundle.manifest.input_sizes} - set(common))
    notes = tuple(f"no input of {height}x{width}: not all members run at it" for height, width in lost)
    return JoinedGraph(numbering, tuple(cuts[number] for number in sorted(cuts)), sizes, notes)


def common_sizes(bundles: Sequence[Bundle]) -> tuple[tuple[int, int], ...]:
    """The input sizes besides the own one that all members have, in the order of the first."""
    common = set.intersection(*({one.size for one in bundle.manifest.input_sizes} for bundle in bundles))
    return tuple(one.size for one in bundles[0].manifest.input_sizes if one.size in common)


def _joined_size(size: tuple[int, int], bundles: Sequence[Bundle], numbering: Numbering) -> InputSize:
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
            rename = _Renaming(bundle, member, graph.numbering.places[place], supernet_cuts, writer)
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
    for stitch in stitches:
        renditions = tuple(
            msgspec.structs.replace(one, blob=writer.add_blob(stitch.fragments[one.name]))
            for one in stitch.block.renditions
        )
        blocks.append(msgspec.structs.replace(stitch.block, renditions=renditions))
    first = bundles[0].manifest
    notes = [
        f"{member}: {note}" for bundle, member in zip(bundles, names, strict=True) for note in bundle.manifest.notes
    ]
    everything = [one for block in blocks for one in block.renditions]
    everything += [one for exit_ in exits for one in exit_.renditions]
    shared = {name for one in everything for name in one.shared}
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
        shared_sizes=writer.sizes_of(shared),
        members=tuple(members),
    )


class _Renaming:
    """Moves the blocks and exits of one member into the joint bundle."""

    def __init__(
        self,
        bundle: Bundle,
        member: str,
        places: Mapping[int, int],
        cut_points: Sequence[CutPoint],
        writer: BundleWriter,
    ) -> None:
        self._bundle, self._member, self._places = bundle, member, places
        self._cut_points, self._writer = cut_points, writer
        self._test = bundle.manifest.self_test
        self._runtime = OnnxRuntime(threads=1, lean=True)
        self._free_axes = bundle.supernet.free_axes

    def named(self, part: str) -> str:
        """The joint id of a block or exit."""
        return f"{self._member}.{part}"

    def block(self, block: Block) -> Block:
        """The block, its fragments stored under its joint names."""
        start, end = self._places[block.start], self._places[block.end]
        outputs = self._cut_points[end].tensors
        return msgspec.structs.replace(
            block,
            id=self.named(block.id),
            start=start,
            end=end,
            renditions=self._renditions(block, self._cut_points[start], outputs),
            copied_from=None if block.copied_from is None else self.named(block.copied_from),
        )

    def exit(self, exit_: Exit) -> Exit:
        """The exit, its fragments stored under its joint names."""
        position = self._places[exit_.position]
        own = self._bundle.supernet.exit_tensor(exit_)
        outputs = (msgspec.structs.replace(own, name=f"exit_{self.named(exit_.id)}"),)
        return msgspec.structs.replace(
            exit_,
            id=self.named(exit_.id),
            position=position,
            renditions=self._renditions(exit_, self._cut_points[position], outputs),
        )

    def _renditions(
        self, owner: Block | Exit, start: CutPoint, outputs: tuple[TensorSpec, ...]
    ) -> tuple[Rendition, ...]:
        return tuple(self._rendition(owner, one, start, outputs) for one in owner.renditions)

    def _rendition(
        self, owner: Block | Exit, rendition: Rendition, start: CutPoint, outputs: tuple[TensorSpec, ...]
    ) -> Rendition:
        if rendition.runtime != COMPOSED:
            raise PackagingError(
                f"{owner.id} of {self._member} has a rendition for {rendition.runtime}, which cannot be in a family",
                hint="leave this rendition out, or package the members separately",
            )
        fragment = self.renamed(owner.id, self._bundle.read_blob(rendition.blob))
        shared = [self._bundle.read_blob(name) for name in rendition.shared]
        manifest = self._bundle.manifest
        stretch = Stretch((*shared, fragment), start.tensors, outputs, manifest.onnx.ir_version, manifest.onnx.opset)
        inputs = golden_inputs(start, seed=self._test.seed, batch=self._test.batch)
        with contextlib.closing(self._runtime.load(stretch)) as loaded:
            answers = loaded.run(inputs)
        return msgspec.structs.replace(
            rendition,
            blob=self._writer.add_blob(fragment),
            size_bytes=len(fragment),
            shared=tuple(map(self._writer.add_blob, shared)),
            golden=msgspec.structs.replace(rendition.golden, samples=sample_outputs(answers)),
        )

    def renamed(self, part: str, fragment: bytes) -> bytes:
        """A fragment of ``part`` under its joint names."""
        graph = onnx.GraphProto.FromString(fragment)
        for node in graph.node:
            node.name = self._renamed(node.name, part)
            node.input[:] = [self._renamed(one, part) for one in node.input]
            node.output[:] = [self._renamed(one, part) for one in node.output]
        for tensor in graph.initializer:
            tensor.name = self._renamed(tensor.name, part)
        return graph.SerializeToString(deterministic=True)

    def _renamed(self, name: str, part: str) -> str:
        if name.startswith(f"{part}/"):
            return f"{self._member}.{name}"
        if name == f"exit_{part}":
            return f"exit_{self.named(part)}"
        return _cut_name(name, self._places)


def _cut_name(name: str, places: Mapping[int, int]) -> str:
    """The joint name of a cut point's tensor; other names as they are: those of shared weights."""
    found = _CUT.fullmatch(name)
    return name if found is None else f"cut_{places[int(found[1])]}{found[2]}"


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
