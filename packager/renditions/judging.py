"""Error of a quantised fragment relative to torch, and the golden vector that devices check it by."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from device_sdk.bundles.golden import sample_outputs
from device_sdk.runtimes import OnnxRuntime
from device_sdk.supernet.blocks import Golden
from packager.exporting.export import ExportedBlocks, deduplicate_weights
from packager.exporting.onnx_exporter import OPSET
from packager.exporting.verification import ABSOLUTE_TOLERANCE, TorchReference
from packager.renditions.calibration import Features, in_batches, relative_error
from packager.renditions.fragments import part_stretch
from packager.renditions.rendition_set import RenditionSet

MAX_ERROR = 0.25  # a block with a larger error is left out
_GOLDEN_TOLERANCE = 2.0  # times the quantisation error on real samples: other CPUs round differently


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
    features: Features,
    *,
    batch: int,
) -> Judged:
    """Compare with torch on real ``features``, in batches of ``batch``.

    Golden inputs are noise, which may lie far outside the ranges that the fragment was calibrated for. Only the shapes
    of the answers to them are compared with torch's.

    The golden vector is the fragment's own answer on this machine; its tolerance derives from the quantisation error.
    """
    with contextlib.closing(OnnxRuntime(threads=1, lean=True).load(part_stretch(exported, part, graph))) as loaded:
        actual = in_batches(lambda some: loaded.run([some])[0], features, batch)
        expected = in_batches(lambda some: reference.answer([part], [some])[0], features, batch)
        error, difference = relative_error(actual, expected), float(np.abs(actual - expected).max())
        *_, (_, (golden,)) = reference.compared(f"{name} of {part}", [part], loaded)
    tolerance = _GOLDEN_TOLERANCE * difference + ABSOLUTE_TOLERANCE
    return Judged(
        graph=graph,
        error=error if np.isfinite(error) else float("inf"),
        golden=Golden(samples=sample_outputs([golden]), tolerance=float(f"{tolerance:.3g}")),
    )


def judged_set(name: str, exported: ExportedBlocks, judged: Mapping[str, Judged], **more: Any) -> RenditionSet:
    """The renditions of the parts whose error is small; notes name the others. ``more``: fields of the set."""
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
        opset=OPSET,
        notes=tuple(
            f"{part} has no {name} rendition: its error would be {judged[part].error:.2g}" for part in left_out
        ),
        **more,
    )
