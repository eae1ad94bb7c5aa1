"""w2, w4, w6, w8: weights in 2 to 8 bits per output channel; activations and arithmetic stay float32.

A fragment stores each weight bit-packed, with a scale and an offset per output channel, and the nodes that expand it.
They depend on nothing but the weight, so that the runtime folds them when it loads the model: what is stored and sent
shrinks, what is resident and computed does not. No format of its own: any ONNX Runtime of the bundle's opset runs it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from device_sdk.progress import Progress
from packager.exporting.export import ExportedBlocks
from packager.exporting.verification import TorchReference
from packager.renditions.calibration import Calibration, fitted_and_held_back
from packager.renditions.correction import as_rows, corrected_weights
from packager.renditions.fragments import as_fragment, part_model
from packager.renditions.judging import Judged, judge, judged_set
from packager.renditions.rendition_set import RenditionSet
from packager.renditions.rounding import Quantised, quantise

BITS = {f"w{bits}": bits for bits in (2, 4, 6, 8)}
_LEAST_ELEMENTS = 256  # below, the expanding nodes take more than the bits save
_MAX_NOISE_ERROR = 1.0  # weights are rounded for real inputs, at the cost of others; 1 is no better than the mean

Bytes = npt.NDArray[np.uint8]


def make_low_bit(
    name: str, exported: ExportedBlocks, calibration: Calibration, progress: Progress, cache: Path
) -> RenditionSet:
    """The fragments of all blocks and exits with weights in ``BITS[name]`` bits, except those with a large error.

    Weights are rounded for real inputs (``correction``). Each fragment is compared with torch on held-out samples and
    golden inputs. Parts without large weights have no such form.
    """
    reference = TorchReference(exported.expansion)
    judged: dict[str, Judged] = {}
    loaded_bytes: dict[str, int] = {}
    with progress.task(f"pack weights to {name}", len(exported.own)) as task:
        for index, (features, *_) in calibration.features_at_sizes():
            fitting, held_back = fitted_and_held_back(features)
            for part in [part for part, start in reference.starts.items() if start == index]:
                task.note(part)
                model = part_model(exported, part, calibration.free_axes)
                whole = sum(len(one.raw_data) for one in model.graph.initializer)
                axes = large_weights(model.graph)
                if axes:
                    found = corrected_weights(model, axes, BITS[name], fitting, batch=calibration.batch)
                    pack_weights(model.graph, BITS[name], found)
                    graph = as_fragment(model, part)
                    judged[part] = judge(
                        name,
                        exported,
                        part,
                        graph,
                        reference,
                        held_back,
                        batch=calibration.batch,
                        max_noise_error=_MAX_NOISE_ERROR,
                    )
                    loaded_bytes[part] = whole
                task.advance()
    return judged_set(name, exported, judged, loaded_bytes=loaded_bytes)


KINDS = {name: partial(make_low_bit, name) for name in BITS}


def pack_weights(graph: onnx.GraphProto, bits: int, found: Mapping[str, Quantised] | None = None) -> int:
    """Replace the large float32 weights of convolutions and products by packed ones; how many were.

    ``found``: what they are rounded to, as rows of output channels; without it they are rounded to the nearest.
    """
    axes = large_weights(graph)
    for tensor in [one for one in graph.initializer if one.name in axes]:
        weights = numpy_helper.to_array(tensor)
        graph.initializer.remove(tensor)
        rows = as_rows(weights, axes[tensor.name])
        values = quantise(rows, bits) if found is None else found[tensor.name]
        _expanding(graph, tensor.name, weights.shape, axes[tensor.name], values, bits)
    return len(axes)


def large_weights(graph: onnx.GraphProto) -> dict[str, int]:
    """The weights that are worth packing, by name, with the axis of their output channels."""
    axes = _output_axes(graph)
    return {
        one.name: axes[one.name]
        for one in graph.initializer
        if one.name in axes and one.data_type == onnx.TensorProto.FLOAT and np.prod(one.dims) >= _LEAST_ELEMENTS
    }


def _output_axes(graph: onnx.GraphProto) -> dict[str, int]:
    """The axis of the output channels of each weight that nothing else than one kind of node reads."""
    found: dict[str, set[int | None]] = {}
    for node in graph.node:
        for place, name in enumerate(node.input):
            axis = _output_axis(node) if place == 1 else None
            found.setdefault(name, set()).add(axis)
    return {name: axis for name, axes in found.items() if len(axes) == 1 and (axis := next(iter(axes))) is not None}


def _output_axis(node: onnx.NodeProto) -> int | None:
    match node.op_type:
        case "Conv":
            return 0
        case "Gemm":
            transposed = any(one.name == "transB" and one.i for one in node.attribute)
            return 0 if transposed else 1
        case "MatMul":
            return -1
    return None


def packed_planes(values: Bytes, bits: int) -> list[Bytes]:
    """``values`` [channels, count] below 2^bits in as few bytes as they fit, zero-padded; ``_unpacking`` undoes it.

    2 and 4 bits: one plane, whose byte i holds the values i, i + n, i + 2n … of n bytes, the first in the lowest bits.
    6 bits: three planes of n bytes for four values.
    """
    per_group = {2: 4, 4: 2, 6: 4, 8: 1}[bits]
    size = -(-values.shape[1] // per_group)
    padded = np.zeros((len(values), size * per_group), np.uint8)
    padded[:, : values.shape[1]] = values
    parts = np.split(padded, per_group, axis=1)
    if bits == 6:
        a, b, c, d = parts
        return [a | (b & 3) << 6, b >> 2 | (c & 15) << 4, c >> 4 | d << 2]
    plane = np.zeros_like(parts[0])
    for number, part in enumerate(parts):
        plane |= part << (bits * number)
    return [plane]


def _expanding(
    graph: onnx.GraphProto, name: str, whole: tuple[int, ...], axis: int, found: Quantised, bits: int
) -> None:
    """Add the packed form of a weight of shape ``whole`` and the nodes that expand it to the tensor ``name``."""
    build = _Builder(graph, name)
    planes = [build.constant(plane) for plane in packed_planes(found.values, bits)]
    values = build.node("Concat", *_unpacking(build, planes, bits), axis=1) if bits != 8 else planes[0]
    if bits != 8:
        ends = [build.constant(np.array([at], np.int64)) for at in (0, found.values.shape[1], 1)]
        values = build.node("Slice", values, *ends)
    floats = build.node("Cast", values, to=onnx.TensorProto.FLOAT)
    scaled = build.node("Mul", floats, build.constant(found.scale))
    offset = build.node("Add", scaled, build.constant(found.offset))
    last = axis % len(whole)
    shape = build.constant(np.array([whole[last], *whole[:last], *whole[last + 1 :]], np.int64))
    if last == 0:
        build.node("Reshape", offset, shape, to_name=name)
        return
    order = [*range(1, last + 1), 0, *range(last + 1, len(whole))]
    build.node("Transpose", build.node("Reshape", offset, shape), perm=order, to_name=name)


def _unpacking(build: _Builder, planes: Sequence[str], bits: int) -> list[str]:
    """The parts of values that ``packed_planes`` packed, in their order."""

    def low(plane: str, count: int) -> str:
        return build.node("BitwiseAnd", plane, build.constant(np.array([2**count - 1], np.uint8)))

    def shifted(plane: str, count: int, direction: str) -> str:
        return build.node("BitShift", plane, build.constant(np.array([count], np.uint8)), direction=direction)

    if bits == 6:
        a, b, c = planes
        return [
            low(a, 6),
            build.node("BitwiseOr", shifted(a, 6, "RIGHT"), shifted(low(b, 4), 2, "LEFT")),
            build.node("BitwiseOr", shifted(b, 4, "RIGHT"), shifted(low(c, 2), 4, "LEFT")),
            shifted(c, 2, "RIGHT"),
        ]
    [plane] = planes
    parts = [plane, *(shifted(plane, at, "RIGHT") for at in range(bits, 8, bits))]
    return [*(low(part, bits) for part in parts[:-1]), parts[-1]]


class _Builder:
    """Adds constants, and nodes before all others, whose names begin with that of the tensor which they make."""

    def __init__(self, graph: onnx.GraphProto, name: str) -> None:
        self._graph, self._name, self._count, self._at = graph, name, 0, 0

    def constant(self, value: npt.NDArray[np.generic]) -> str:
        name = self._next()
        self._graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def node(self, kind: str, *inputs: str, to_name: str | None = None, **attributes: object) -> str:
        name = to_name or self._next()
        self._graph.node.insert(self._at, helper.make_node(kind, list(inputs), [name], **attributes))
        self._at += 1
        return name

    def _next(self) -> str:
        self._count += 1
        return f"{self._name}/packed{self._count}"
