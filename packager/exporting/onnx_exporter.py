"""The only call of torch's ONNX exporter, checks of its result, and rewrites of graphs into equivalent operators that
engines run faster (docs/adr/0020-rewritten-shortcuts.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from torch import nn

from device_sdk.supernet.blocks import TensorSpec
from packager.errors import TraceError
from packager.torch_noise import torch_silenced

OPSET = 20
IR_VERSION = 10
_EXAMPLE_BATCH = 2
_MOST_WEIGHTS = 16_384  # of a selecting convolution: 64 KB; a larger one would cost more than it saves
_SPATIAL = (2, 3)  # axes of [batch, channels, height, width]
_Shapes = Mapping[str, Sequence[int | None]]


def export_whole(model: nn.Module, spec: TensorSpec) -> bytes:
    """The whole model exported from ``input`` to ``output``, as a reference for composed models.

    Raises:
        TraceError: torch cannot export it to ONNX.
    """
    proto = _export(model, [spec], batches=[0], inputs=["input"], outputs=["output"], optimize=True)
    refuse_custom_operators(proto)
    return proto.SerializeToString()


@dataclass(frozen=True)
class SideBySide:
    """Several modules in one graph, and its initializers that are parameters or buffers, by name."""

    model: onnx.ModelProto
    states: Mapping[str, torch.Tensor]


def export_side_by_side(
    modules: Sequence[nn.Module],
    read: Sequence[Sequence[TensorSpec]],
    *,
    inputs: Sequence[str],
    outputs: Sequence[str],
    resizable: bool = False,
) -> SideBySide:
    """Export all modules into one graph without optimization, each with its own inputs, described in ``read``.

    A module returns one tensor or a tuple. ``inputs`` and ``outputs`` are names in the order of the modules.
    ``resizable``: rows and columns of images stay symbolic where the modules allow it.

    Raises:
        TraceError: torch cannot export them to ONNX.
    """
    together = _SideBySide(modules, [len(specs) for specs in read])
    proto = _export(
        together,
        [spec for specs in read for spec in specs],
        # one symbol per module: with a common one, torch would read a module's batch size from another one's input
        batches=[number for number, specs in enumerate(read) for _ in specs],
        inputs=inputs,
        outputs=outputs,
        optimize=False,
        resizable=resizable,
    )
    states = dict(together.named_parameters(remove_duplicate=False))
    states |= dict(together.named_buffers(remove_duplicate=False))
    return SideBySide(
        proto, {tensor.name: states[tensor.name] for tensor in proto.graph.initializer if tensor.name in states}
    )


def refuse_custom_operators(model: onnx.ModelProto) -> None:
    """Raise TraceError if the model uses operators outside ONNX's own set, which devices do not have."""
    if model.functions or any(node.domain for node in model.graph.node):
        raise TraceError("the exported model uses operators outside ONNX's own set")


class _SideBySide(nn.Module):
    """Runs every module on its own inputs; ``counts``: inputs per module."""

    def __init__(self, modules: Sequence[nn.Module], counts: Sequence[int]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(modules)
        self._counts = tuple(counts)

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        left, answers = list(inputs), []
        for part, count in zip(self.parts, self._counts, strict=True):
            given, left = left[:count], left[count:]
            found = part(*given)
            for answer in (found,) if isinstance(found, torch.Tensor) else found:
                # the exporter would rename a tensor that is only passed through to the output's name
                answers.append(answer.clone() if any(answer is tensor for tensor in given) else answer)
        return tuple(answers)


def _export(
    model: nn.Module,
    specs: Sequence[TensorSpec],
    *,
    batches: Sequence[int],
    inputs: Sequence[str],
    outputs: Sequence[str],
    optimize: bool,
    resizable: bool = False,
) -> onnx.ModelProto:
    """``batches``: for each input the index of its batch symbol; ``resizable`` as of ``export_side_by_side``."""
    examples = tuple(torch.zeros(_EXAMPLE_BATCH, *spec.shape, dtype=getattr(torch, spec.dtype)) for spec in specs)
    symbols = {number: torch.export.Dim(f"batch_{number}", min=1, max=65536) for number in batches}
    free = dict.fromkeys(_SPATIAL, torch.export.Dim.AUTO) if resizable else {}
    sizes = tuple({0: symbols[number], **free} for number in batches)
    try:
        with torch_silenced(), torch.no_grad():
            program = torch.export.export(
                model.eval(), examples, dynamic_shapes=(sizes,) if isinstance(model, _SideBySide) else sizes
            )
            exported = torch.onnx.export(
                program,
                dynamo=True,
                opset_version=OPSET,
                input_names=list(inputs),
                output_names=list(outputs),
                optimize=optimize,
                verbose=False,
            )
    except Exception as error:  # the exporter raises many unrelated types
        reason = (str(error).splitlines() or [type(error).__name__])[0][:300]
        raise TraceError(f"the model cannot be exported to ONNX: {reason}") from error
    assert exported is not None
    proto = exported.model_proto
    proto.ir_version = IR_VERSION
    return proto


def select_by_convolution(graph: onnx.GraphProto) -> None:
    """Replace every shortcut that slices each n-th position and pads channels with zeros by one 1×1 convolution.

    ResNets for small images have them (He et al. 2016, §4.2, option A). ONNX Runtime keeps features in a blocked layout
    between convolutions; a slice or pad converts them back, and the rest of the stage stays in the plain layout. The
    weights are zeros and ones, so results are equal. Changes ``graph``.
    """
    shapes = _shapes(graph)
    weights = {tensor.name: tensor for tensor in graph.initializer}
    producers = {output: node for node in graph.node for output in node.output}
    readers: dict[str, int] = {}
    for node in graph.node:
        for name in node.input:
            readers[name] = readers.get(name, 0) + 1
    for pad in [node for node in graph.node if node.op_type == "Pad"]:
        found = _selection(pad, producers, weights, readers, shapes)
        if found is not None:
            _replace(graph, found)
    used = {name for node in graph.node for name in node.input}
    kept = [tensor for tensor in graph.initializer if tensor.name in used]
    del graph.initializer[:]
    graph.initializer.extend(kept)


def _shapes(graph: onnx.GraphProto) -> _Shapes:
    """The shapes of float tensors recorded by the exporter; None for dynamic extents."""
    values = [*graph.input, *graph.value_info, *graph.output]
    return {
        value.name: [dim.dim_value or None for dim in value.type.tensor_type.shape.dim]
        for value in values
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    }


@dataclass(frozen=True)
class _Selection:
    """Nodes, the pad last, that slice ``source`` with ``strides`` and pad its channels with zeros."""

    nodes: tuple[onnx.NodeProto, ...]
    source: str
    strides: tuple[int, int]
    channels: int
    before: int
    after: int


def _selection(
    pad: onnx.NodeProto,
    producers: Mapping[str, onnx.NodeProto],
    weights: Mapping[str, onnx.TensorProto],
    readers: Mapping[str, int],
    shapes: _Shapes,
) -> _Selection | None:
    """The selection that ends at ``pad``; None if it or the slices before it do anything else."""
    around = _channel_padding(pad, weights)
    nodes, source, strides = [pad], pad.input[0], [1, 1]
    while (node := producers.get(source)) is not None and node.op_type == "Slice":
        stride = _stride(node, weights)
        if stride is None or readers[source] != 1:
            break
        nodes.insert(0, node)
        strides = [one * other for one, other in zip(strides, stride, strict=True)]
        source = node.input[0]
    shape = shapes.get(source)
    if around is None or len(nodes) == 1 or shape is None or len(shape) != 4 or shape[1] is None:
        return None
    if shape[1] * (shape[1] + sum(around)) > _MOST_WEIGHTS:
        return None
    return _Selection(tuple(nodes), source, (strides[0], strides[1]), shape[1], *around)


def _channel_padding(pad: onnx.NodeProto, weights: Mapping[str, onnx.TensorProto]) -> tuple[int, int] | None:
    """Zeros before and after the channels; None for other axes or values."""
    mode = next((a.s for a in pad.attribute if a.name == "mode"), b"constant")
    if mode != b"constant" or len(pad.input) > 3:
        return None
    amounts, value = (_constant(pad, position, weights) for position in (1, 2))
    if amounts is None or amounts.shape != (8,) or (len(pad.input) > 2 and pad.input[2] and value is None):
        return None
    if (value is not None and value.any()) or (amounts < 0).any() or amounts[[0, 2, 3, 4, 6, 7]].any():
        return None
    return int(amounts[1]), int(amounts[5])


def _stride(node: onnx.NodeProto, weights: Mapping[str, onnx.TensorProto]) -> tuple[int, int] | None:
    """The strides of a slice over the full height and width; None if it crops."""
    starts, ends, axes, steps = (_constant(node, position, weights) for position in (1, 2, 3, 4))
    if starts is None or ends is None or axes is None or steps is None:
        return None
    strides = {2: 1, 3: 1}
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if start != 0 or end < np.iinfo(np.int32).max or axis not in _SPATIAL or step < 1:
            return None
        strides[int(axis)] = int(step)
    return strides[2], strides[3]


def _constant(node: onnx.NodeProto, position: int, weights: Mapping[str, onnx.TensorProto]) -> np.ndarray | None:
    if len(node.input) <= position or node.input[position] not in weights:
        return None
    return numpy_helper.to_array(weights[node.input[position]])


def _replace(graph: onnx.GraphProto, found: _Selection) -> None:
    pad = found.nodes[-1]
    weight = np.zeros((found.before + found.channels + found.after, found.channels, 1, 1), dtype=np.float32)
    kept = np.arange(found.channels)
    weight[found.before + kept, kept] = 1.0
    name = f"{pad.output[0]}_selection"
    graph.initializer.append(numpy_helper.from_array(weight, name))
    convolution = helper.make_node(
        "Conv",
        [found.source, name],
        [pad.output[0]],
        name=pad.name,
        kernel_shape=[1, 1],
        strides=list(found.strides),
    )
    graph.node.insert(list(graph.node).index(pad), convolution)
    for node in found.nodes:
        graph.node.remove(node)
