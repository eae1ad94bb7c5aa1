"""Fragments of a bundle in another one: names changed, golden vectors made again.

Only names change in a fragment, so a path computes in the new bundle what it computed in its own.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import onnx

from device_sdk.bundles.bundle import Bundle
from device_sdk.bundles.runnable import golden_inputs, sample_outputs
from device_sdk.fragments.composition import COMPOSED, Stretch
from device_sdk.runtimes import OnnxRuntime
from device_sdk.supernet.blocks import Block, CutPoint, Exit, Rendition, TensorSpec
from packager.errors import PackagingError
from packager.output.bundle_folder import BundleWriter

_CUT = re.compile(r"cut_(\d+)((?:_\d+)?)")


class FragmentRenaming:
    """Moves blocks and exits of a bundle into another one, in which cut points have other numbers.

    ``places``: the new number of each of its cut points. ``member``: put before all ids; None: ids stay.
    """

    def __init__(
        self,
        bundle: Bundle,
        member: str | None,
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
        return part if self._member is None else f"{self._member}.{part}"

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
        if rendition.runtime != COMPOSED or rendition.compiled:
            owned = owner.id if self._member is None else f"{owner.id} of {self._member}"
            why = f"for {rendition.runtime}, whose program cannot be renamed"
            if rendition.compiled:
                why = f"{rendition.name}, whose golden vector only {rendition.compiled[0].provider} can make again"
            raise PackagingError(
                f"{owned} has a rendition {why}", hint="leave this rendition out, or package the members separately"
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
            return name if self._member is None else f"{self._member}.{name}"
        if name == f"exit_{part}":
            return f"exit_{self.named(part)}"
        return cut_name(name, self._places)


def shared_blobs(blocks: Iterable[Block], exits: Iterable[Exit]) -> set[str]:
    """The blobs that renditions need besides their own."""
    everything = [one for block in blocks for one in block.renditions]
    everything += [one for exit_ in exits for one in exit_.renditions]
    return {name for one in everything for name in one.shared}


def cut_name(name: str, places: Mapping[int, int]) -> str:
    """The joint name of a cut point's tensor; other names as they are: those of shared weights."""
    found = _CUT.fullmatch(name)
    return name if found is None else f"cut_{places[int(found[1])]}{found[2]}"
