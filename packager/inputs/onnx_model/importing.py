"""From an ONNX file to a trainable module with the same answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnxruntime
import torch
from torch import Tensor

from packager.errors import ModelLoadError
from packager.inputs.exported_program.importing import rebuilt
from packager.inputs.imported_model import TOLERANCE, ImportedModel, compared, noise
from packager.inputs.onnx_model.network import OnnxNetwork
from packager.inputs.onnx_model.reading import OnnxModel, read_onnx
from packager.torch_noise import torch_silenced

_EXAMPLES = 4  # torch.export takes batches of 0 and 1 as fixed
_HALF_TOLERANCE = 0.03  # of answers in half precision
_HALF_TYPES = {
    "tensor(float16)": "float16",
    "tensor(float)": "float32",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
}


def import_onnx(path: Path, *, input_shape: tuple[int, ...] | None = None) -> ImportedModel:
    """The model in ``path``, compared with what ONNX Runtime answers; ``input_shape`` as for ``read_onnx``.

    Raises:
        ModelLoadError: see ``read_onnx``; or an operator without an import, a batch size that cannot be freed, or other
            answers than the file's.
    """
    model = read_onnx(path, input_shape=input_shape)
    network, runtime, batch = OnnxNetwork(model), _runtime(model), model.batch
    notes: tuple[str, ...] = ()
    if batch is None and not _takes(runtime, model, 3):
        batch = 1  # a graph traced for one sample whose input claims any number
        notes = (f"{model.name} is for one sample at a time; the module takes any batch",)
    with torch_silenced():
        program, fixed = _exported(network, model, batch)
    found = rebuilt(program, path.name)

    def answer(samples: Tensor) -> Tensor:
        if batch is None:
            return runtime(samples)
        rows = (runtime(sample.repeat(batch, *[1] * (sample.dim() - 1)))[:1] for sample in samples.split(1))
        return torch.cat(list(rows))

    tolerance = _HALF_TOLERANCE if model.half else TOLERANCE
    shape = model.input_shape
    difference = compared(found.module, answer, shape=shape, dtype=model.dtype, name=path.name, tolerance=tolerance)
    if model.half:
        notes += (f"{path.name} is in half precision; it is packaged in single precision",)
    notes += found.notes if fixed == batch else ()
    return replace(found, difference=difference, metadata=model.metadata, notes=notes)


def _exported(
    network: OnnxNetwork, model: OnnxModel, batch: int | None
) -> tuple[torch.export.ExportedProgram, int | None]:
    """The exported network, and the batch size that it is for: any (None) if ``batch`` is None and torch allows it."""
    network.eval()
    with torch.no_grad():
        try:
            network(noise(batch or 1, model.input_shape, model.dtype))
        except ModelLoadError:
            raise
        except Exception as error:  # torch's operators raise many types
            raise _not_run(model, error) from error
        if batch is None:
            try:
                example = noise(_EXAMPLES, model.input_shape, model.dtype)
                free = ({0: torch.export.Dim("batch", min=1, max=65536)},)
                return torch.export.export(network, (example,), dynamic_shapes=free), None
            except Exception:  # torch.export raises many types: a batch that it takes as fixed can still be freed
                batch = 1
        try:
            example = noise(batch, model.input_shape, model.dtype)
            return torch.export.export(network, (example,)), batch
        except Exception as error:
            raise _not_run(model, error) from error


def _not_run(model: OnnxModel, error: Exception) -> ModelLoadError:
    reason = next(iter(str(error).strip().splitlines()), type(error).__name__)[:200]
    return ModelLoadError(
        f"{model.name} cannot be run as a torch module: {reason}",
        hint="package the nn.Module (--model package.module:callable) or the exported program (.pt2) instead",
    )


def _runtime(model: OnnxModel) -> Callable[[Tensor], Tensor]:
    """The file's own answers, by ONNX Runtime on the processor."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(
            model.proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # ONNX Runtime and protobuf raise types of their own
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)[:200]
        raise ModelLoadError(
            f"ONNX Runtime does not take {model.name}: {reason}", hint="check it with onnx.checker.check_model"
        ) from error
    kind = _HALF_TYPES[session.get_inputs()[0].type]

    def answer(samples: Tensor) -> Tensor:
        (found,) = session.run(None, {model.input_name: samples.numpy().astype(kind)})
        return torch.from_numpy(found.astype("float32"))

    return answer


def _takes(runtime: Callable[[Tensor], Tensor], model: OnnxModel, batch: int) -> bool:
    try:
        return len(runtime(noise(batch, model.input_shape, model.dtype))) == batch
    except Exception:  # ONNX Runtime raises types of its own
        return False
