"""One step of training: the gradients of a batch, shared among the processes that train together, are followed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch

from device_sdk.random_source import SplitMix64
from packager.errors import TrainingError
from packager.inputs.recipe import Recipe
from packager.training.device import free_memory, resolve_precision
from packager.training.losses import Losses
from packager.training.phases import RATES, Phase
from packager.training.ranks import Ranks
from packager.training.schedule import Schedule

_GRADIENT_NORM = 5.0  # longest gradient that is followed


class OptimizerStep:
    """Makes the updates of one step after the other, in all processes alike.

    ``notes`` say what was not done as the recipe has it.
    """

    def __init__(self, losses: Losses, recipe: Recipe, *, device: torch.device, ranks: Ranks) -> None:
        self._losses = losses
        self._seed = recipe.seed
        self._device = device
        self._precision = resolve_precision(recipe.precision, device)
        self._ranks = ranks
        self.notes: tuple[str, ...] = ()

    def restore(self, notes: Iterable[str]) -> None:
        """Go on as an interrupted run did that had come to ``notes``."""
        self.notes = tuple(notes)
        if self.notes:
            self._losses.halve_batch()

    def step(self, phase: Phase, schedule: Schedule, optimizer: torch.optim.Optimizer) -> float:
        """A batch, and the phase's updates from it; with half the batch from now on, once, where memory is too short.

        Returns the last loss.

        Raises:
            TrainingError: the loss or its gradient is no longer a number, memory is too short even so, or another
                process is gone.
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
        """What the gradients of an update take, over its samples: the second of two, whose weights stay as they are.

        Statistics of batch-norm are put back. Memory that is too short shows when the training begins.
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
        """The loss of an update, its gradients computed; None where memory is too short."""
        devices = [self._device.index or 0] if self._device.type == "cuda" else []
        reduced = self._precision != torch.float32
        try:
            with torch.random.fork_rng(devices), torch.autocast(self._device.type, self._precision, enabled=reduced):
                # dropout draws from torch's own generator: a function of the update, so that a resumed run draws alike
                torch.manual_seed(SplitMix64(self._seed + update).next() ^ self._ranks.share.rank)
                loss = phase.loss(update)
            loss.backward()
            return loss.detach()
        except torch.OutOfMemoryError:
            return None


class _MemoryTooShort(torch.OutOfMemoryError):
    """All processes know that it is, in one of them at least."""


def _diverged(what: str, value: float, phase: Phase, schedule: Schedule) -> TrainingError:
    return TrainingError(
        f"the {what} became {value} at step {schedule.done} of {phase.name}",
        hint=f"lower the recipe's {RATES[phase.name]}; the last saved state is kept",
    )
