"""Simple alternatives: the whole network at a smaller input, in 8 bits, or both; exported as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import onnx

from benchmarks.real_size import data
from benchmarks.real_size.choice import right_of
from benchmarks.real_size.photographs import SIDE, Photographs
from device_sdk.data.inputs import resize_prepared
from device_sdk.policies.confirmation import EQUAL_LATENCY
from device_sdk.profiling.timing import measure_interleaved
from device_sdk.runtimes import OnnxRuntime
from device_sdk.supernet.blocks import TensorSpec
from packager.exporting.onnx_exporter import export_whole
from packager.renditions.int8 import quantised
from pathweave.bench import BenchOptions

SIDES, QUICK_SIDES = (224, 192, 160, 128, 96), (224, 160)
_ROUNDS, _WARMUP, _CALIBRATED = 40, 3, 128
_NUMBERS = "float32"

Right = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Rival:
    """A network as deployed without Pathweave: its latency relative to the full one's measured with it, its outputs."""

    name: str
    rendition: str
    ratio: float
    right: Right


class Rivals:
    """All alternatives, measured interleaved and evaluated on #report."""

    def __init__(self, rivals: list[Rival]) -> None:
        self._rivals = rivals
        self.full_model_correct = rivals[0].right

    def quickest(self, ratio: float, renditions: tuple[str, ...]) -> Rival | None:
        """The most accurate on #report of those that are fast enough: a bias in favour of the alternatives."""
        fitting = [one for one in self._rivals if one.rendition in renditions and one.ratio <= EQUAL_LATENCY * ratio]
        return max(fitting, key=lambda one: one.right.mean(), default=None)

    def rows(self) -> list[dict[str, object]]:
        """Rows of the table."""
        return [
            {"what": one.name, "ratio": one.ratio, "accuracy": 100 * float(one.right.mean())} for one in self._rivals
        ]


def make_rivals(options: BenchOptions, report: Photographs) -> Rivals:
    """1. export and quantise at each size; 2. measure all, interleaved; 3. evaluate each on ``report``."""
    model, runtime = data.network(options), OnnxRuntime(threads=1)
    samples = data.calibration_images(options, _CALIBRATED)
    models: dict[tuple[str, int], bytes] = {}
    for side in QUICK_SIDES if options.quick else SIDES:
        whole = export_whole(model.module, TensorSpec("input", (3, side, side), _NUMBERS))
        models["fp32", side] = whole
        int8 = quantised(onnx.ModelProto.FromString(whole), resize_prepared(samples, (side, side)))
        models["int8", side] = int8.SerializeToString()
    sessions = {key: runtime.load_model(proto) for key, proto in models.items()}
    blank = {key: np.zeros((1, 3, key[1], key[1]), dtype=np.float32) for key in models}
    calls = {str(key): partial(session.run, [blank[key]]) for key, session in sessions.items()}
    measured = measure_interleaved(calls, rounds=_ROUNDS, warmup=_WARMUP)
    inputs = report.inputs(model.preprocessing)
    full_ms = measured[str(("fp32", SIDE))].median_ms
    return Rivals(
        [
            Rival(
                f"{rendition} at {side}",
                rendition,
                measured[str((rendition, side))].median_ms / full_ms,
                right_of(session, inputs, report.labels, () if side == SIDE else (side, side)),
            )
            for (rendition, side), session in sessions.items()
        ]
    )
