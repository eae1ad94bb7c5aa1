"""The networks of ``doors``, and the files that each is exported to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from benchmarks.generality.models import MODELS

# The 35 of ``generality`` without those at real size and those that stand for one unusual construction.
_UNUSUAL = (
    *("twins_svt_small", "efficientvit_b0", "coat_tiny", "nest_tiny", "crossvit_tiny_240"),
    *("convmixer_768_32", "hiera_tiny_224"),
)
NETWORKS = tuple(name for name in MODELS if " at " not in name and name.removeprefix("timm:") not in _UNUSUAL)
QUICK_NETWORKS = (
    *("torchvision:resnet18", "torchvision:mobilenet_v3_large", "timm:deit_tiny_patch16_224"),
    "tokens:transformer_encoder",
)
_OLD_OPSETS = (13, 14, 15, 16, 17, 18, 19, 20)  # that the exporter over TorchScript writes
_NEW_OPSETS = (18, 19, 20, 21, 13)


@dataclass(frozen=True)
class Export:
    """One way to write a network to a file; ``fixed``: for a batch of 1."""

    kind: str  # pt2 or onnx
    exporter: str
    opset: int | None = None
    fixed: bool = False


def exports_of(name: str) -> tuple[Export, ...]:
    """The files of one network: opsets and fixed batches alternate over the networks."""
    number = NETWORKS.index(name)
    old, new = _OLD_OPSETS[number % len(_OLD_OPSETS)], _NEW_OPSETS[number % len(_NEW_OPSETS)]
    return (
        Export("pt2", "torch.export"),
        Export("pt2", "torch.export", fixed=True),
        Export("onnx", "dynamo", new),
        Export("onnx", "torchscript", old, fixed=number % 2 == 0),
    )


def write(export: Export, model: nn.Module, example: torch.Tensor, folder: Path) -> Path:
    """The file of ``model``; ``example``: [4, *input]. Exporters raise many unrelated types."""
    path, example = folder / f"model.{export.kind}", example[:1] if export.fixed else example
    free = None if export.fixed else ({0: torch.export.Dim("batch", min=1, max=65536)},)
    names = {"input_names": ["input"], "output_names": ["output"], "opset_version": export.opset}
    with torch.no_grad():
        if export.kind == "pt2":
            torch.export.save(torch.export.export(model, (example,), dynamic_shapes=free), path)
        elif export.exporter == "dynamo":
            torch.onnx.export(
                model, (example,), path, dynamo=True, dynamic_shapes=free, external_data=False, verbose=False, **names
            )
        else:
            axes = None if export.fixed else {"input": {0: "batch"}, "output": {0: "batch"}}
            torch.backends.mha.set_fastpath_enabled(False)  # a fused operator that this exporter does not know
            torch.onnx.export(model, (example,), str(path), dynamo=False, dynamic_axes=axes, **names)
    return path
