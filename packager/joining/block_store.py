"""Added modules as blocks of a bundle: their fragments in fp32 and int8, checked against torch, with golden vectors."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import onnx
import torch
from torch import nn

from device_sdk.bundles.runnable import golden_inputs, sample_outputs
from device_sdk.fragments.composition import Stretch, compose
from device_sdk.runtimes import Array, OnnxRuntime
from device_sdk.supernet.blocks import Block, CutPoint, Golden, InputSize, Rendition, free_axes
from packager.errors import VerificationError
from packager.exporting.onnx_exporter import IR_VERSION, OPSET
from packager.exporting.part_graphs import Part, part_graphs
from packager.exporting.verification import (
    ABSOLUTE_TOLERANCE,
    RELATIVE_TOLERANCE,
    SELF_TEST_BATCH,
    SELF_TEST_SEED,
)
from packager.output.bundle_folder import BundleWriter
from packager.renditions import FP32
from packager.renditions.calibration import Features, fitted_and_held_back, relative_error
from packager.renditions.int8 import NAME as INT8
from packager.renditions.int8 import quantised_part
from packager.renditions.rendition_set import GOLDEN_TOLERANCE, MAX_ERROR

_BATCH = 8


@dataclass(frozen=True)
class StoredBlock:
    """A further block: its entry in the manifest but for the renditions' blobs, and the fragment of each rendition."""

    block: Block
    fragments: Mapping[str, bytes] = field(repr=False)

    def written(self, writer: BundleWriter) -> Block:
        """The block, its fragments stored."""
        renditions = tuple(
            msgspec.structs.replace(one, blob=writer.add_blob(self.fragments[one.name]))
            for one in self.block.renditions
        )
        return msgspec.structs.replace(self.block, renditions=renditions)


class BlockStore:
    """Exports added modules as blocks of a graph of ``cut_points`` and ``input_sizes``."""

    def __init__(self, cut_points: Sequence[CutPoint], input_sizes: Sequence[InputSize]) -> None:
        self._cut_points, self._input_sizes = cut_points, input_sizes
        self._runtime = OnnxRuntime(threads=1, lean=True)
        self._free_axes = free_axes(cut_points, input_sizes)
        self._quantization = {
            cut.index: cut.tensors[0].quantization
            for cut in cut_points
            if len(cut.tensors) == 1 and cut.tensors[0].quantization is not None
        }

    def stored(
        self,
        name: str,
        kind: str,
        module: nn.Module,
        ends: tuple[int, int],
        *,
        macs: int,
        error: float,
        features: Features | None = None,
    ) -> StoredBlock:
        """The block ``name`` that runs ``module`` between the cut points ``ends``.

        ``features`` [n, *start]: calibrate an int8 rendition; None: fp32 alone.

        Raises:
            VerificationError: the fragment does not compute what the module computes.
        """
        cuts = self._cut_points[ends[0]], self._cut_points[ends[1]]
        exported = part_graphs([Part(name, module, cuts[0].tensors, cuts[1].tensors)])[name]
        fragments = {FP32: exported.SerializeToString(deterministic=True)}
        rendition = self._rendition(FP32, fragments[FP32], self._golden(name, module, cuts, fragments[FP32]))
        found = [self._sized(rendition, module, cuts, fragments[FP32])]
        if features is not None and set(ends) <= self._quantization.keys():
            quantised = self._int8(name, module, cuts, fragments[FP32], features)
            if quantised is not None:
                int8, fragments[INT8] = quantised
                found.append(self._sized(int8, module, cuts, fragments[INT8]))
        block = Block(
            id=name,
            start=ends[0],
            end=ends[1],
            kind=kind,
            parameters=sum(one.numel() for one in module.parameters()),
            macs=macs,
            renditions=tuple(found),
            distillation_error=float(f"{error:.3g}"),
        )
        return StoredBlock(block, fragments)

    def _rendition(self, name: str, fragment: bytes, golden: Golden, error: float | None = None) -> Rendition:
        return Rendition(name, "onnxruntime", "", len(fragment), golden, opset=OPSET, error=error)

    def _stretch(self, cuts: tuple[CutPoint, CutPoint], fragment: bytes) -> Stretch:
        return Stretch((fragment,), cuts[0].tensors, cuts[1].tensors, IR_VERSION, OPSET, free_axes=self._free_axes)

    def _run(self, cuts: tuple[CutPoint, CutPoint], fragment: bytes, inputs: Array) -> Array:
        with contextlib.closing(self._runtime.load(self._stretch(cuts, fragment))) as loaded:
            return loaded.run([inputs])[0]

    def _golden(self, name: str, module: nn.Module, cuts: tuple[CutPoint, CutPoint], fragment: bytes) -> Golden:
        (inputs,) = golden_inputs(cuts[0], seed=SELF_TEST_SEED, batch=SELF_TEST_BATCH)
        expected, actual = _answer(module, inputs), self._run(cuts, fragment, inputs)
        tolerance = RELATIVE_TOLERANCE * float(np.abs(expected).max()) + ABSOLUTE_TOLERANCE
        difference = float(np.abs(expected - actual).max())
        if not difference <= tolerance:
            raise VerificationError(f"the block {name} differs from torch by {difference:.2g}")
        return Golden(samples=sample_outputs([expected]), tolerance=float(f"{tolerance:.3g}"))

    def _int8(
        self, name: str, module: nn.Module, cuts: tuple[CutPoint, CutPoint], fragment: bytes, features: Features
    ) -> tuple[Rendition, bytes] | None:
        """The int8 rendition and its fragment; None where its error is large or nothing can be quantised."""
        (fitting,), (held_back,) = fitted_and_held_back((features,))
        model = onnx.ModelProto.FromString(compose(self._stretch(cuts, fragment)))
        made = quantised_part(model, name, [(fitting,)], self._quantization, batch=_BATCH)
        if not any(node.op_type == "QuantizeLinear" for node in made.node):
            return None
        int8 = made.SerializeToString(deterministic=True)
        expected = _answer(module, held_back)
        (inputs,) = golden_inputs(cuts[0], seed=SELF_TEST_SEED, batch=SELF_TEST_BATCH)
        with contextlib.closing(self._runtime.load(self._stretch(cuts, int8))) as loaded:
            actual = np.concatenate([loaded.run([part])[0] for part in np.array_split(held_back, len(held_back))])
            (golden,) = loaded.run([inputs])
        error = relative_error(actual, expected)
        if not error <= MAX_ERROR:
            return None
        tolerance = GOLDEN_TOLERANCE * float(np.abs(actual - expected).max()) + ABSOLUTE_TOLERANCE
        vector = Golden(samples=sample_outputs([golden]), tolerance=float(f"{tolerance:.3g}"))
        return self._rendition(INT8, int8, vector, float(f"{error:.3g}")), int8

    def _sized(
        self, rendition: Rendition, module: nn.Module, cuts: tuple[CutPoint, CutPoint], fragment: bytes
    ) -> Rendition:
        """The rendition, marked where it runs at every input size."""
        try:
            for size in self._input_sizes:
                at_size = tuple(cut.resized(size.shapes[cut.index]) for cut in cuts)
                (inputs,) = golden_inputs(at_size[0], seed=SELF_TEST_SEED, batch=SELF_TEST_BATCH)
                expected, actual = _answer(module, inputs), self._run(cuts, fragment, inputs)
                if actual.shape != expected.shape or not relative_error(actual, expected) <= MAX_ERROR:
                    return rendition
        except RuntimeError:
            return rendition
        return msgspec.structs.replace(rendition, any_size=bool(self._input_sizes))


def _answer(module: nn.Module, inputs: Array) -> Array:
    with torch.no_grad():
        return np.asarray(module(torch.from_numpy(np.ascontiguousarray(inputs))).numpy())
