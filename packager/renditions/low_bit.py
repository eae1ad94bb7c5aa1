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
from packager.renditions.rendition_set import (
    Judged,
    RenditionSet,
    as_fragment,
    judge,
    judged_set,
    notes_on_heads,
    part_model,
    parts_of_one_input,
)
from packager.renditions.rounding import Quantised, quantise

BITS = {f"w{bits}": bits for bits in (2, 4, 6, 8)}
_PLANES = {2: (2,), 4: (4,), 6: (4, 2), 8: (8,)}  # bits of a value in each plane
_PADDED = {2: 4, 4: 2, 6: 4, 8: 1}  # values are packed in multiples of so many
_LEAST_ELEMENTS = 256  # below, the expanding nodes take more than the bits save

Bytes = npt.NDArray[np.uint8]


def make_low_bit(
    name: str, exported: ExportedBlocks, calibration: Calibration, progress: Progress, cache: Path
) -> RenditionSet:
    """The fragments of all blocks and exits with weights in ``BITS[name]`` bits, except those with a large error.

    Weights are rounded for real inputs (``correction``). Each fragment is compared with torch on held-out samples.
    Parts without large weights have no such form, nor have heads that read several cut points.
    """
    reference = TorchReference(exported.expansion)
    judged: dict[str, Judged] = {}
    loaded_bytes: dict[str, int] = {}
    with progress.task(f"pack weights to {name}", len(exported.own)) as task:
        for index, (live, *_) in calibration.features_at_sizes():
            fitting, held_back = fitted_and_held_back(live)
            for part in parts_of_one_input(exported, index):
                task.note(part)
                model = part_model(exported, part, calibration.free_axes)
                whole = sum(len(one.raw_data) for one in model.graph.initializer)
                axes = large_weights(model.graph)
                if axes:
                    found = corrected_weights(model, axes, BITS[name], fitting[0], batch=calibration.batch)
                    pack_weights(model.graph, BITS[name], found)
                    graph = as_fragment(model, part)
                    judged[part] = judge(name, exported, part, graph, reference, held_back, batch=calibration.batch)
                    loaded_bytes[part] = whole
                task.advance()
    return judged_set(name, exported, judged, loaded_bytes=loaded_bytes, notes=notes_on_heads(exported, name))


KINDS = {name: partial(make_low_bit, name) for name in BITS}


def pack_weights(graph: onnx.GraphProto, bits: int, found: Mapping[str, Quantised] | None = None) -> int:
    """Replace the large float32 weights of convolutions and products by packed ones; returns their number.

    ``found``: rounded weights, as rows of output channels; without them they are rounded to the nearest.
    """
    axes, build = large_weights(graph), _Builder(graph)
    for tensor in [one for one in graph.initializer if one.name in axes]:
        weights = numpy_helper.to_array(tensor)
        graph.initializer.remove(tensor)
        rows = as_rows(weights, axes[tensor.name])
        values = quantise(rows, bits) if found is None else found[tensor.name]
        _expanding(build, tensor.name, weights.shape, axes[tensor.name], values, bits)
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
    """``values`` [channels, count] below 2^bits as planes [channels, 1, bytes], zero-padded; ``_unpacked`` undoes it.

    One plane of ``bits`` per value; for 6 bits, the lowest 4 in one and the others in a second. Byte i of n in a plane
    holds the values i, i + n, i + 2n …, the first in the lowest bits.
    """
    padded = np.pad(values, ((0, 0), (0, -values.shape[1] % _PADDED[bits])))
    planes, done = [], 0
    for width in _PLANES[bits]:
        parts = (padded >> done & (2**width - 1)).reshape(len(values), 8 // width, -1).astype(np.uint8)
        shifts = width * np.arange(8 // width, dtype=np.uint8)[:, None]
        planes.append(np.bitwise_or.reduce(parts << shifts, axis=1, keepdims=True))
        done += width
    return planes


def _expanding(build: _Builder, name: str, whole: tuple[int, ...], axis: int, found: Quantised, bits: int) -> None:
    """Add the packed form of a weight of shape ``whole`` and the nodes that expand it to the tensor ``name``."""
    build.begin(name)
    count = found.values.shape[1]
    values = _unpacked(build, packed_planes(found.values, bits), bits)
    if count % _PADDED[bits]:
        values = build.node("Slice", values, *(build.constant(np.array([at], np.int64)) for at in (0, count, 1)))
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


def _unpacked(build: _Builder, planes: Sequence[Bytes], bits: int) -> str:
    """The values [channels, padded count] that ``packed_planes`` packed."""
    flat = build.constant(np.array([0, -1], np.int64))
    joined, done = "", 0
    for plane, width in zip(planes, _PLANES[bits], strict=True):
        values = build.constant(plane)
        if width < 8:
            shifts = build.constant(width * np.arange(8 // width, dtype=np.uint8)[:, None])
            mask = build.constant(np.array([2**width - 1], np.uint8))
            values = build.node("BitwiseAnd", build.node("BitShift", values, shifts, direction="RIGHT"), mask)
        values = build.node("Reshape", values, flat)
        if done:
            higher = build.node("BitShift", values, build.constant(np.array([done], np.uint8)), direction="LEFT")
            values = build.node("BitwiseOr", joined, higher)
        joined, done = values, done + width
    return joined


class _Builder:
    """Adds constants, equal ones once, and nodes before all others, named after the weight that they make."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._graph, self._at = graph, 0
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}

    def begin(self, name: str) -> None:
        """Start a weight: constants and nodes from here on are named after ``name``."""
        self._name, self._count = name, 0

    def constant(self, value: npt.NDArray[np.generic]) -> str:
        value = np.ascontiguousarray(value)
        key = (value.dtype.str, value.shape, value.tobytes())
        if key not in self._constants:
            self._constants[key] = self._next()
            self._graph.initializer.append(numpy_helper.from_array(value, self._constants[key]))
        return self._constants[key]

    def node(self, kind: str, *inputs: str, to_name: str | None = None, **attributes: object) -> str:
        name = to_name or self._next()
        self._graph.node.insert(self._at, helper.make_node(kind, list(inputs), [name], **attributes))
        self._at += 1
        return name

    def _next(self) -> str:
        self._count += 1
        return f"{self._name}/{self._count}"
