"""Conversion between fragments and the stand-alone ONNX models that conversion tools process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import onnx

from device_sdk.fragments.composition import Stretch, compose
from packager.errors import TraceError
from packager.exporting.export import ExportedBlocks


def part_stretch(exported: ExportedBlocks, part: str, graph: onnx.GraphProto | None = None) -> Stretch:
    """One block or exit, ready to load; ``graph`` replaces its own fragment."""
    exits = {exit_.id for exit_ in exported.expansion.exits}
    stretch = exported.stretch([], part) if part in exits else exported.stretch([part])
    return stretch if graph is None else replace(stretch, fragments=(graph.SerializeToString(),))


def part_model(
    exported: ExportedBlocks, part: str, free_axes: Mapping[str, frozenset[int]] | None = None
) -> onnx.ModelProto:
    """One block or exit as a model, from the tensor at its start to the one at its end.

    ``free_axes``: by tensor, the axes whose extent may be another one.
    """
    stretch = replace(part_stretch(exported, part), free_axes=free_axes or {})
    return onnx.ModelProto.FromString(compose(stretch))


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
