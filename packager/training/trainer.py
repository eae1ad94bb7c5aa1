"""Trains added blocks and exits, phase by phase (``packager/training/phases.py``), resumable at any point.

The original blocks stay frozen in evaluation mode, so the pretrained model is one of the subnets, bit for bit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import nn

from device_sdk.errors import StorageError
from device_sdk.progress import Progress, Task
from device_sdk.supernet.plan import Subnet
from packager.data.batches import BatchSource
from packager.inputs.recipe import Recipe
from packager.inputs.weights import tensors_digest
from packager.output.checkpoints import Checkpoints
from packager.supernet.expansion import Expansion
from packager.tasks import Classification, LearningTask
from packager.torch_device import on_device, resolve_device
from packager.training.caches import FeatureCache, TeacherAnswers
from packager.training.keeping import (
    BLOCK_IMAGES,
    BestOfEach,
    BestOnTheWay,
    Gain,
    Keeper,
    average_statistics,
    recalibrate,
)
from packager.training.losses import Losses, exit_cache_shapes
from packager.training.phases import DISTIL, EXITS, RATES, TUNE, OptimizerStep, Phase, phase_steps, training_phases
from packager.training.range_accuracy import RangeAccuracy, TuningWatch
from packager.training.ranks import Alone, LeadClock, Ranks
from packager.training.schedule import LEAST_BATCH, Schedule, fitting_updates

_DONE = "done"
_STATISTICS_BATCHES = 30
_MB = 1_000_000  # bytes
_ANSWERS_BYTES = 256_000_000  # limit of the cache of the full model's logits
_LOOK_SHARE = 0.06  # of a phase's time, for one evaluation of all ranges
_RESERVED_LOOKS = 2  # evaluations at a phase's end
_STATISTICS_SHARE = 0.04  # of a phase's time, for recalibration after its last step
_PROBE_BATCH = 16  # samples of the update that is timed


@dataclass(frozen=True)
class PhaseReport:
    """The result of one phase: minutes, steps, batch and peak learning rate of its updates, and its ``gain``.

    ``gain``: None if nothing was evaluated.
    """

    phase: str
    minutes: float
    steps: int
    batch: int
    rate: float
    gain: Gain | None

    def __str__(self) -> str:
        """One line for the terminal."""
        said = f"{self.phase}: {self.minutes:.1f} minutes, {self.steps} steps of {self.batch}"
        if self.gain is None:
            return said
        gain = self.gain
        return f"{said}; {gain.measure} {gain.before:.3f} -> {gain.after:.3f}, {100 * gain.kept:.0f} % kept"


class Trainer:
    """Trains the added blocks and the exits of ``expansion`` by ``recipe``, saving its state at intervals.

    ``notes`` list deviations from the recipe, ``report`` the result of each phase.

    Args:
        judge: evaluates accuracy by range of MACs on held-out samples; with it each phase ends with the best state
            evaluated, its start included.
        ranks: the process group; ``source`` yields this process's share of each batch.
        task: classification by default.
        seconds_left: time left for the rest of the training, if the recipe limits minutes; called at the start of
            each phase.
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
        ranks: Ranks | None = None,
        task: LearningTask | None = None,
        seconds_left: Callable[[], float] | None = None,
    ) -> None:
        self._expansion = expansion
        self._seconds_left = seconds_left
        self._recipe = recipe
        self._checkpoints = checkpoints
        self._progress = progress
        self._ranks = ranks or Alone()
        assert source.share == self._ranks.share, "the source gives another process's share"
        self._clock = LeadClock(self._ranks)
        self._device = resolve_device(recipe.device, local_rank=self._ranks.local_rank)
        self._losses = Losses(expansion, source, recipe, device=self._device, task=task)
        self._optimizer_step = OptimizerStep(
            self._losses, precision=recipe.precision, seed=recipe.seed, device=self._device, ranks=self._ranks
        )
        self._phases = training_phases(expansion, self._losses, recipe)
        self._steps = phase_steps(self._phases, recipe.steps or 0)
        self._modules: dict[str, nn.Module] = {}  # all that is trained in any phase
        for phase in self._phases:
            self._modules |= phase.modules
        self._distinct, self._whole_batch = source.distinct_batches, source.batch_size
        self._judge = judge
        self._task_judges = (task or Classification()).kind == "classification"
        self.report: tuple[PhaseReport, ...] = ()
        self._watch = TuningWatch(judge, patience=recipe.patience, device=self._device, ranks=self._ranks)
        self._updates: dict[str, float] = {}
        self.steps_done = dict.fromkeys((DISTIL, TUNE, EXITS), 0)

    @property
    def notes(self) -> tuple[str, ...]:
        """Deviations from the recipe."""
        return self._optimizer_step.notes

    def train(self) -> None:
        """Run the phases, resuming after an interruption.

        Raises:
            TrainingError: the loss is not finite (the last good state stays saved), memory is too short, or another
                process has ended or starts from different inputs.
        """
        if not self._phases:
            return
        modules = [block.module for block in self._expansion.blocks]
        modules += [exit_.module for exit_ in self._expansion.exits]
        with on_device(modules, self._device):
            self._ranks.require_same(lambda: _start(modules, self._device))
            names = [*(phase.name for phase in self._phases), _DONE]
            saved = self._ranks.state_from_lead(self._checkpoints.state) or {"phase": names[0]}
            self._restore(saved)
            for phase, following in list(zip(self._phases, names[1:], strict=True))[names.index(saved["phase"]) :]:
                self._run(phase, saved)
                saved = {"phase": following}
                self._save(following)
            self._set_training(())

    def _run(self, phase: Phase, saved: dict[str, Any]) -> None:
        """1. batch and rate; 2. evaluate the start; 3. steps; 4. recalibrate; 5. restore the best state."""
        began = self._clock.tick()
        seconds = self._seconds(phase, saved.get("elapsed", 0.0))
        keeper = self._keeper(phase, seconds)
        self._set_training(phase.modules)
        phase, batch = self._fitted_updates(phase, saved, seconds)
        if keeper is not None and "keeper" in saved:
            keeper.restore(saved["keeper"])
        elif keeper is not None:
            keeper.begin(seconds=None if seconds is None else _LOOK_SHARE * seconds)
        optimizer = phase.optimizer()
        if "optimizer" in saved:
            optimizer.load_state_dict(saved["optimizer"])
        schedule = self._schedule(phase, saved, began, seconds)
        self._set_training(phase.modules)
        if phase.name == TUNE and seconds is not None:
            self._watch.limit(seconds)
        cache = self._exit_cache() if phase.name == EXITS else None
        self._losses.features = cache
        self._losses.answers = self._teacher_answers() if phase.name == TUNE and self._distinct else None
        try:
            with self._progress.task(phase.name, 1.0, done=schedule.progress) as task:
                self._step_through(phase, schedule, optimizer, task, keeper)
        finally:
            if cache is not None:
                cache.close()
        self.steps_done[phase.name] = schedule.done
        if phase.name == TUNE:
            limit_s = None if seconds is None else _STATISTICS_SHARE * seconds
            self._recalibrate(self._recipe.recalibrate_batches, tuned=schedule.done > 0, limit_s=limit_s)

        def seconds_left() -> float:
            self._clock.tick()
            return math.inf if seconds is None else seconds - schedule.elapsed

        gain = None
        if keeper is not None and schedule.done:
            gain = keeper.finish(seconds_left=seconds_left)
        self._clock.tick()
        done = PhaseReport(phase.name, schedule.elapsed / 60, schedule.done, batch, phase.rate, gain)
        self.report = (*self.report, done)

    def _keeper(self, phase: Phase, seconds: float | None) -> Keeper | None:
        """The keeper of the phase's best state; None if the phase has no step or there is no judge."""
        if not (self._steps[phase.name] if seconds is None else seconds):
            return None
        if not self._ranks.from_lead(float(self._judge is not None)):
            return None
        common = (phase.modules, self._judge, self._ranks, self._device)
        if phase.name == TUNE:
            return BestOnTheWay(*common, expansion=self._expansion, seed=self._recipe.seed)
        if phase.name == DISTIL and self._recipe.distil_from == "teacher":
            return BestOfEach(
                *common,
                measure="imitation error",
                errors=lambda judge: judge.imitation_errors(BLOCK_IMAGES, device=self._device),
            )
        if phase.name == EXITS and self._task_judges:
            return BestOfEach(
                *common, measure="wrong answers", errors=lambda judge: judge.exit_errors(device=self._device)
            )
        return None

    def _fitted_updates(self, phase: Phase, saved: dict[str, Any], seconds: float | None) -> tuple[Phase, int]:
        """The phase with its learning rate, and the batch, adjusted to the updates that ``seconds`` or steps allow."""
        name, recipe = RATES[phase.name], self._recipe
        chosen = saved.get("updates")
        largest = self._whole_batch
        if chosen is None and "auto" in (recipe.batch, getattr(recipe, name)):
            updates = self._steps[phase.name] * phase.updates
            divided = recipe.batch == "auto" and seconds is not None and phase.name != EXITS
            per_sample = None
            if seconds is not None:
                self._losses.take(min(_PROBE_BATCH, largest) if phase.name != EXITS else largest)
                per_sample = self._ranks.from_lead(self._optimizer_step.seconds_per_sample(phase, clock=time.monotonic))
            fitting = fitting_updates(
                highest_rate=phase.rate,
                largest_batch=largest,
                adaptive=phase.adaptive,
                seconds_per_sample=per_sample,
                seconds=seconds,
                updates=updates if seconds is None else None,
                least_batch=max(LEAST_BATCH, self._losses.least_batch) if divided else largest,
            )
            chosen = {"batch": fitting.batch if divided else largest}
            chosen["rate"] = fitting.rate if getattr(recipe, name) == "auto" else phase.rate
        chosen = chosen or {"batch": largest, "rate": phase.rate}
        self._losses.take(chosen["batch"])
        self._updates = chosen
        return replace(phase, rate=chosen["rate"]), chosen["batch"]

    def _seconds(self, phase: Phase, elapsed: float) -> float | None:
        """The time of a phase, evaluations and the ``elapsed`` part included; None if the recipe counts steps.

        It is the phase's share of the time left for itself and the later phases.
        """
        if self._recipe.steps is not None:
            return None
        if self._seconds_left is None:
            return (self._recipe.budget_minutes or 0.0) * 60 * phase.share
        left = elapsed + self._ranks.from_lead(self._seconds_left())
        names = [planned.name for planned in self._phases]
        return left * phase.share / sum(later.share for later in self._phases[names.index(phase.name) :])

    def _step_through(
        self, phase: Phase, schedule: Schedule, optimizer: torch.optim.Optimizer, task: Task, keeper: Keeper | None
    ) -> None:
        shown, saved_at = schedule.progress, self._clock.tick()
        while not schedule.over:
            loss = self._optimizer_step.step(phase, schedule, optimizer)
            schedule.done += 1
            self._clock.tick()
            if phase.name == TUNE:
                self._watch.after_step(schedule)
            if keeper is not None:
                keeper.after_step(schedule.progress)
            task.advance(schedule.progress - shown)
            task.note(f"loss {loss:.4f}{self._watch.seen if phase.name == TUNE else ''}")
            shown = schedule.progress
            if self._clock() - saved_at >= self._recipe.checkpoint_seconds:
                self._save(phase.name, schedule, optimizer, keeper)
                saved_at = self._clock.tick()

    def _set_training(self, names: Collection[str]) -> None:
        """Put the modules of these names in training mode, all others in evaluation mode."""
        for name, module in self._modules.items():
            module.train(name in names)

    def _recalibrate(self, wanted: int | None, *, tuned: bool, limit_s: float | None) -> None:
        count = wanted if wanted is not None else _STATISTICS_BATCHES * tuned
        if not count:
            return
        self._set_training(())
        with self._progress.task("recalibrate", count) as task:
            recalibrate(self._expansion, self._statistics(count, task, limit_s))

    def _statistics(self, count: int, task: Task, limit_s: float | None) -> Iterator[tuple[Subnet, torch.Tensor]]:
        """``count`` paths and batches, or as many as fit into ``limit_s``."""
        began = self._clock.tick()
        for step in range(count):
            yield self._losses.statistics(step)
            task.advance()
            if limit_s is not None and self._clock.tick() - began > limit_s:
                return

    def _exit_cache(self) -> FeatureCache | None:
        """A cache for the features that exits train on, if batches repeat and all of them fit."""
        steps = self._steps[EXITS] if self._recipe.steps is not None else None
        if not self._distinct or (steps is not None and steps <= self._distinct):
            return None
        shapes = exit_cache_shapes(self._expansion, batch=self._losses.samples)
        size_bytes = FeatureCache.size_bytes(batches=self._distinct, shapes=shapes) * self._ranks.share.count
        if size_bytes > self._recipe.cache_mb * _MB:
            return None
        try:
            return FeatureCache(self._checkpoints.folder, batches=self._distinct, shapes=shapes)
        except StorageError:  # disk full: no cache
            return None

    def _teacher_answers(self) -> TeacherAnswers:
        """Cached logits of the full model for this process's share of the batches, those of interrupted runs too."""
        share = self._ranks.share
        path = self._checkpoints.folder / f"answers.{share.rank}-of-{share.count}.f32"
        shape = self._expansion.traced.tensors[-1].shape
        return TeacherAnswers(path, shape=shape, limit_bytes=_ANSWERS_BYTES)

    def _schedule(self, phase: Phase, saved: dict[str, Any], began: float, seconds: float | None) -> Schedule:
        """The time since ``began`` counts as spent; time for evaluation and recalibration is reserved at the end."""
        spent = self._clock.tick() - began
        if seconds is not None:
            reserved = _RESERVED_LOOKS * _LOOK_SHARE + _STATISTICS_SHARE if phase.name == TUNE else 0.0
            seconds -= reserved * seconds
        return Schedule(
            steps=None if seconds is not None else self._steps[phase.name],
            seconds=seconds,
            done=saved.get("done", 0),
            elapsed=saved.get("elapsed", 0.0) + spent,
            winding_from=saved.get("winding_from"),
            clock=self._clock,
        )

    def _save(
        self,
        phase: str,
        schedule: Schedule | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        keeper: Keeper | None = None,
    ) -> None:
        average_statistics(self._modules.values(), self._ranks)
        state: dict[str, Any] = {
            "phase": phase,
            "modules": {name: module.state_dict() for name, module in self._modules.items()},
            "steps_done": dict(self.steps_done),
            "watch": self._watch.state,
            "notes": list(self.notes),
            "report": [asdict(phase_report) for phase_report in self.report],
        }
        if schedule is not None and optimizer is not None:
            state |= {"optimizer": optimizer.state_dict(), "done": schedule.done, "elapsed": schedule.elapsed}
            state |= {"winding_from": schedule.winding_from, "updates": self._updates}
            state |= {"keeper": keeper.state} if keeper is not None else {}
        self._checkpoints.save(state)

    def _restore(self, saved: dict[str, Any]) -> None:
        if "modules" in saved:
            for name, module in self._modules.items():
                module.load_state_dict(saved["modules"][name])
        self.steps_done.update(saved.get("steps_done", {}))
        self._watch.restore(saved.get("watch"))
        self._optimizer_step.restore(saved.get("notes", ()))
        self.report = tuple(
            PhaseReport(**fields | {"gain": fields["gain"] and Gain(**fields["gain"])})
            for fields in saved.get("report", ())
        )


def _start(modules: Sequence[nn.Module], device: torch.device) -> dict[str, str]:
    """Values that must be equal in all processes besides the job: initial weights and device type."""
    tensors = {f"{k}.{name}": value for k, module in enumerate(modules) for name, value in module.state_dict().items()}
    return {"weights": tensors_digest(tensors), "device": device.type}
