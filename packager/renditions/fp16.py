"""fp16: weights and arithmetic in half precision where the provider supports it; cut points stay float32."""

from __future__ import annotations

from pathlib import Path

import onnx

from device_sdk.progress import Progress
from device_sdk.runtimes import OnnxRuntime
from device_sdk.supernet.blocks import Golden
from packager.errors import VerificationError
from packager.exporting.export import ExportedBlocks, deduplicate_weights
from packager.exporting.onnx_exporter import OPSET
from packager.exporting.verification import TorchReference
from packager.renditions.calibration import Calibration
from packager.renditions.rendition_set import RenditionSet, as_fragment, part_model, part_stretch
from packager.torch_noise import torch_silenced

NAME = "fp16"
PROVIDERS = ("CUDAExecutionProvider", "TensorrtExecutionProvider")
RELATIVE_TOLERANCE = 1e-2  # of the largest magnitude in the answer


def make_fp16(exported: ExportedBlocks, calibration: Calibration, progress: Progress, cache: Path) -> RenditionSet:
    """The fp16 fragments of all blocks and exits, except those that overflow half precision.

    Checked with the CPU provider, which computes in single precision between casts if it lacks half precision.
    """
    reference, runtime = TorchReference(exported.expansion), OnnxRuntime(threads=1, lean=True)
    graphs: dict[str, onnx.GraphProto] = {}
    golden: dict[str, Golden] = {}
    notes = []
    with progress.task(f"convert to {NAME}", len(exported.own)) as task:
        for part in exported.own:
            task.note(part)
            graph = _halved(part_model(exported, part), part)
            loaded = runtime.load(part_stretch(exported, part, graph))
            try:
                name = f"{NAME} of {part}"
                golden[part] = reference.golden(name, [part], loaded, relative_tolerance=RELATIVE_TOLERANCE)
                graphs[part] = graph
            except VerificationError as error:
                notes.append(f"{part} has no {NAME} rendition: {error}")
            finally:
                loaded.close()
            task.advance()
    shared = deduplicate_weights(exported.expansion, graphs)
    return RenditionSet(
        name=NAME,
        runtime="onnxruntime",
        own=shared.own,
        shared=shared.shared,
        needs=shared.needs,
        golden=golden,
        opset=OPSET,
        providers=PROVIDERS,
        notes=tuple(notes),
    )


def _halved(model: onnx.ModelProto, part: str) -> onnx.GraphProto:
    from onnxruntime.transformers.float16 import convert_float_to_float16

    with torch_silenced():
        return as_fragment(convert_float_to_float16(model, keep_io_types=True), part)
