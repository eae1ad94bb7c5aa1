"""Shrunk blocks: a block with fewer inner channels, its boundary unchanged (AdaptiveNet §4.1, B⁽⁻¹⁾ and B⁽⁻²⁾).

Torch-Pruning finds groups of dependent channels across layers. The least important channels of each group are removed,
so a shrunk block starts from the most important weights of its original. An attention keeps whole heads.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from device_sdk.extras import require
from device_sdk.supernet.blocks import TensorSpec
from packager.supernet.blocks.heads import fewer_heads
from packager.supernet.blocks.narrowing import narrowing_between
from packager.supernet.blocks.trainable import AddedBlocks, TrainableBlock, count_macs, fits_shapes, listed
from packager.torch_noise import torch_silenced
from packager.tracing.traced_model import parameter_count

_ROUND_TO = (8, 4, 2, 1)  # channels are rounded to the largest of these multiples that leaves any
_LEAST_SAVED = 0.1  # of the MACs: a block that saves less is dropped
_Shape = tuple[int, ...]


def shrunk_blocks(
    originals: Sequence[TrainableBlock], tensors: Sequence[TensorSpec], *, rates: Sequence[float]
) -> AddedBlocks:
    """A block ``s<start>-<percent>`` for every original and every rate, the share of inner channels to keep.

    Channels are rounded, so the percentage in the name, the actual one, may be below the rate. Notes name the blocks
    that cannot be shrunk, with the reason.

    Raises:
        MissingExtraError: Torch-Pruning is not installed.
    """
    blocks: list[TrainableBlock] = []
    failed: dict[tuple[int, str], list[int]] = {}
    for original in originals:
        smallest = original
        for rate in sorted(rates, reverse=True):
            made = _shrunk(original, tensors, rate=rate, smallest=smallest)
            if isinstance(made, TrainableBlock):
                blocks.append(made)
                smallest = made
            else:
                failed.setdefault((round(100 * rate), made), []).append(original.start)
    notes = [f"{listed(starts)} not shrunk to {percent} %: {why}" for (percent, why), starts in failed.items()]
    return AddedBlocks(tuple(blocks), tuple(notes))


def _shrunk(
    original: TrainableBlock, tensors: Sequence[TensorSpec], *, rate: float, smallest: TrainableBlock
) -> TrainableBlock | str:
    """The block of this rate, or the reason for none. It must be smaller than ``smallest``, the previous one."""
    shape = tensors[original.start].shape
    try:
        module = shrink(original.module, shape, tensors[original.end].shape, rate=rate)
    except Exception as error:  # Torch-Pruning raises many kinds on operators that it does not know
        return f"Torch-Pruning fails ({type(error).__name__})"
    narrowed = None if module is None else narrowing_between(original.module, module)
    narrowings = () if narrowed is None else (narrowed,)
    attended = fewer_heads(original.module if module is None else module, shape, rate=rate)
    if attended is not None:
        module, heads = attended
        narrowings = (heads, *narrowings)
    if module is None:
        return "no inner channels can be removed"
    macs = count_macs(module, shape)
    if parameter_count(module) >= smallest.parameters or macs > (1 - _LEAST_SAVED) * smallest.macs:
        return f"below {100 * _LEAST_SAVED:g} % of the MACs would be saved"
    return TrainableBlock(
        id=f"s{original.start}-{_kept_percent(original.module, module)}",
        start=original.start,
        end=original.end,
        kind="shrunk",
        module=module,
        macs=macs,
        copied_from=original.id,
        narrowings=narrowings,
    )


def shrink(module: nn.Module, source: _Shape, target: _Shape, *, rate: float) -> nn.Module | None:
    """A copy of ``module`` ([batch, *source] → [batch, *target]) with ``rate`` of the inner channels, or None.

    All groups of inner channels are pruned at once. If the result does not run, only the groups that can be pruned
    individually are.
    """
    groups = _inner_groups(module, source)
    if not groups:
        return None
    found = _pruned(module, source, groups, rate=rate)
    if fits_shapes(found, source, target):
        return found
    alone = [group for group in groups if fits_shapes(_pruned(module, source, [group], rate=rate), source, target)]
    if not alone:
        return None
    found = _pruned(module, source, alone, rate=rate)
    return found if fits_shapes(found, source, target) else None


@dataclass(frozen=True)
class _Group:
    """Channels that can only be removed together: their number, and the names of the layers that output them."""

    channels: int
    layers: frozenset[str]


def _inner_groups(module: nn.Module, shape: _Shape) -> list[_Group]:
    """The groups of channels that do not reach the block's output."""
    pruning = require("torch_pruning", extra="packager")
    copied = _trainable_copy(module)
    names = {layer: name for name, layer in copied.named_modules()}
    with torch_silenced(), torch.enable_grad():
        graph = pruning.DependencyGraph().build_dependency(copied, example_inputs=_example(shape))
    inner = []
    for group in graph.get_all_groups(root_module_types=_root_types(pruning)):
        giving = [dep.target for dep, _ in group if graph.is_out_channel_pruning_fn(dep.handler)]
        if all(node.outputs for node in giving):  # a tensor that no layer in the block reads is the block's output
            layers = frozenset(names[node.module] for node in giving if isinstance(node.module, _root_types(pruning)))
            inner.append(_Group(len(group[0].idxs), layers))
    return inner


def _pruned(module: nn.Module, shape: _Shape, groups: Sequence[_Group], *, rate: float) -> nn.Module:
    """A copy with ``rate`` of the channels of ``groups``."""
    pruning = require("torch_pruning", extra="packager")
    copied = _trainable_copy(module)
    wanted = frozenset().union(*(group.layers for group in groups))
    layers = {name: layer for name, layer in copied.named_modules() if isinstance(layer, _root_types(pruning))}
    with torch_silenced(), torch.enable_grad():
        pruner = pruning.pruner.MagnitudePruner(
            copied,
            _example(shape),
            importance=pruning.importance.GroupMagnitudeImportance(p=2),
            pruning_ratio=1.0 - rate,
            ignored_layers=[layer for name, layer in layers.items() if name not in wanted],
            round_to=_round_to(min(group.channels for group in groups) * rate),
            # the defaults are mutable dictionaries, shared by all pruners
            **{name: {} for name in ("in_channel_groups", "out_channel_groups", "num_heads", "channel_groups")},
        )
        pruner.step()
    return copied


def _kept_percent(module: nn.Module, shrunk: nn.Module) -> int:
    """Percentage of channels that ``shrunk`` kept, over the layers that lost some."""
    layers = dict(shrunk.named_modules())
    outputs = [(_outputs(layer), _outputs(layers[name])) for name, layer in module.named_modules()]
    before, after = (sum(ends) for ends in zip(*(pair for pair in outputs if pair[0] != pair[1]), strict=True))
    return round(100 * after / before)


def _outputs(layer: nn.Module) -> int:
    """Output channels of a layer with weights; 0 for other modules."""
    found = getattr(layer, "out_channels", getattr(layer, "out_features", 0))
    return found if isinstance(found, int) else 0


def _round_to(channels: float) -> int:
    """The multiple to which ``channels`` are rounded."""
    return next((multiple for multiple in _ROUND_TO if channels >= multiple), 1)


def _root_types(pruning: Any) -> tuple[type, ...]:
    return (pruning.ops.TORCH_CONV, pruning.ops.TORCH_LINEAR)


def _trainable_copy(module: nn.Module) -> nn.Module:
    """A copy with gradients enabled: Torch-Pruning reads the autograd graph."""
    return copy.deepcopy(module).eval().requires_grad_(True)


def _example(shape: _Shape) -> torch.Tensor:
    return torch.zeros(2, *shape)
