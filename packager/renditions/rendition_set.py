"""The renditions of one kind: fragments or programs, made from and compared with stand-alone models of each part."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx

from device_sdk.bundles.runnable import sample_outputs
from device_sdk.fragments.composition import Stretch, compose
from device_sdk.runtimes import OnnxRuntime
from device_sdk.supernet.blocks import CompiledFor, Golden, Quantization, Rendition
from packager.errors import TraceError
from packager.exporting.export import ExportedBlocks, deduplicate_weights
from packager.exporting.onnx_exporter import OPSET
from packager.exporting.verification import ABSOLUTE_TOLERANCE, TorchReference
from packager.output.bundle_folder import BundleWriter
from packager.renditions.calibration import Live, in_batches, relative_error

MAX_ERROR = 0.25  # a block with a larger error is left out
GOLDEN_TOLERANCE = 2.0  # times the quantisation error on real samples: other CPUs round differently


@dataclass(frozen=True)
class RenditionSet:
    """The renditions of one kind by block or exit id. Parts without such a rendition are missing.

    ``needs``: names in ``shared`` of further initializers of a fragment. ``errors``, ``loaded_bytes``, ``compiled``: as
    of ``Rendition``. ``quantization``: by cut point. ``any_size``: parts that run at every input size of the bundle.
    ``notes``: parts left out, with the reason.
    """

    name: str
    runtime: str
    own: Mapping[str, bytes]
    golden: Mapping[str, Golden]
    shared: Mapping[str, bytes] = field(default_factory=dict)
    needs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    errors: Mapping[str, float] = field(default_factory=dict)
    loaded_bytes: Mapping[str, int] = field(default_factory=dict)
    compiled: Mapping[str, tuple[CompiledFor, ...]] = field(default_factory=dict)
    opset: int | None = None
    entry_point: str | None = None
    providers: tuple[str, ...] = ()
    quantization: Mapping[int, Quantization] = field(default_factory=dict)
    any_size: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()

    def stored(self, writer: BundleWriter) -> dict[str, Rendition]:
        """Store all blobs. Returns the renditions by block or exit id."""
        shared = {name: writer.add_blob(data) for name, data in self.shared.items()}
        return {
            part: Rendition(
                name=self.name,
                runtime=self.runtime,
                blob=writer.add_blob(data),
                size_bytes=len(data),
                golden=self.golden[part],
                shared=tuple(shared[needed] for needed in self.needs.get(part, ())),
                opset=self.opset,
                entry_point=self.entry_point,
                providers=self.providers,
                error=self.errors.get(part),
                any_size=part in self.any_size,
                loaded_bytes=self.loaded_bytes.get(part),
                compiled=self.compiled.get(part, ()),
            )
            for part, data in self.own.items()
        }


def part_stretch(exported: ExportedBlocks, part: str, graph: onnx.GraphProto | None = None) -> Stretch:
    """One block or exit, ready to load; ``graph`` replaces its own fragment."""
    exits = {exit_.id for exit_ in exported.expansion.exits}
    stretch = exported.stretch([], part) if part in exits else exported.stretch([part])
    return stretch if graph is None else replace(stretch, fragments=(graph.SerializeToString(),))


def part_model(
    exported: ExportedBlocks, part: str, free_axes: Mapping[str, frozenset[int]] | None = None
) -> onnx.ModelProto:
    """One block or exit as a model, from the tensors that it reads to the one at its end.

    A head reads all that is live at its start, other parts the cut point's own tensor, so that taps do not pass
    through them. ``free_axes``: by tensor, the axes whose extent may be another one.
    """
    stretch = replace(part_stretch(exported, part), free_axes=free_axes or {})
    if not reads_taps(exported, part):
        stretch = replace(stretch, inputs=stretch.inputs[:1], outputs=stretch.outputs[:1])
    return onnx.ModelProto.FromString(compose(stretch))


def reads_taps(exported: ExportedBlocks, part: str) -> bool:
    """True of a head that reads several cut points."""
    return any(block.id == part and block.taps for block in exported.expansion.originals)


def parts_of_one_input(exported: ExportedBlocks, start: int) -> list[str]:
    """The blocks and exits at cut point ``start``, without a head that reads several cut points."""
    starts = TorchReference(exported.expansion).starts
    return [part for part in exported.own if starts[part] == start and not reads_taps(exported, part)]


def notes_on_heads(exported: ExportedBlocks, name: str) -> tuple[str, ...]:
    """Notes on the heads that the rendition ``name`` leaves out, since they read several cut points."""
    heads = [part for part in exported.own if reads_taps(exported, part)]
    return tuple(f"{part} has no {name} rendition: it reads several cut points" for part in heads)


def inputs_of(exported: ExportedBlocks, part: str, live: Live) -> Live:
    """The inputs of ``part_model``, in their order, of the tensors ``live`` at its start."""
    return live if reads_taps(exported, part) else live[:1]


def as_fragment(model: onnx.ModelProto, part: str) -> onnx.GraphProto:
    """Nodes and initializers of a converted ``part_model``, with inner names prefixed with the part's id.

    Raises:
        TraceError: the conversion introduced custom operators.
    """
    graph = onnx.GraphProto()
    ends = {value.name for value in (*model.graph.input, *model.graph.output)}

    def renamed(name: str) -> str:
        return name if not name or name in ends or name.startswith(f"{part}/") else f"{part}/{name}"

    for number, node in enumerate(model.graph.node):
        if node.domain not in ("", "ai.onnx"):
            raise TraceError(f"a rendition of {part} uses {node.domain}.{node.op_type}, which is not in ONNX's own set")
        copied = graph.node.add()
        copied.CopyFrom(node)
        copied.ClearField("doc_string")
        copied.name = f"{part}/{number}"
        copied.input[:] = [renamed(name) for name in node.input]
        copied.output[:] = [renamed(name) for name in node.output]
    for tensor in model.graph.initializer:
        kept = graph.initializer.add()
        kept.CopyFrom(tensor)
        kept.ClearField("doc_string")
        kept.name = renamed(tensor.name)
    return graph


@dataclass(frozen=True)
class Judged:
    """A fragment, its relative squared error on real samples, and its golden vector."""

    graph: onnx.GraphProto
    error: float
    golden: Golden


def judge(
    name: str,
    exported: ExportedBlocks,
    part: str,
    graph: onnx.GraphProto,
    reference: TorchReference,
    live: Live,
    *,
    batch: int,
) -> Judged:
    """Compare with torch on real features ``live`` at its start, in batches of ``batch``.

    Golden inputs are noise, which may lie far outside the ranges that the fragment was calibrated for. Only the shapes
    of the answers to them are compared with torch's.

    The golden vector is the fragment's own answer on this machine; its tolerance derives from the quantisation error.
    """
    with contextlib.closing(OnnxRuntime(threads=1, lean=True).load(part_stretch(exported, part, graph))) as loaded:
        actual = in_batches(lambda *some: loaded.run(some)[0], live, batch)
        expected = in_batches(lambda *some: reference.answer([part], some)[0], live, batch)
        error, difference = relative_error(actual, expected), float(np.abs(actual - expected).max())
        *_, (_, golden) = reference.compared(f"{name} of {part}", [part], loaded)
    tolerance = GOLDEN_TOLERANCE * difference + ABSOLUTE_TOLERANCE
    return Judged(
        graph=graph,
        error=error if np.isfinite(error) else float("inf"),
        golden=Golden(samples=sample_outputs(golden), tolerance=float(f"{tolerance:.3g}")),
    )


def judged_set(
    name: str,
    exported: ExportedBlocks,
    judged: Mapping[str, Judged],
    *,
    opset: int = OPSET,
    notes: tuple[str, ...] = (),
    **more: Any,
) -> RenditionSet:
    """The renditions of the parts whose error is small; ``notes`` and further ones name the others.

    ``more``: fields of the set.
    """
    left_out = sorted(part for part, found in judged.items() if found.error > MAX_ERROR)
    kept = {part: judged[part] for part in exported.own if part in judged and part not in left_out}
    shared = deduplicate_weights(exported.expansion, {part: found.graph for part, found in kept.items()})
    return RenditionSet(
        name=name,
        runtime="onnxruntime",
        own=shared.own,
        shared=shared.shared,
        needs=shared.needs,
        golden={part: found.golden for part, found in kept.items()},
        errors={part: float(f"{found.error:.3g}") for part, found in kept.items()},
        opset=opset,
        notes=(
            *notes,
            *(f"{part} has no {name} rendition: its error would be {judged[part].error:.2g}" for part in left_out),
        ),
        **more,
    )
