"""The phases of training, in order: trained modules and length of each, and one step of their optimizers.

distil (added blocks imitate the replaced ones) → tune (sampled paths are trained end to end) → exits (branches are
trained on frozen features). AdaptiveNet §4.2; the exits after MEEdge.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from device_sdk.random_source import SplitMix64
from packager.errors import TrainingError
from packager.inputs.recipe import Recipe
from packager.supernet.expansion import Expansion
from packager.torch_device import free_memory, resolve_precision
from packager.training.losses import Losses
from packager.training.ranks import Ranks
from packager.training.schedule import Schedule

DISTIL, TUNE, EXITS = "distil", "tune", "exits"
RATES = {DISTIL: "distil_rate", TUNE: "tune_rate", EXITS: "exit_rate"}  # the recipe's names
_GRADIENT_NORM = 5.0  # gradients are clipped to this norm


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


class OptimizerStep:
    """Runs the optimizer updates of each training step, identically in all processes.

    ``notes`` list deviations from the recipe. ``precision`` and ``seed``: as in the recipe.
    """

    def __init__(
        self,
        losses: Losses,
        *,
        precision: Literal["auto", "float32", "bfloat16"],
        seed: int,
        device: torch.device,
        ranks: Ranks,
    ) -> None:
        self._losses = losses
        self._seed = seed
        self._device = device
        self._precision = resolve_precision(precision, device)
        self._ranks = ranks
        self.notes: tuple[str, ...] = ()

    def restore(self, notes: Iterable[str]) -> None:
        """Resume an interrupted run that had recorded ``notes``."""
        self.notes = tuple(notes)
        if self.notes:
            self._losses.halve_batch()

    def step(self, phase: Phase, schedule: Schedule, optimizer: torch.optim.Optimizer) -> float:
        """Run the phase's updates on one batch. On the first out-of-memory error the batch is halved for good.

        Returns the last loss.

        Raises:
            TrainingError: the loss or its gradient is not finite, memory is too short for half the batch, or another
                process has ended.
        """
        try:
            return self._run_updates(phase, schedule, optimizer)
        except torch.OutOfMemoryError as error:
            known_to_all = self._ranks.alone or isinstance(error, _MemoryTooShort)
            if self.notes or not known_to_all or not self._losses.halve_batch():
                raise TrainingError(
                    f"memory is too short for a batch of {self._losses.batch}", hint="lower the recipe's batch"
                ) from error
        self.notes = (f"memory was too short: trained with batches of {self._losses.batch}",)
        optimizer.zero_grad(set_to_none=True)
        free_memory(self._device)
        return self.step(phase, schedule, optimizer)

    def seconds_per_sample(self, phase: Phase, *, clock: Callable[[], float]) -> float:
        """Time of a forward and backward pass per sample, measured on the second of two passes.

        Weights and batch-norm statistics are unchanged afterwards. Out-of-memory errors are ignored here; they recur
        in the first training step.
        """
        before = [
            {key: value.clone() for key, value in module.state_dict().items()} for module in phase.modules.values()
        ]
        started = 0.0
        for _ in range(2):
            started = clock()
            self._backward(phase, 0)
        seconds = clock() - started
        for parameter in phase.parameters:
            parameter.grad = None
        for module, state in zip(phase.modules.values(), before, strict=True):
            module.load_state_dict(state)
        return seconds / self._losses.batch

    def _run_updates(self, phase: Phase, schedule: Schedule, optimizer: torch.optim.Optimizer) -> float:
        """The updates of one step. Returns the last loss."""
        for group in optimizer.param_groups:
            group["lr"] = schedule.rate(phase.rate)
        value = 0.0
        for update in range(schedule.done * phase.updates, (schedule.done + 1) * phase.updates):
            optimizer.zero_grad(set_to_none=True)
            loss = self._backward(phase, update)
            if self._ranks.any(loss is None):
                raise _MemoryTooShort
            assert loss is not None
            gradients = [parameter.grad for parameter in phase.parameters if parameter.grad is not None]
            self._ranks.average([*gradients, loss], weight=self._losses.samples / self._losses.batch)
            value = loss.item()
            if not math.isfinite(value):
                raise _diverged("loss", value, phase, schedule)
            for parameters in phase.clipped_together:
                norm = torch.nn.utils.clip_grad_norm_(parameters, _GRADIENT_NORM)
                if not torch.isfinite(norm):
                    raise _diverged("gradient", norm.item(), phase, schedule)
            optimizer.step()
        return value

    def _backward(self, phase: Phase, update: int) -> torch.Tensor | None:
        """Forward and backward pass of an update. Returns the loss, None if memory is too short."""
        devices = [self._device.index or 0] if self._device.type == "cuda" else []
        reduced = self._precision != torch.float32
        try:
            with torch.random.fork_rng(devices), torch.autocast(self._device.type, self._precision, enabled=reduced):
                # dropout uses torch's global generator: seeded by the update, so a resumed run draws the same numbers
                torch.manual_seed(SplitMix64(self._seed + update).next() ^ self._ranks.share.rank)
                loss = phase.loss(update)
            loss.backward()
            return loss.detach()
        except torch.OutOfMemoryError:
            return None


class _MemoryTooShort(torch.OutOfMemoryError):
    """Memory is too short in at least one process, and all processes know it."""


def _diverged(what: str, value: float, phase: Phase, schedule: Schedule) -> TrainingError:
    return TrainingError(
        f"the {what} became {value} at step {schedule.done} of {phase.name}",
        hint=f"lower the recipe's {RATES[phase.name]}; the last saved state is kept",
    )
