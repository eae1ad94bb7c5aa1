"""Training what was added to the model, phase by phase (``packager/phases.py``), through any interruption.

The original blocks stay frozen in evaluation mode, so the pretrained model is one of the subnets, bit for bit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection
from typing import Any

import torch
from torch import nn

from device_sdk.progress import Progress
from device_sdk.random_source import SplitMix64
from packager.batches import BatchSource
from packager.checkpoints import Checkpoints
from packager.errors import TrainingError
from packager.expansion import Expansion
from packager.phases import DISTIL, EXITS, TUNE, Phase, phase_steps, training_phases
from packager.recipe import Recipe
from packager.schedule import Schedule

_DONE = "done"
_GRADIENT_NORM = 5.0  # longest gradient that is followed


class Trainer:
    """Trains the added blocks and the exits of ``expansion`` as ``recipe`` says, saving its state every so often."""

    def __init__(
        self,
        expansion: Expansion,
        source: BatchSource,
        recipe: Recipe,
        checkpoints: Checkpoints,
        progress: Progress,
    ) -> None:
        self._expansion = expansion
        self._recipe = recipe
        self._checkpoints = checkpoints
        self._progress = progress
        self._phases = training_phases(expansion, source, recipe)
        self._steps = phase_steps(self._phases, recipe.steps or 0)
        self._modules: dict[str, nn.Module] = {}  # all that is trained in any phase
        for phase in self._phases:
            self._modules |= phase.modules
        self._precision = resolve_precision(recipe.precision)
        self.steps_done = dict.fromkeys((DISTIL, TUNE, EXITS), 0)

    def train(self) -> None:
        """Run the phases, or what is left of them after an interruption.

        Raises:
            TrainingError: the loss is no longer a number; the last good state stays saved.
        """
        if not self._phases:
            return
        self._lay_out(torch.channels_last)
        names = [*(phase.name for phase in self._phases), _DONE]
        saved = self._checkpoints.state or {"phase": names[0]}
        self._restore(saved)
        for phase, following in list(zip(self._phases, names[1:], strict=True))[names.index(saved["phase"]) :]:
            self._run(phase, saved)
            saved = {"phase": following}
            self._save(following)
        self._set_training(())
        self._lay_out(torch.contiguous_format)

    def _lay_out(self, memory_format: torch.memory_format) -> None:
        """How the weights of convolutions lie in memory: like the batches while they are trained."""
        modules = [block.module for block in self._expansion.blocks]
        for module in [*modules, *(exit_.module for exit_ in self._expansion.exits)]:
            module.to(memory_format=memory_format)

    def _run(self, phase: Phase, saved: dict[str, Any]) -> None:
        optimizer = phase.optimizer()
        if "optimizer" in saved:
            optimizer.load_state_dict(saved["optimizer"])
        schedule = self._schedule(phase, saved)
        self._set_training(phase.modules)
        saved_at = time.monotonic()
        with self._progress.task(phase.name, 1.0) as task:
            shown = 0.0
            while not schedule.over:
                loss = self._descend(phase, schedule, optimizer)
                schedule.done += 1
                task.advance(schedule.progress - shown)
                task.note(f"loss {loss:.4f}")
                shown = schedule.progress
                if time.monotonic() - saved_at >= self._recipe.checkpoint_seconds:
                    self._save(phase.name, schedule, optimizer)
                    saved_at = time.monotonic()
        self.steps_done[phase.name] = schedule.done

    def _set_training(self, names: Collection[str]) -> None:
        """Put the modules of these names in training mode, all others in evaluation mode."""
        for name, module in self._modules.items():
            module.train(name in names)

    def _descend(self, phase: Phase, schedule: Schedule, optimizer: torch.optim.Optimizer) -> float:
        """One step: a batch, and the phase's updates from it. Returns the last loss."""
        for group in optimizer.param_groups:
            group["lr"] = schedule.rate(phase.rate)
        value = 0.0
        for update in range(schedule.done * phase.updates, (schedule.done + 1) * phase.updates):
            with (
                torch.random.fork_rng(devices=[]),
                torch.autocast("cpu", self._precision, enabled=self._precision != torch.float32),
            ):
                # dropout draws from torch's own generator: a function of the update, so that a resumed run draws alike
                torch.manual_seed(SplitMix64(self._recipe.seed + update).next())
                loss = phase.loss(update)
            value = loss.item()
            if not math.isfinite(value):
                raise _diverged("loss", value, phase, schedule)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            length = torch.nn.utils.clip_grad_norm_(phase.parameters, _GRADIENT_NORM)
            if not torch.isfinite(length):
                raise _diverged("gradient", length.item(), phase, schedule)
            optimizer.step()
        return value

    def _schedule(self, phase: Phase, saved: dict[str, Any]) -> Schedule:
        if self._recipe.steps is not None:
            return Schedule(steps=self._steps[phase.name], seconds=None, done=saved.get("done", 0))
        seconds = (self._recipe.budget_minutes or 0.0) * 60 * phase.share
        return Schedule(steps=None, seconds=seconds, done=saved.get("done", 0), elapsed=saved.get("elapsed", 0.0))

    def _save(
        self, phase: str, schedule: Schedule | None = None, optimizer: torch.optim.Optimizer | None = None
    ) -> None:
        state: dict[str, Any] = {
            "phase": phase,
            "modules": {name: module.state_dict() for name, module in self._modules.items()},
            "steps_done": dict(self.steps_done),
        }
        if schedule is not None and optimizer is not None:
            state |= {"optimizer": optimizer.state_dict(), "done": schedule.done, "elapsed": schedule.elapsed}
        self._checkpoints.save(state)

    def _restore(self, saved: dict[str, Any]) -> None:
        if "modules" in saved:
            for name, module in self._modules.items():
                module.load_state_dict(saved["modules"][name])
        self.steps_done.update(saved.get("steps_done", {}))


_RATES = {DISTIL: "distil_rate", TUNE: "tune_rate", EXITS: "exit_rate"}


def _diverged(what: str, value: float, phase: Phase, schedule: Schedule) -> TrainingError:
    return TrainingError(
        f"the {what} became {value} at step {schedule.done} of {phase.name}",
        hint=f"lower the recipe's {_RATES[phase.name]}; the last saved state is kept",
    )


def resolve_precision(precision: str) -> torch.dtype:
    """The number format of the training's arithmetic; ``auto`` asks the processor."""
    if precision == "auto":
        has_matrix_units = getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
        return torch.bfloat16 if has_matrix_units() else torch.float32
    return torch.bfloat16 if precision == "bfloat16" else torch.float32
