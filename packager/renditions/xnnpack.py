"""xnnpack: one ExecuTorch program (``.pte``) per block, fully delegated to XNNPACK.

A program has a batch size of 1, since its memory is planned statically. Runtimes split larger batches.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

from device_sdk.extras import require
from device_sdk.files.atomic import write_atomically
from device_sdk.progress import Progress
from device_sdk.runtimes.executorch import EXECUTORCH, ExecutorchRuntime
from device_sdk.supernet.blocks import TensorSpec
from packager.errors import NotDelegatedError, TraceError
from packager.exporting.export import ExportedBlocks
from packager.exporting.verification import TorchReference
from packager.renditions.calibration import Calibration
from packager.renditions.rendition_set import RenditionSet, part_stretch
from packager.torch_noise import torch_silenced

NAME = "xnnpack"
ENTRY_POINT = "forward"
_PASSIVE = ("executorch_call_delegate", "getitem")
_aten = torch.ops.aten
_IMAGE_AXES = (2, 3)  # of [batch, channels, height, width]


def make_xnnpack(exported: ExportedBlocks, calibration: Calibration, progress: Progress, cache: Path) -> RenditionSet:
    """The programs of all blocks and exits, verified with ExecuTorch against torch.

    Lowering takes seconds per block. Programs are stored in ``cache``, for resuming.

    Raises:
        NotDelegatedError: XNNPACK does not support all operators of a block, which would then run very slowly.
        TraceError: ExecuTorch cannot export a block.
        VerificationError: a program differs from torch.
        MissingExtraError: executorch is not installed.
    """
    require("executorch.exir", extra=EXECUTORCH)
    reference, runtime = TorchReference(exported.expansion), ExecutorchRuntime(threads=1)
    own, golden = {}, {}
    with progress.task(f"lower to {NAME}", len(exported.own)) as task:
        for part in exported.own:
            task.note(part)
            kept = cache / f"{NAME}-{_digest(exported, part)}.pte"
            if not kept.exists():
                start = exported.expansion.cut_points[reference.starts[part]].tensors[0]
                write_atomically(kept, lowered(reference.modules[part], start, name=part))
            own[part] = kept.read_bytes()
            stretch = replace(
                part_stretch(exported, part), fragments=(own[part],), runtime=EXECUTORCH, entry_points=(ENTRY_POINT,)
            )
            loaded = runtime.load(stretch)
            golden[part] = reference.golden(f"{NAME} of {part}", [part], loaded)
            loaded.close()
            task.advance()
    return RenditionSet(name=NAME, runtime=EXECUTORCH, own=own, golden=golden, entry_point=ENTRY_POINT)


def lowered(module: nn.Module, start: TensorSpec, *, name: str) -> bytes:
    """The program of a block with the input ``start``, for batch size 1.

    Raises:
        NotDelegatedError, TraceError: see ``make_xnnpack``.
    """
    partitioner = require("executorch.backends.xnnpack.partition.xnnpack_partitioner", extra=EXECUTORCH)
    example = torch.zeros(1, *start.shape, dtype=getattr(torch, start.dtype))
    try:
        with torch_silenced(), torch.no_grad():
            edge = require("executorch.exir", extra=EXECUTORCH).to_edge_transform_and_lower(
                rewritten(module, example), partitioner=[partitioner.XnnpackPartitioner()]
            )
            left = _left_over(edge.exported_program().graph_module)
            program = b"" if left else bytes(edge.to_executorch().buffer)
    except Exception as error:  # the exporter raises many unrelated types
        reason = (str(error).splitlines() or [type(error).__name__])[0][:300]
        raise TraceError(f"ExecuTorch cannot export {name}: {reason}") from error
    if left:
        raise NotDelegatedError(
            f"XNNPACK does not support all operators of {name}: {', '.join(left)}",
            hint=f"package without the rendition {NAME}: parts that are not delegated would run very slowly",
        )
    return program


def _left_over(graph_module: torch.fx.GraphModule) -> list[str]:
    """The distinct operators that were not delegated."""
    called = [node.target for node in graph_module.graph.nodes if node.op == "call_function"]
    names = [str(getattr(target, "__name__", target)) for target in called]
    return sorted({name for name in names if name not in _PASSIVE})


def _digest(exported: ExportedBlocks, part: str) -> str:
    """Cache key of a program: the digest of its fragment, which determines it."""
    digest = hashlib.sha256(metadata.version(EXECUTORCH).encode())
    for data in part_stretch(exported, part).fragments:
        digest.update(data)
    return digest.hexdigest()


def rewritten(module: nn.Module, example: torch.Tensor) -> torch.export.ExportedProgram:
    """``module`` exported for one ``example`` [1, *shape], with these operators replaced:

    a mean with ``keepdim=False``, by one with ``keepdim=True`` and a reshape; a slice of every n-th row or column, by a
    depthwise 1×1 convolution with stride n.
    """
    traced = torch.export.export(module.eval(), (example,)).module()
    assert isinstance(traced, fx.GraphModule)
    for node in list(traced.graph.nodes):
        replace = _REWRITES.get(node.target)
        replacement = replace(traced, node) if replace is not None else None
        if replacement is not None:
            node.replace_all_uses_with(replacement)
            traced.graph.erase_node(node)
    traced.recompile()
    return torch.export.export(traced, (example,))


def _mean(traced: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    value, axes = _argument(node, 0, "self"), _argument(node, 1, "dim")
    if _argument(node, 2, "keepdim") or not isinstance(axes, list | tuple):
        return None
    with traced.graph.inserting_before(node):
        kept = traced.graph.call_function(_aten.mean.dim, (value, list(axes), True))
        return traced.graph.call_function(_aten.reshape.default, (kept, list(node.meta["val"].shape)))


def _strided_slice(traced: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    value, axis = _argument(node, 0, "self"), _argument(node, 1, "dim")
    start, end, step = (_argument(node, 2 + n, name) for n, name in enumerate(("start", "end", "step")))
    size = value.meta["val"].shape
    whole = start in (None, 0) and (end is None or (isinstance(end, int) and end >= size[axis]))
    if step in (None, 1) or axis not in _IMAGE_AXES or len(size) != 4 or not whole:
        return None
    channels = size[1]
    name = f"ones_{node.name}"
    traced.register_buffer(name, torch.ones(channels, 1, 1, 1))
    stride = [step if axis == other else 1 for other in _IMAGE_AXES]
    with traced.graph.inserting_before(node):
        ones = traced.graph.get_attr(name)
        arguments = (value, ones, None, stride, [0, 0], [1, 1], channels)
        convolution = traced.graph.call_function(_aten.conv2d.default, arguments)
        convolution.meta["val"] = node.meta["val"]
        return convolution


def _argument(node: fx.Node, number: int, name: str) -> Any:
    return node.args[number] if len(node.args) > number else node.kwargs.get(name)


_REWRITES: dict[object, Callable[[fx.GraphModule, fx.Node], fx.Node | None]] = {
    _aten.mean.dim: _mean,
    _aten.slice.Tensor: _strided_slice,
}
