"""Tracing a pretrained model to its cut points and to trainable original blocks (AdaptiveNet §4.1).

torch.export gives the graph (`exported_graph`); cut points are the positions where exactly one tensor is live, symbolic
sizes left out (`cut_points`). Each block is rebuilt with the model's own torch.nn layers in it (`block_builder`), since
an exported graph has batch-norm and dropout frozen in evaluation mode and cannot be pruned.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Collection
from dataclasses import dataclass, replace

import torch
from torch import nn

from device_sdk.graph import TensorSpec
from packager.errors import TraceError
from packager.torch_noise import torch_silenced
from packager.tracing.block_builder import BlockBuilder
from packager.tracing.cut_points import FUSED, cut_positions, join_small, tap_positions
from packager.tracing.exported_graph import ExportedGraph
from packager.two_stage import TwoStage

_EXAMPLE_BATCH = 4
_FAINT = 0.01  # answers below this are compared as if they were this large


@dataclass(frozen=True)
class TracedModel:
    """A model cut into original blocks: block k maps cut point k to k + 1.

    ``tensors[k]`` describes cut point k (names ``cut_k``), ``blocks[k]`` is trainable, ``whole`` is the model itself.
    ``taps``: the cut points that the last block, a head, reads before its own; nothing may jump over them.
    """

    whole: nn.Module
    blocks: tuple[nn.Module, ...]
    tensors: tuple[TensorSpec, ...]
    taps: tuple[int, ...] = ()

    @property
    def parameters(self) -> tuple[int, ...]:
        """Parameters of each block."""
        return tuple(parameter_count(block) for block in self.blocks)

    def features(self, batch: torch.Tensor) -> list[torch.Tensor]:
        """The tensors at all cut points, 0 to N, for ``batch`` [batch, *input]."""
        features = [batch]
        for index, block in enumerate(self.blocks):
            features.append(block(*(features[position] for position in self.read_by(index))))
        return features

    def read_by(self, index: int) -> tuple[int, ...]:
        """The cut points whose tensors original block ``index`` takes, in order, its own start last."""
        return (*self.taps, index) if index == len(self.blocks) - 1 else (index,)


def parameter_count(module: nn.Module) -> int:
    """Number of parameters."""
    return sum(parameter.numel() for parameter in module.parameters())


def trace(
    model: nn.Module, example: torch.Tensor, *, gamma: float = 0.0, fused: Collection[str] = FUSED
) -> TracedModel:
    """Cut ``model`` into blocks.

    1. export; 2. find the cut points; 3. join neighbours while a block has at most ``gamma`` · P0 parameters;
    4. rebuild every block from the model's own modules; 5. check that the blocks compute what the model computes.

    Of a ``TwoStage`` model the backbone is cut, and the head is the last block.

    ``example`` is one prepared batch [batch, *input] of real samples; ``fused`` names the operators that stay with the
    layer before them.

    Raises:
        TraceError: the model cannot be exported (says where), has no cut point, or is not reproduced by its blocks.
    """
    model = _without_inplace_modules(model)
    cut, head = (model.backbone, model.head) if isinstance(model, TwoStage) else (model, None)
    body = ExportedGraph(_export(cut, example), several_outputs=head is not None)
    positions = cut_positions(body, fused=fused)
    if not positions:
        raise TraceError(
            "the model has no cut point: nowhere between two layers is a single tensor live",
            hint="a chain of layers or residual blocks can be cut, parallel streams cannot",
        )
    bounds = join_small(body, positions, gamma=gamma)
    blocks: list[nn.Module] = []
    blocks += (BlockBuilder(body, cut, first, last).build() for first, last in itertools.pairwise(bounds))
    taps = tuple(bounds.index(position) for position in tap_positions(body))
    return _checked(TracedModel(model, (*blocks, head) if head else tuple(blocks), tensors=(), taps=taps), example)


def _without_inplace_modules(model: nn.Module) -> nn.Module:
    model = copy.deepcopy(model).eval()
    for module in model.modules():
        if getattr(module, "inplace", False) is True:
            module.inplace = False  # cached features must survive the next block
    return model


def _export(model: nn.Module, example: torch.Tensor) -> torch.export.ExportedProgram:
    batch = torch.export.Dim("batch", min=1, max=65536)
    # 0 and 1 are specialised by torch.export, so the example has a batch of several samples
    example = example[:1].repeat(_EXAMPLE_BATCH, *[1] * (example.dim() - 1))
    try:
        with torch_silenced(), torch.no_grad():
            return torch.export.export(model, (example,), dynamic_shapes=({0: batch},))
    except Exception as error:  # torch.export raises many unrelated types
        raise TraceError(
            f"the model cannot be traced: {_where(error)}",
            hint="torch.export must accept the model: no control flow that depends on data, one tensor in, one out",
        ) from error


def _where(error: Exception) -> str:
    """The first line that says something, and the model's own source line if torch names one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    source = [line for line in lines if line.startswith('File "') and "/torch/" not in line]
    return lines[0][:200] + (f" (at {source[-1][:160]})" if source else "")


def _checked(traced: TracedModel, example: torch.Tensor) -> TracedModel:
    """Describe the cut points and make sure that the blocks reproduce the model at several batch sizes."""
    with torch.no_grad():
        for batch in (1, 3):
            samples = example[:1].repeat(batch, *[1] * (example.dim() - 1))
            try:
                features = traced.features(samples)
            except Exception as error:
                raise TraceError(f"the cut model does not run at batch {batch}: {_where(error)}") from error
            expected = traced.whole(samples)
            if not isinstance(expected, torch.Tensor):
                raise TraceError(f"the model's output is not a tensor but a {type(expected).__name__}")
            difference = (features[-1] - expected).abs().max().item()
            if not difference <= 1e-4 * max(_FAINT, expected.abs().max().item()):
                raise TraceError(f"the cut model differs from the model by {difference:.2g} at batch {batch}")
        features = traced.features(example)
    tensors = tuple(_describe(index, feature) for index, feature in enumerate(features))
    return replace(traced, tensors=tensors)


def _describe(index: int, feature: torch.Tensor) -> TensorSpec:
    low, high = torch.quantile(feature.flatten()[:1_000_000].float(), torch.tensor([0.01, 0.99])).tolist()
    return TensorSpec(
        name=f"cut_{index}",
        shape=tuple(feature.shape[1:]),
        dtype=str(feature.dtype).removeprefix("torch."),
        low=round(low, 4),
        high=round(max(high, low + 1e-3), 4),
    )
