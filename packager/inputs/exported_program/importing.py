"""From an exported program to a trainable module that answers the same."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from packager.errors import ModelLoadError
from packager.inputs.exported_program.archive import read_program
from packager.inputs.exported_program.batch_axis import free_batch
from packager.inputs.exported_program.layers import LayeredProgram, with_layers
from packager.inputs.imported_model import BATCHES, ImportedModel, compared, noise
from packager.torch_noise import torch_silenced

_LEAST_RANK = 2  # a batch axis and one more


def import_program(path: Path, *, input_shape: tuple[int, ...] | None = None) -> ImportedModel:
    """The model in the ``.pt2`` file ``path``; ``input_shape``, without batch, is needed if the file leaves it open.

    Raises:
        ModelLoadError: see ``read_program``; or several inputs or outputs, no batch axis, extents left open, or
            answers that the rebuilt module does not give.
    """
    saved = read_program(path)
    found = rebuilt(saved.program, path.name, input_shape=input_shape)
    return ImportedModel(
        found.module, found.input_shape, found.dtype, found.difference, metadata=saved.extra_files, notes=found.notes
    )


def rebuilt(
    program: torch.export.ExportedProgram, name: str, *, input_shape: tuple[int, ...] | None = None
) -> ImportedModel:
    """The module of ``program`` with layers and a free batch axis; ``name`` is said in errors."""
    value = _input(program, name)
    batch, shape = _batch(value), _shape(value, name, input_shape)
    dtype = torch.float32 if value.dtype.is_floating_point else value.dtype
    with torch_silenced():
        layered = with_layers(program)
        module = layered.module if batch is None else free_batch(layered.module, noise(batch, shape, dtype))
    if batch is None and input_shape is not None and tuple(input_shape) != shape:
        raise _wrong_shape(name, shape)
    notes = _notes(layered, name, batch)
    difference = _verified(program, layered, module, batch=batch, shape=shape, dtype=dtype, name=name)
    return ImportedModel(module, shape, dtype, difference, notes=notes)


def _input(program: torch.export.ExportedProgram, name: str) -> Tensor:
    """The example of the only input."""
    signature = program.graph_signature
    inputs, outputs = signature.user_inputs, signature.user_outputs
    if len(inputs) != 1 or len(outputs) != 1:
        raise ModelLoadError(
            f"{name} has {len(inputs)} inputs and {len(outputs)} outputs; one tensor in and one out are supported",
            hint="export a module whose forward takes the images alone and returns the logits alone",
        )
    nodes = {node.name: node for node in program.graph.nodes}
    entry, answer = (nodes[str(one)].meta.get("val") if str(one) in nodes else None for one in (inputs[0], outputs[0]))
    if not isinstance(entry, Tensor) or not isinstance(answer, Tensor):
        raise ModelLoadError(f"{name} takes or answers something that is no tensor", hint="one tensor in, one out")
    if entry.dim() < _LEAST_RANK or answer.dim() < _LEAST_RANK:
        raise ModelLoadError(
            f"{name} maps {_extents(entry)} to {_extents(answer)}: there is no batch axis",
            hint="export it with a batch of inputs, the batch as first axis of what goes in and out",
        )
    return entry


def _extents(value: Tensor) -> str:
    return "×".join(map(str, value.shape)) or "a number"


def _batch(value: Tensor) -> int | None:
    """The fixed batch size; None if it is free."""
    return int(value.shape[0]) if isinstance(value.shape[0], int) else None


def _shape(value: Tensor, name: str, given: tuple[int, ...] | None) -> tuple[int, ...]:
    """The input's shape without its batch; what the program leaves open is as ``given``."""
    own = value.shape[1:]
    if given is None and not all(isinstance(extent, int) for extent in own):
        raise ModelLoadError(
            f"{name} leaves the extents of its input open: {_extents(value)}",
            hint="--input-shape says which to package, for example 3x224x224",
        )
    if given is not None:
        fixed = zip(own, given, strict=False)
        if len(given) != len(own) or any(isinstance(one, int) and one != other for one, other in fixed):
            raise _wrong_shape(name, tuple(own))
        return tuple(given)
    return tuple(int(extent) for extent in own)


def _wrong_shape(name: str, own: tuple[object, ...]) -> ModelLoadError:
    return ModelLoadError(
        f"{name} takes inputs of shape {'×'.join(map(str, own))}", hint="leave --input-shape out, or give that shape"
    )


def _notes(layered: LayeredProgram, name: str, batch: int | None) -> tuple[str, ...]:
    notes = []
    if layered.half:
        notes.append(f"{name} is in half precision; it is packaged in single precision")
    if layered.training:
        listed = ", ".join(layered.training[:3]) + (" …" if len(layered.training) > 3 else "")
        notes.append(f"{name} was exported in training mode; {listed} are packaged in evaluation mode")
    if batch is not None:
        notes.append(f"{name} was exported for batches of {batch}; the module takes any")
    return tuple(notes)


def _verified(
    program: torch.export.ExportedProgram,
    layered: LayeredProgram,
    module: torch.nn.Module,
    *,
    batch: int | None,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    name: str,
) -> float:
    """The difference from the program's own answers. Where it ran in another mode or precision, there are none."""
    if layered.half or layered.training:
        for count in BATCHES:
            with torch.no_grad():
                module(noise(count, shape, dtype))
        return 0.0
    with torch_silenced():
        own = program.module(check_guards=False)

    def answer(samples: Tensor) -> Tensor:
        if batch is None:
            return _alone(own(samples))
        rows = [_alone(own(sample.repeat(batch, *[1] * len(shape))))[:1] for sample in samples.split(1)]
        return torch.cat(rows)

    return compared(module, answer, shape=shape, dtype=dtype, name=name)


def _alone(answer: object) -> Tensor:
    """The tensor in an answer that may be a tuple, list or dict of one."""
    while not isinstance(answer, Tensor):
        (answer,) = answer.values() if isinstance(answer, dict) else answer  # type: ignore[misc]
    return answer
