"""The only call of torch's ONNX exporter, and checks of its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx
import torch
from torch import nn

from device_sdk.supernet.blocks import TensorSpec
from packager.errors import TraceError
from packager.torch_noise import torch_silenced

OPSET = 20
IR_VERSION = 10
_EXAMPLE_BATCH = 2


def export_whole(model: nn.Module, spec: TensorSpec) -> bytes:
    """The whole model exported from ``input`` to ``output``, as a reference for composed models.

    Raises:
        TraceError: torch cannot export it to ONNX.
    """
    proto = _export(model, [spec], batches=[0], inputs=["input"], outputs=["output"], optimize=True)
    refuse_custom_operators(proto)
    return proto.SerializeToString()


@dataclass(frozen=True)
class SideBySide:
    """Several modules in one graph, and its initializers that are parameters or buffers, by name."""

    model: onnx.ModelProto
    states: Mapping[str, torch.Tensor]


def export_side_by_side(
    modules: Sequence[nn.Module], read: Sequence[Sequence[TensorSpec]], *, inputs: Sequence[str], outputs: Sequence[str]
) -> SideBySide:
    """Export all modules into one graph without optimization, each with its own inputs, described in ``read``.

    A module returns one tensor or a tuple. ``inputs`` and ``outputs`` are names in the order of the modules.

    Raises:
        TraceError: torch cannot export them to ONNX.
    """
    together = _SideBySide(modules, [len(specs) for specs in read])
    proto = _export(
        together,
        [spec for specs in read for spec in specs],
        # one symbol per module: with a common one, torch would read a module's batch size from another one's input
        batches=[number for number, specs in enumerate(read) for _ in specs],
        inputs=inputs,
        outputs=outputs,
        optimize=False,
    )
    states = dict(together.named_parameters(remove_duplicate=False))
    states |= dict(together.named_buffers(remove_duplicate=False))
    return SideBySide(
        proto, {tensor.name: states[tensor.name] for tensor in proto.graph.initializer if tensor.name in states}
    )


def refuse_custom_operators(model: onnx.ModelProto) -> None:
    """Raise TraceError if the model uses operators outside ONNX's own set, which devices do not have."""
    if model.functions or any(node.domain for node in model.graph.node):
        raise TraceError("the exported model uses operators outside ONNX's own set")


class _SideBySide(nn.Module):
    """Runs every module on its own inputs; ``counts``: inputs per module."""

    def __init__(self, modules: Sequence[nn.Module], counts: Sequence[int]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(modules)
        self._counts = tuple(counts)

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        left, answers = list(inputs), []
        for part, count in zip(self.parts, self._counts, strict=True):
            given, left = left[:count], left[count:]
            found = part(*given)
            for answer in (found,) if isinstance(found, torch.Tensor) else found:
                # the exporter would rename a tensor that is only passed through to the output's name
                answers.append(answer.clone() if any(answer is tensor for tensor in given) else answer)
        return tuple(answers)


def _export(
    model: nn.Module,
    specs: Sequence[TensorSpec],
    *,
    batches: Sequence[int],
    inputs: Sequence[str],
    outputs: Sequence[str],
    optimize: bool,
) -> onnx.ModelProto:
    """``batches``: for each input the index of its batch symbol."""
    examples = tuple(torch.zeros(_EXAMPLE_BATCH, *spec.shape, dtype=getattr(torch, spec.dtype)) for spec in specs)
    symbols = {number: torch.export.Dim(f"batch_{number}", min=1, max=65536) for number in batches}
    sizes = tuple({0: symbols[number]} for number in batches)
    try:
        with torch_silenced(), torch.no_grad():
            program = torch.export.export(
                model.eval(), examples, dynamic_shapes=(sizes,) if isinstance(model, _SideBySide) else sizes
            )
            exported = torch.onnx.export(
                program,
                dynamo=True,
                opset_version=OPSET,
                input_names=list(inputs),
                output_names=list(outputs),
                optimize=optimize,
                verbose=False,
            )
    except Exception as error:  # the exporter raises many unrelated types
        reason = (str(error).splitlines() or [type(error).__name__])[0][:300]
        raise TraceError(f"the model cannot be exported to ONNX: {reason}") from error
    assert exported is not None
    proto = exported.model_proto
    proto.ir_version = IR_VERSION
    return proto
