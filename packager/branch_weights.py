"""The weights of what packaging added to a model (blocks and exits, never its originals), as a safetensors file.

With them a recipe of no training steps rebuilds a bundle in minutes; with more steps, training goes on from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors.torch import save
from torch import nn

from device_sdk.atomic import write_atomically
from packager.errors import WeightsError
from packager.expansion import Expansion
from packager.weights import read_state_dict

BranchWeights = Mapping[str, torch.Tensor]


def read_branches(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a file that ``write_branches`` wrote, as ``<block or exit id>.<name>``.

    Raises:
        WeightsError: the file is missing, unreadable or no weights file.
    """
    return read_state_dict(path)


def load_branches(expansion: Expansion, weights: BranchWeights) -> None:
    """Put ``weights`` into the added blocks and exits of ``expansion``, all or nothing.

    Raises:
        WeightsError: they are those of another supernet; names what is missing, too much or of another shape.
    """
    modules = _modules(expansion)
    expected = {(f"{name}.{key}", value.shape) for name, module in modules.items() for key, value in _state(module)}
    given = {(name, value.shape) for name, value in weights.items()}
    wrong = sorted({name.partition(".")[0] for name, _ in expected ^ given})
    if wrong:
        shown = ", ".join(wrong[:3]) + (", …" if len(wrong) > 3 else "")
        raise WeightsError(
            f"the branch weights are those of another supernet: {shown}",
            hint="max_span, tiled, shrink_rates, gamma, fused and exit_positions must be as when they were trained",
        )
    for name, module in modules.items():
        module.load_state_dict({key: weights[f"{name}.{key}"] for key, _ in _state(module)})


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
