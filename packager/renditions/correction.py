"""Weights of a fragment in few bits, each rounded for the inputs that calibration data give it.

Layer by layer in order: those before it are rounded already, so that a layer also makes up for their errors. Where the
inputs of a weight cannot be told (several nodes read it, a convolution over time or volumes), it is rounded to the
nearest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from packager.renditions.calibration import Features
from packager.renditions.rounding import MOST_COLUMNS, InputMoments, Quantised, quantise, quantise_for_inputs

_SAMPLES = 256
_ROWS = 16_384  # inputs of one weight, from places spread over all samples

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]


def corrected_weights(
    model: onnx.ModelProto, axes: Mapping[str, int], bits: int, features: Features, *, batch: int
) -> dict[str, Quantised]:
    """The weights of ``axes`` (the axis of output channels by name), rounded; biases in ``model`` absorb mean errors.

    ``features`` [count, *start shape]: inputs of the fragment.
    """
    original, found = onnx.ModelProto(), dict[str, Quantised]()
    original.CopyFrom(model)
    for name, (node, weight) in _layers(model.graph, axes):
        rows = as_rows(weight, axes[name])
        inputs = _InputsOf.node(node, weight.shape) if node is not None else None
        if node is None or inputs is None or rows.shape[1] > MOST_COLUMNS:
            found[name] = quantise(rows, bits)
        else:
            moments = _moments(inputs, original, model, node.input[0], features[:_SAMPLES], batch)
            bias = _Bias.of(model.graph, node, len(rows))
            corrected = quantise_for_inputs(rows, bits, moments.centred() if bias is not None else moments.raw())
            found[name] = corrected.weights
            if bias is not None:
                bias.add(corrected.bias_change)
        _replace(model.graph, name, from_rows(found[name].expanded(), weight.shape, axes[name]))
    return found


def as_rows(weight: Floats, axis: int) -> Floats:
    """A weight as [output channels, the rest]."""
    moved = np.moveaxis(weight, axis, 0)
    return np.ascontiguousarray(moved.reshape(len(moved), -1))


def from_rows(rows: Floats, shape: tuple[int, ...], axis: int) -> Floats:
    """Undoes ``as_rows`` for a weight of ``shape``."""
    moved = (shape[axis], *np.delete(shape, axis))
    return np.ascontiguousarray(np.moveaxis(rows.reshape(moved), 0, axis))


def _layers(
    graph: onnx.GraphProto, axes: Mapping[str, int]
) -> Iterator[tuple[str, tuple[onnx.NodeProto | None, Floats]]]:
    """Each weight in the order of the nodes, with the node that reads it, None if there are several."""
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer if tensor.name in axes}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in set(node.input) & weights.keys():
            readers.setdefault(name, []).append(node)
    for name, nodes in readers.items():
        yield name, (nodes[0] if len(nodes) == 1 else None, weights[name])


def _replace(graph: onnx.GraphProto, name: str, value: Floats) -> None:
    tensor = next(one for one in graph.initializer if one.name == name)
    tensor.CopyFrom(numpy_helper.from_array(value, name))


@dataclass(frozen=True)
class _Bias:
    """The bias that a node adds, in a graph: an initializer that nothing else reads, or none yet."""

    graph: onnx.GraphProto
    node: onnx.NodeProto
    name: str | None
    channels: int

    @classmethod
    def of(cls, graph: onnx.GraphProto, node: onnx.NodeProto, channels: int) -> _Bias | None:
        """The bias of a node; None where it cannot be changed."""
        if node.op_type == "MatMul":
            return cls._added_behind(graph, node, channels)
        name = node.input[2] if len(node.input) > 2 else ""
        return cls._own(graph, node, name, channels) if name else cls(graph, node, None, channels)

    @classmethod
    def _added_behind(cls, graph: onnx.GraphProto, node: onnx.NodeProto, channels: int) -> _Bias | None:
        readers = [one for one in graph.node if node.output[0] in one.input]
        if len(readers) != 1 or readers[0].op_type != "Add":
            return None
        other = [name for name in readers[0].input if name != node.output[0]]
        return cls._own(graph, node, other[0], channels) if len(other) == 1 else None

    @classmethod
    def _own(cls, graph: onnx.GraphProto, node: onnx.NodeProto, name: str, channels: int) -> _Bias | None:
        own = [one for one in graph.initializer if one.name == name and tuple(one.dims) == (channels,)]
        readers = sum(name in one.input for one in graph.node)
        return cls(graph, node, name, channels) if own and readers == 1 else None

    def add(self, change: Floats) -> None:
        """Add ``change`` [channels] to the bias."""
        if self.name is not None:
            tensor = next(one for one in self.graph.initializer if one.name == self.name)
            _replace(self.graph, self.name, numpy_helper.to_array(tensor) + change)
            return
        name = f"{self.node.input[1]}/bias"
        self.graph.initializer.append(numpy_helper.from_array(change, name))
        del self.node.input[2:]
        self.node.input.append(name)


@dataclass(frozen=True)
class _InputsOf:
    """Mapping from a node's input tensor to rows that its weight multiplies, by group of output channels."""

    groups: int
    kernel: tuple[int, ...] = ()  # empty: the last axis are the inputs
    strides: tuple[int, ...] = (1, 1)
    dilations: tuple[int, ...] = (1, 1)
    pads: tuple[int, ...] = (0, 0, 0, 0)

    @classmethod
    def node(cls, node: onnx.NodeProto, shape: tuple[int, ...]) -> _InputsOf | None:
        """The inputs of a node's weight of ``shape``; None for unknown kinds of nodes."""
        given = {one.name: helper.get_attribute_value(one) for one in node.attribute}
        if node.op_type == "MatMul":
            return cls(1) if len(shape) == 2 else None
        if node.op_type == "Gemm":
            plain = not given.get("transA", 0) and given.get("alpha", 1.0) == 1.0 == given.get("beta", 1.0)
            return cls(1) if plain else None
        if len(shape) != 4 or given.get("auto_pad", b"NOTSET") != b"NOTSET":
            return None
        return cls(
            given.get("group", 1),
            tuple(shape[2:]),
            tuple(given.get("strides", (1, 1))),
            tuple(given.get("dilations", (1, 1))),
            tuple(given.get("pads", (0, 0, 0, 0))),
        )

    def rows(self, tensor: Features, draw: np.random.Generator, count: int) -> Floats:
        """At most ``count`` rows per sample at drawn places, of the same ones for the same ``draw``.

        ``tensor`` [batch, channels, height, width], or [batch, …, columns]; returns [groups, rows, columns].
        """
        if not self.kernel:
            flat = tensor.reshape(len(tensor), -1, tensor.shape[-1])
            places = _drawn(draw, len(tensor), flat.shape[1], count)
            return flat[np.arange(len(flat))[:, None], places].reshape(1, -1, tensor.shape[-1])
        top, left, bottom, right = self.pads
        padded = np.pad(tensor, ((0, 0), (0, 0), (top, bottom), (left, right)))
        windows = np.lib.stride_tricks.sliding_window_view(
            padded, tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True)), axis=(2, 3)
        )[:, :, :: self.strides[0], :: self.strides[1], :: self.dilations[0], :: self.dilations[1]]
        places = _drawn(draw, len(tensor), windows.shape[2] * windows.shape[3], count)
        rows, columns = np.divmod(places, windows.shape[3])
        found = windows[np.arange(len(tensor))[:, None], :, rows, columns]  # [batch, places, channels, *kernel]
        grouped = found.reshape(found.shape[0] * found.shape[1], self.groups, -1)
        return np.ascontiguousarray(grouped.swapaxes(0, 1))


def _drawn(draw: np.random.Generator, batch: int, places: int, count: int) -> npt.NDArray[np.int64]:
    if places <= count:
        return np.tile(np.arange(places), (batch, 1))
    return draw.integers(0, places, (batch, count))


@dataclass
class _Sums:
    """Sums over rows of inputs, of the rounded model and of the original."""

    rows: int
    rounded: Doubles
    original: Doubles
    squares: Doubles
    products: Doubles

    def centred(self) -> InputMoments:
        """Moments about the means: the bias takes these."""
        return self._about(self.rounded / self.rows, self.original / self.rows)

    def raw(self) -> InputMoments:
        """Moments about zero, where there is no bias."""
        zero = np.zeros_like(self.rounded)
        return self._about(zero, zero)

    def _about(self, mean: Doubles, original: Doubles) -> InputMoments:
        covariance = self.squares / self.rows - mean[:, :, None] * mean[:, None, :]
        cross = self.products / self.rows - original[:, :, None] * mean[:, None, :]
        return InputMoments(self.rows, mean, covariance, original, cross)


def _moments(
    inputs: _InputsOf, original: onnx.ModelProto, rounded: onnx.ModelProto, name: str, features: Features, batch: int
) -> _Sums:
    """Sums over the rows of the tensor ``name`` in both models."""
    sums: _Sums | None = None
    per_sample = max(1, _ROWS // len(features))
    pairs = zip(
        _tensors(original, name, features, batch), _tensors(rounded, name, features, batch), strict=True
    )  # batch by batch
    for number, (theirs, ours) in enumerate(pairs):
        before, after = (inputs.rows(one, np.random.default_rng(number), per_sample) for one in (theirs, ours))
        transposed = after.swapaxes(1, 2)
        here = (
            after.sum(axis=1, dtype=np.float64),
            before.sum(axis=1, dtype=np.float64),
            (transposed @ after).astype(np.float64),
            (before.swapaxes(1, 2) @ after).astype(np.float64),
        )
        count = after.shape[1]
        if sums is None:
            sums = _Sums(count, *here)
        else:
            sums = _Sums(
                sums.rows + count,
                *(
                    old + new
                    for old, new in zip((sums.rounded, sums.original, sums.squares, sums.products), here, strict=True)
                ),
            )
    assert sums is not None, "there are no samples"
    return sums


def _tensors(model: onnx.ModelProto, name: str, features: Features, batch: int) -> Iterator[Features]:
    """The tensor ``name`` of a model with one input, batch by batch."""
    batches: Sequence[Features] = [features[at : at + batch] for at in range(0, len(features), batch)]
    if name == model.graph.input[0].name:
        yield from batches
        return
    import onnxruntime

    tapped = onnx.ModelProto()
    tapped.CopyFrom(model)
    del tapped.graph.output[:]
    tapped.graph.output.append(onnx.ValueInfoProto(name=name))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(tapped.SerializeToString(), options, providers=["CPUExecutionProvider"])
    for some in batches:
        yield session.run([name], {model.graph.input[0].name: some})[0]
