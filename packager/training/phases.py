"""The phases of training, in order: trained modules and length of each. Their losses: ``packager/training/losses.py``.

distil (added blocks imitate the replaced ones) → tune (sampled paths are trained end to end) → exits (branches are
trained on frozen features). AdaptiveNet §4.2; the exits after MEEdge.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from packager.inputs.recipe import Recipe
from packager.supernet.expansion import Expansion
from packager.training.losses import Losses

DISTIL, TUNE, EXITS = "distil", "tune", "exits"
RATES = {DISTIL: "distil_rate", TUNE: "tune_rate", EXITS: "exit_rate"}  # the recipe's names


@dataclass(frozen=True)
class Phase:
    """One training phase: its name, share of the training, peak learning rate, trained modules, and loss.

    A step is one batch and ``updates`` optimizer updates. ``loss`` takes the number of the update.
    """

    name: str
    share: float
    rate: float
    modules: Mapping[str, nn.Module]
    loss: Callable[[int], torch.Tensor]
    updates: int = 1

    @property
    def adaptive(self) -> bool:
        """True if the optimizer is Adam, whose update length does not depend on that of the gradient."""
        return self.name == DISTIL

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All trained parameters."""
        return [parameter for module in self.modules.values() for parameter in module.parameters()]

    @property
    def clipped_together(self) -> list[list[nn.Parameter]]:
        """Groups of parameters whose gradients are clipped by a common norm. Exits are independent: one group each."""
        if self.name != EXITS:
            return [self.parameters]
        return [list(module.parameters()) for module in self.modules.values()]

    def optimizer(self) -> torch.optim.Optimizer:
        """A new optimizer: Adam or SGD with momentum."""
        if self.adaptive:
            return torch.optim.Adam(self.parameters, lr=self.rate)
        return torch.optim.SGD(self.parameters, lr=self.rate, momentum=0.9, nesterov=True, weight_decay=1e-4)


def training_phases(expansion: Expansion, losses: Losses, recipe: Recipe) -> tuple[Phase, ...]:
    """The phases that have something to train. The shares of the others are distributed among them."""
    blocks = {block.id: block.module for block in expansion.trained}
    exits = {exit_.id: exit_.module for exit_ in expansion.exits}
    for_exits = (recipe.exit_share if blocks else 1.0) if exits else 0.0
    for_blocks = 1.0 - for_exits
    phases = (
        Phase(DISTIL, for_blocks * recipe.distil_share, recipe.highest_rate("distil_rate"), blocks, losses.distil),
        Phase(TUNE, for_blocks * (1 - recipe.distil_share), recipe.highest_rate("tune_rate"), blocks, losses.tune),
        Phase(EXITS, for_exits, recipe.highest_rate("exit_rate"), exits, losses.exits, losses.exit_updates),
    )
    return tuple(phase for phase in phases if phase.modules)


def phase_steps(phases: Sequence[Phase], steps: int) -> dict[str, int]:
    """``steps`` divided among the phases by their shares."""
    bounds, share = [0], 0.0
    for phase in phases:
        share += phase.share
        bounds.append(round(steps * share))
    return {phase.name: bounds[k + 1] - bounds[k] for k, phase in enumerate(phases)}
