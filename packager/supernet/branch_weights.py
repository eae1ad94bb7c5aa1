"""The weights of added blocks and exits, never of originals, as a safetensors file.

With them a recipe without training steps rebuilds a bundle in minutes; with steps, training starts from them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save
from torch import nn

from device_sdk.files.atomic import write_atomically
from packager.branch_zoo.specs import parse
from packager.branch_zoo.stored_branch import exit_of
from packager.errors import WeightsError
from packager.fitting.candidates import sources
from packager.inputs.weights import read_state_dict
from packager.supernet.blocks.trainable import TrainableBlock
from packager.supernet.expansion import Expansion

BranchWeights = Mapping[str, torch.Tensor]
_EXIT = re.compile(r"x(\d{1,6})-(.+)")


def read_branches(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a file that ``write_branches`` wrote, as ``<block or exit id>.<name>``.

    Raises:
        WeightsError: the file is missing, unreadable or no weights file.
    """
    return read_state_dict(path)


def load_branches(expansion: Expansion, weights: BranchWeights) -> Expansion:
    """Load ``weights`` into the added blocks and exits of ``expansion``, all or none.

    Blocks without weights in the file had been dropped before training and are dropped again. If a block was trained
    as a copy of another of its replaced blocks, it becomes such a copy.

    Raises:
        WeightsError: they belong to another supernet; names missing or unexpected tensors and wrong shapes.
    """
    shapes: dict[str, set[tuple[str, torch.Size]]] = {}
    for name, value in weights.items():
        owner, _, key = name.partition(".")
        shapes.setdefault(owner, set()).add((key, value.shape))
    expansion = _with_zoo_exits(expansion, weights)
    learned = [block for block in expansion.trained if _shapes(block.module)]
    expansion = expansion.without(block.id for block in learned if block.id not in shapes)
    expansion = expansion.replacing(
        {block.id: _as_trained(block, expansion, shapes[block.id]) for block in learned if block.id in shapes}
    )
    modules = _modules(expansion)
    expected = {(f"{name}.{key}", value.shape) for name, module in modules.items() for key, value in _state(module)}
    given = {(name, value.shape) for name, value in weights.items()}
    wrong = sorted({name.partition(".")[0] for name, _ in expected ^ given})
    if wrong:
        shown = ", ".join(wrong[:3]) + (", …" if len(wrong) > 3 else "")
        raise WeightsError(
            f"the branch weights belong to another supernet: {shown}",
            hint="max_span, tiled, shrink_rates, gamma, fused, exit_positions, branches must be as they were trained",
        )
    for name, module in modules.items():
        module.load_state_dict({key: weights[f"{name}.{key}"] for key, _ in _state(module)})
    return expansion


def _with_zoo_exits(expansion: Expansion, weights: BranchWeights) -> Expansion:
    """The expansion with the zoo's exits that the file has; their ids say what they are."""
    states: dict[tuple[int, str], dict[str, torch.Tensor]] = {}
    for name, value in weights.items():
        owner, _, key = name.partition(".")
        found = _EXIT.fullmatch(owner)
        if found is not None and parse(found[2]) is not None:
            states.setdefault((int(found[1]), found[2]), {})[key] = value
    tensors = expansion.traced.tensors
    exits = []
    for (position, branch), state in sorted(states.items(), key=lambda item: item[0]):
        if not 0 < position < len(tensors) - 1 or len(expansion.traced.cuts[position]) != 1:
            place = f"x{position}-{branch[:80]}"
            raise WeightsError(f"the branch weights belong to another supernet: there is no place for {place}")
        exits.append(exit_of(position, branch, state, tensors[position].shape))
    return replace(expansion, exits=expansion.exits + tuple(exits))


def _as_trained(
    block: TrainableBlock, expansion: Expansion, shapes: Collection[tuple[str, torch.Size]]
) -> TrainableBlock:
    """The copy of a replaced block whose weights have these ``shapes``; ``block`` itself if none has."""
    if _shapes(block.module) == shapes:
        return block
    copies = sources(block, expansion.originals, expansion.traced.tensors)
    return next((candidate for candidate in copies if _shapes(candidate.module) == shapes), block)


def _shapes(module: nn.Module) -> set[tuple[str, torch.Size]]:
    return {(key, value.shape) for key, value in _state(module)}


def write_branches(expansion: Expansion, path: Path) -> None:
    """Write the weights of the added blocks and exits to ``path``, atomically.

    Raises:
        StorageError: the file cannot be written.
    """
    tensors = {
        f"{name}.{key}": value.detach().contiguous()
        for name, module in _modules(expansion).items()
        for key, value in _state(module)
    }
    write_atomically(path, save(tensors))


def _modules(expansion: Expansion) -> dict[str, nn.Module]:
    blocks: dict[str, nn.Module] = {block.id: block.module for block in expansion.added}
    return blocks | {exit_.id: exit_.module for exit_ in expansion.exits}


def _state(module: nn.Module) -> Iterable[tuple[str, torch.Tensor]]:
    return module.state_dict().items()
