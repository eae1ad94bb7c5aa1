"""Training what was added to the model, phase by phase (``packager/phases.py``), through any interruption.

The original blocks stay frozen in evaluation mode, so the pretrained model is one of the subnets, bit for bit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import nn

from device_sdk.errors import StorageError
from device_sdk.graph import Subnet
from device_sdk.progress import Progress, Task
from device_sdk.random_source import SplitMix64
from packager.batches import BatchSource
from packager.checkpoints import Checkpoints
from packager.device import free_memory, on_device, resolve_device, resolve_precision
from packager.errors import TrainingError
from packager.expansion import Expansion
from packager.feature_cache import FeatureCache
from packager.losses import Losses, exit_cache_shapes
from packager.phases import DISTIL, EXITS, TUNE, Phase, phase_steps, training_phases
from packager.range_accuracy import RangeAccuracy
from packager.recalibration import recalibrate
from packager.recipe import Recipe
from packager.schedule import Schedule
from packager.tuning_watch import TuningWatch

_DONE = "done"
_GRADIENT_NORM = 5.0  # longest gradient that is followed
_STATISTICS_BATCHES = 30
_MB = 1_000_000  # bytes


class Trainer:
    """Trains the added blocks and the exits of ``expansion`` as ``recipe`` says, saving its state every so often.

    ``judge``, if given, is asked for the accuracy by ranges of cost now and then while tuning. ``notes`` say what was
    not done as the recipe has it.
    """

    def __init__(
        self,
        expansion: Expansion,
        source: BatchSource,
        recipe: Recipe,
        checkpoints: Checkpoints,
        progress: Progress,
        *,
        judge: RangeAccuracy | None = None,
    ) -> None:
        self._expansion = expansion
        self._recipe = recipe
        self._checkpoints = checkpoints
        self._progress = progress
        self._device = resolve_device(recipe.device)
        self._precision = resolve_precision(recipe.precision, self._device)
        self._losses = Losses(expansion, source, recipe, device=self._device)
        self._phases = training_phases(expansion, self._losses, recipe)
        self._steps = phase_steps(self._phases, recipe.steps or 0)
        self._modules: dict[str, nn.Module] = {}  # all that is trained in any phase
        for phase in self._phases:
            self._modules |= phase.modules
        self._distinct = source.distinct_batches
        self._watch = TuningWatch(judge, patience=recipe.patience, device=self._device)
        self.steps_done = dict.fromkeys((DISTIL, TUNE, EXITS), 0)
        self.notes: tuple[str, ...] = ()

    def train(self) -> None:
        """Run the phases, or what is left of them after an interruption.

        Raises:
            TrainingError: the loss is no longer a number (the last good state stays saved), or memory is too short.
        """
        if not self._phases:
            return
        modules = [block.module for block in self._expansion.blocks]
        modules += [exit_.module for exit_ in self._expansion.exits]
        with on_device(modules, self._device):
            names = [*(phase.name for phase in self._phases), _DONE]
            saved = self._checkpoints.state or {"phase": names[0]}
            self._restore(saved)
            for phase, following in list(zip(self._phases, names[1:], strict=True))[names.index(saved["phase"]) :]:
                self._run(phase, saved)
                saved = {"phase": following}
                self._save(following)
            self._set_training(())

    def _run(self, phase: Phase, saved: dict[str, Any]) -> None:
        optimizer = phase.optimizer()
        if "optimizer" in saved:
            optimizer.load_state_dict(saved["optimizer"])
        schedule = self._schedule(phase, saved)
        self._set_training(phase.modules)
        cache = self._exit_cache() if phase.name == EXITS else None
        self._losses.keep_features(cache)
        try:
            with self._progress.task(phase.name, 1.0) as task:
                self._step_through(phase, schedule, optimizer, task)
        finally:
            if cache is not None:
                cache.close()
        self.steps_done[phase.name] = schedule.done
        if phase.name == TUNE:
            self._recalibrate(self._recipe.recalibrate_batches, tuned=schedule.done > 0)

    def _step_through(self, phase: Phase, schedule: Schedule, optimizer: torch.optim.Optimizer, task: Task) -> None:
        shown, saved_at = 0.0, time.monotonic()
        while not schedule.over:
            loss = self._descend_or_halve(phase, schedule, optimizer)
            schedule.done += 1
            if phase.name == TUNE:
                self._watch.after_step(schedule)
            task.advance(schedule.progress - shown)
            task.note(f"loss {loss:.4f}{self._watch.seen if phase.name == TUNE else ''}")
            shown = schedule.progress
            if time.monotonic() - saved_at >= self._recipe.checkpoint_seconds:
                self._save(phase.name, schedule, optimizer)
                saved_at = time.monotonic()

    def _set_training(self, names: Collection[str]) -> None:
        """Put the modules of these names in training mode, all others in evaluation mode."""
        for name, module in self._modules.items():
            module.train(name in names)

    def _descend_or_halve(self, phase: Phase, schedule: Schedule, optimizer: torch.optim.Optimizer) -> float:
        """One step; where memory is too short for it, with half the batch from now on, once."""
        try:
            return self._descend(phase, schedule, optimizer)
        except torch.OutOfMemoryError as error:
            if self.notes or not self._losses.halve_batch():
                raise TrainingError(
                    f"memory is too short for a batch of {self._losses.batch}", hint="lower the recipe's batch"
                ) from error
        self.notes = (f"memory was too short: trained with batches of {self._losses.batch}",)
        optimizer.zero_grad(set_to_none=True)
        free_memory(self._device)
        return self._descend_or_halve(phase, schedule, optimizer)

    def _descend(self, phase: Phase, schedule: Schedule, optimizer: torch.optim.Optimizer) -> float:
        """One step: a batch, and the phase's updates from it. Returns the last loss."""
        for group in optimizer.param_groups:
            group["lr"] = schedule.rate(phase.rate)
        value = 0.0
        for update in range(schedule.done * phase.updates, (schedule.done + 1) * phase.updates):
            with (
                torch.random.fork_rng(devices=[self._device.index or 0] if self._device.type == "cuda" else []),
                torch.autocast(self._device.type, self._precision, enabled=self._precision != torch.float32),
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

    def _recalibrate(self, wanted: int | None, *, tuned: bool) -> None:
        count = wanted if wanted is not None else _STATISTICS_BATCHES * tuned
        if not count:
            return
        self._set_training(())
        with self._progress.task("recalibrate", count) as task:
            recalibrate(self._expansion, self._statistics(count, task))

    def _statistics(self, count: int, task: Task) -> Iterator[tuple[Subnet, torch.Tensor]]:
        for step in range(count):
            yield self._losses.statistics(step)
            task.advance()

    def _exit_cache(self) -> FeatureCache | None:
        """A cache for the features that exits learn from, if the same batches come again and all of them fit."""
        steps = self._steps[EXITS] if self._recipe.steps is not None else None
        if not self._distinct or (steps is not None and steps <= self._distinct):
            return None
        shapes = exit_cache_shapes(self._expansion, batch=self._losses.batch)
        if FeatureCache.size_bytes(batches=self._distinct, shapes=shapes) > self._recipe.cache_mb * _MB:
            return None
        try:
            return FeatureCache(self._checkpoints.folder, batches=self._distinct, shapes=shapes)
        except StorageError:  # no room: it goes without
            return None

    def _schedule(self, phase: Phase, saved: dict[str, Any]) -> Schedule:
        done, winding_from = saved.get("done", 0), saved.get("winding_from")
        if self._recipe.steps is not None:
            return Schedule(steps=self._steps[phase.name], seconds=None, done=done, winding_from=winding_from)
        seconds = (self._recipe.budget_minutes or 0.0) * 60 * phase.share
        elapsed = saved.get("elapsed", 0.0)
        return Schedule(steps=None, seconds=seconds, done=done, elapsed=elapsed, winding_from=winding_from)

    def _save(
        self, phase: str, schedule: Schedule | None = None, optimizer: torch.optim.Optimizer | None = None
    ) -> None:
        state: dict[str, Any] = {
            "phase": phase,
            "modules": {name: module.state_dict() for name, module in self._modules.items()},
            "steps_done": dict(self.steps_done),
            "watch": self._watch.state,
            "notes": list(self.notes),
        }
        if schedule is not None and optimizer is not None:
            state |= {"optimizer": optimizer.state_dict(), "done": schedule.done, "elapsed": schedule.elapsed}
            state |= {"winding_from": schedule.winding_from}
        self._checkpoints.save(state)

    def _restore(self, saved: dict[str, Any]) -> None:
        if "modules" in saved:
            for name, module in self._modules.items():
                module.load_state_dict(saved["modules"][name])
        self.steps_done.update(saved.get("steps_done", {}))
        self._watch.restore(saved.get("watch"))
        self.notes = tuple(saved.get("notes", ()))
        if self.notes:
            self._losses.halve_batch()


_RATES = {DISTIL: "distil_rate", TUNE: "tune_rate", EXITS: "exit_rate"}


def _diverged(what: str, value: float, phase: Phase, schedule: Schedule) -> TrainingError:
    return TrainingError(
        f"the {what} became {value} at step {schedule.done} of {phase.name}",
        hint=f"lower the recipe's {_RATES[phase.name]}; the last saved state is kept",
    )
