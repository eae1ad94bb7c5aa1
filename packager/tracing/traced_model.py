"""Tracing a pretrained model into trainable original blocks between cut points (AdaptiveNet §4.1).

torch.export provides the graph (`exported_graph`). Cut points are positions with one live tensor, or a few in parallel
streams, symbolic sizes excluded (`cut_points`). Each block is rebuilt with the model's own torch.nn layers
(`block_builder`), since an exported graph has batch-norm and dropout frozen in evaluation mode and cannot be pruned.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import nn

from device_sdk.supernet.blocks import TensorSpec
from packager.errors import TraceError
from packager.inputs.two_stage import TwoStage
from packager.torch_noise import torch_silenced
from packager.tracing.block_builder import BlockBuilder
from packager.tracing.cut_points import FUSED, MOST_TENSORS, cut_positions, join_small, live_tensors, tap_positions
from packager.tracing.exported_graph import ExportedGraph

_EXAMPLE_BATCH = 4
_SINGLE, _DOUBLE = 1e-4, 1e-7  # differences of the largest answer that are rounding, by precision
_FAINT = 0.01  # answers below this are compared as if they were this large


# the live tensors at a cut point: one, or a tuple
Feature: TypeAlias = torch.Tensor | tuple[torch.Tensor, ...]


def tensors_of(features: Iterable[Feature]) -> list[torch.Tensor]:
    """The tensors of several features in one flat list."""
    return [tensor for feature in features for tensor in ((feature,) if isinstance(feature, torch.Tensor) else feature)]


@dataclass(frozen=True)
class TracedModel:
    """A model cut into original blocks: block k maps cut point k to k + 1.

    ``cuts[k]`` describes the tensors at cut point k (names ``cut_k``, ``cut_k_1``, …), ``blocks[k]`` is trainable,
    ``whole`` is the model itself. ``taps``: cut points that the last block, a head, reads besides its own start; no
    block may jump over them.
    """

    whole: nn.Module
    blocks: tuple[nn.Module, ...]
    cuts: tuple[tuple[TensorSpec, ...], ...]
    taps: tuple[int, ...] = ()

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """The first tensor at each cut point, the only one except in parallel streams."""
        return tuple(specs[0] for specs in self.cuts)

    @property
    def parameters(self) -> tuple[int, ...]:
        """Parameters of each block."""
        return tuple(parameter_count(block) for block in self.blocks)

    def features(self, batch: torch.Tensor) -> list[Feature]:
        """The features at all cut points, 0 to N, for ``batch`` [batch, *input]."""
        features: list[Feature] = [batch]
        for index, block in enumerate(self.blocks):
            features.append(block(*tensors_of(features[position] for position in self.read_by(index))))
        return features

    def answer(self, batch: torch.Tensor) -> torch.Tensor:
        """The output of the chain of blocks for ``batch`` [batch, *input]: one tensor."""
        answer = self.features(batch)[-1]
        assert isinstance(answer, torch.Tensor)
        return answer

    def read_by(self, index: int) -> tuple[int, ...]:
        """The cut points that original block ``index`` reads, its own start last."""
        return (*self.taps, index) if index == len(self.blocks) - 1 else (index,)


def parameter_count(module: nn.Module) -> int:
    """Number of parameters."""
    return sum(parameter.numel() for parameter in module.parameters())


def trace(
    model: nn.Module,
    example: torch.Tensor,
    *,
    gamma: float = 0.0,
    fused: Collection[str] = FUSED,
    streams: bool = True,
) -> TracedModel:
    """Cut ``model`` into blocks.

    1. export; 2. find the cut points; 3. join neighbours while a block has at most ``gamma`` · P0 parameters;
    4. rebuild every block from the model's own modules; 5. compare the chain of blocks with the model.

    Of a ``TwoStage`` model the backbone is cut, and the head is the last block.

    ``example`` is one prepared batch [batch, *input] of real samples; ``fused`` names the operators that stay with the
    layer before them.

    Raises:
        TraceError: the model cannot be exported (names the place), has no cut point, or differs from its blocks.
    """
    model = _without_inplace_modules(model)
    cut, head = (model.backbone, model.head) if isinstance(model, TwoStage) else (model, None)
    body = ExportedGraph(_export(cut, example), several_outputs=head is not None)
    positions = cut_positions(body, fused=fused, streams=streams)
    if not positions:
        raise TraceError(
            f"the model has no cut point: more than {MOST_TENSORS} tensors are live between any two layers",
            hint="chains of layers, residual blocks and a few parallel streams can be cut",
        )
    bounds = join_small(body, positions, gamma=gamma)
    blocks: list[nn.Module] = _blocks(body, cut, bounds)
    taps = tuple(bounds.index(position) for position in tap_positions(body))
    return _checked(TracedModel(model, (*blocks, head) if head else tuple(blocks), cuts=(), taps=taps), example)


def _blocks(body: ExportedGraph, model: nn.Module, bounds: Sequence[int]) -> list[nn.Module]:
    """The modules of the blocks between ``bounds``, indices of nodes."""
    live = live_tensors(body) | {-1: (body.input,), len(body.nodes) - 1: (body.output,)}
    builders = (
        BlockBuilder(body, model, range(start + 1, end + 1), entries=live[start], results=live[end])
        for start, end in itertools.pairwise(bounds)
    )
    return [builder.build() for builder in builders]


def _without_inplace_modules(model: nn.Module) -> nn.Module:
    model = copy.deepcopy(model).eval()
    for module in model.modules():
        if getattr(module, "inplace", False) is True:
            module.inplace = False  # cached features must survive the next block
    return model


def _export(model: nn.Module, example: torch.Tensor) -> torch.export.ExportedProgram:
    batch = torch.export.Dim("batch", min=1, max=65536)
    # torch.export specialises the batch sizes 0 and 1, so the example has more samples
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
    """The first informative line, and the model's own source line if torch names one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    source = [line for line in lines if line.startswith('File "') and "/torch/" not in line]
    return lines[0][:200] + (f" (at {source[-1][:160]})" if source else "")


def _checked(traced: TracedModel, example: torch.Tensor) -> TracedModel:
    """Describe the cut points and make sure that the blocks reproduce the model at several batch sizes."""
    with torch.no_grad():
        for batch in (1, 3):
            samples = example[:1].repeat(batch, *[1] * (example.dim() - 1))
            try:
                found = traced.answer(samples)
            except Exception as error:
                raise TraceError(f"the cut model does not run at batch {batch}: {_where(error)}") from error
            expected = traced.whole(samples)
            if not isinstance(expected, torch.Tensor):
                raise TraceError(f"the model's output is not a tensor but a {type(expected).__name__}")
            _compare(traced, samples, found, expected)
        features = traced.features(example)
    cuts = (
        tuple(_describe(index, number, tensor) for number, tensor in enumerate(tensors_of([feature])))
        for index, feature in enumerate(features)
    )
    return replace(traced, cuts=tuple(cuts))


def _compare(traced: TracedModel, samples: torch.Tensor, found: torch.Tensor, expected: torch.Tensor) -> None:
    """Raise TraceError unless the blocks compute what the model computes.

    A deep chain can magnify the rounding of its first layers a thousandfold. Where answers in single precision differ,
    those in double precision decide: what is rounding shrinks by 2⁻²⁹, what is a wrong cut stays.
    """
    difference, largest = _distance(found, expected)
    if difference <= _SINGLE * largest:
        return
    reason = f"the cut model differs from the model by {difference:.2g} at batch {len(samples)}"
    exact = copy.deepcopy(traced)
    for module in (exact.whole, *exact.blocks):
        module.double()
    samples = samples.double() if samples.is_floating_point() else samples
    try:
        difference, largest = _distance(exact.answer(samples), exact.whole(samples))
    except RuntimeError as error:  # of a model that names its own precision
        raise TraceError(reason) from error
    if not difference <= _DOUBLE * largest:
        raise TraceError(reason)


def _distance(found: torch.Tensor, expected: torch.Tensor) -> tuple[float, float]:
    """The largest difference, and the magnitude that it is measured by."""
    return (found - expected).abs().max().item(), max(_FAINT, expected.abs().max().item())


def _describe(index: int, number: int, feature: torch.Tensor) -> TensorSpec:
    """Tensor ``number`` at cut point ``index``.

    Of whole numbers, such as ids of tokens, only 0 and 1 are surely valid everywhere: golden inputs are drawn of these.
    """
    name = f"cut_{index}_{number}" if number else f"cut_{index}"
    if not feature.is_floating_point():
        kind = str(feature.dtype).removeprefix("torch.")
        return TensorSpec(name, tuple(feature.shape[1:]), dtype=kind, low=0.0, high=2.0)
    low, high = torch.quantile(feature.flatten()[:1_000_000].float(), torch.tensor([0.01, 0.99])).tolist()
    return TensorSpec(
        name=name,
        shape=tuple(feature.shape[1:]),
        dtype=str(feature.dtype).removeprefix("torch."),
        low=round(low, 4),
        high=round(max(high, low + 1e-3), 4),
    )
