"""Simple alternatives: whole networks at a smaller input, in 8 bits by ONNX Runtime's own tool, or both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.real_size import data
from benchmarks.runner.run import BenchOptions
from benchmarks.support.judged import Loaded, Right
from benchmarks.support.lite import SIDES as OWN_SIDES
from benchmarks.support.lite import lite_network, missing_weights
from device_sdk.data.inputs import resize_prepared
from device_sdk.policies.confirmation import EQUAL_LATENCY
from device_sdk.runtimes import OnnxRuntime
from device_sdk.supernet.blocks import TensorSpec
from packager.exporting.onnx_exporter import export_whole

SMALLER, QUICK_SMALLER = (224, 208, 192, 176, 160, 144, 128, 112, 96), (160, 128)
RENDITIONS = ("fp32", "int8")
_CALIBRATED, _CALIBRATED_AT_ONCE = 128, 32


@dataclass(frozen=True, order=True)
class RivalName:
    """A network of the EfficientNet-Lite family, in one rendition, at one input size."""

    variant: int
    rendition: str
    side: int

    def __str__(self) -> str:
        return f"Lite{self.variant} {self.rendition} at {self.side}"


FULL = RivalName(0, "fp32", OWN_SIDES[0])


@dataclass(frozen=True)
class Rival:
    """A network as deployed without Pathweave: its latency relative to the full one's, its correctness [count]."""

    name: RivalName
    ratio: float
    right: Right

    def row(self) -> dict[str, object]:
        """A row of the table."""
        return {"what": str(self.name), "ratio": self.ratio, "accuracy": 100 * float(self.right.mean())}


def best_rival(rivals: list[Rival], ratio: float, renditions: tuple[str, ...]) -> Rival | None:
    """The most accurate on #report of those that are fast enough: a bias in favour of the alternatives."""
    fitting = [one for one in rivals if one.name.rendition in renditions and one.ratio <= EQUAL_LATENCY * ratio]
    return max(fitting, key=lambda one: float(one.right.mean()), default=None)


def load_rivals(options: BenchOptions) -> Iterator[tuple[RivalName, Loaded]]:
    """Every network whose weights can be had, exported and quantised at each of its sizes."""
    runtime = OnnxRuntime(threads=1)
    for variant, own in OWN_SIDES.items():
        if missing_weights(options, variant) is not None or (options.quick and variant):
            continue
        module = lite_network(options, variant).module
        samples = data.calibration_images(options, _CALIBRATED, variant=variant)
        sides = sorted({own, *(QUICK_SMALLER if options.quick else SMALLER)}, reverse=True)
        with options.progress.task(f"rivals, Lite{variant}", len(sides)) as task:
            for side in sides:
                whole = export_whole(module, TensorSpec("input", (3, side, side), "float32"))
                int8 = quantised_by_tool(whole, resize_prepared(samples, (side, side)), options.work_folder)
                for rendition, model in (("fp32", whole), ("int8", int8)):
                    yield RivalName(variant, rendition, side), Loaded(runtime.load_model(model), (3, side, side))
                task.advance()


def quantised_by_tool(model: bytes, samples: npt.NDArray[np.float32], folder: Path) -> bytes:
    """A model in int8 as a user of ONNX Runtime makes it: prepared, static, QDQ, per channel, uint8 activations.

    ``samples``: [count, *input] prepared. ``folder`` holds files for the while.
    """
    from onnxruntime import quantization as tool
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(tool.CalibrationDataReader):
        def __init__(self) -> None:
            self._batches = iter(np.array_split(samples, -(-len(samples) // _CALIBRATED_AT_ONCE)))

        def get_next(self) -> dict[str, npt.NDArray[np.float32]] | None:
            some = next(self._batches, None)
            return None if some is None else {"input": some}

    whole, prepared, int8 = (folder / f"rival-{name}.onnx" for name in ("whole", "prepared", "int8"))
    whole.write_bytes(model)
    quant_pre_process(str(whole), str(prepared), skip_symbolic_shape=True)
    tool.quantize_static(
        str(prepared),
        str(int8),
        Reader(),
        quant_format=tool.QuantFormat.QDQ,
        per_channel=True,
        activation_type=tool.QuantType.QUInt8,
        weight_type=tool.QuantType.QInt8,
    )
    return int8.read_bytes()
