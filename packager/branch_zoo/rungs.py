"""Trains the branches at one cut point in rungs, between which the hopeless are dropped; resumable and sharded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from device_sdk.progress import Progress, Task
from packager.branch_zoo.branch_training import BranchTraining
from packager.branch_zoo.features import FeatureBatch, StemmedBatches
from packager.branch_zoo.saved import ZooCheckpoints
from packager.branch_zoo.selection import RUNGS, Judged, kept, rung_counts, rung_steps
from packager.branch_zoo.specs import GRID, BranchCost, BranchSpec
from packager.tasks import LearningTask, mixed_loss
from packager.training.ranks import LeadClock, Ranks
from packager.training.schedule import Schedule


class RungTraining:
    """Runs the rungs of one cut point. ``steps``: updates so far.

    Args:
        training: this process's branches.
        costs: of all processes' branches, by exit id.
        seconds: of the cut point's training, interrupted runs included; None where ``settings`` give steps.
    """

    def __init__(
        self,
        position: int,
        training: BranchTraining,
        costs: Mapping[str, BranchCost],
        batches: StemmedBatches,
        judged_on: FeatureBatch,
        *,
        settings: ZooSettings,
        task: LearningTask,
        saved: ZooCheckpoints,
        ranks: Ranks,
        clock: LeadClock,
        seconds: float | None,
    ) -> None:
        self._position, self._training, self._costs = position, training, costs
        self._batches, self._judged_on = batches, judged_on
        self._settings, self._task = settings, task
        self._saved, self._ranks, self._clock = saved, ranks, clock
        self._rung_s = None if seconds is None else seconds / RUNGS
        self._spent_s = 0.0  # in finished rungs
        self.steps = 0

    def run(self, interrupted: dict[str, Any] | None, progress: Progress) -> None:
        """Train all rungs, from the saved state ``interrupted`` if there is one."""
        first = 0
        if interrupted is not None:
            first, self.steps, self._spent_s = interrupted["rung"], interrupted["before"], interrupted["spent"]
            self._training.restore(interrupted["training"])
        counts = rung_counts(len(self._costs))
        with progress.task(f"exits at {self._position}", RUNGS, done=first) as task:
            for rung in range(first, RUNGS):
                self._rung(rung, self._schedule(rung, interrupted), task)
                interrupted = None
                if rung + 1 < RUNGS:
                    self._training.keep(kept(self._judged(), counts[rung + 1]))

    def _schedule(self, rung: int, interrupted: dict[str, Any] | None) -> Schedule:
        steps = None if self._settings.steps is None else rung_steps(self._settings.steps)[rung]
        return Schedule(
            steps=steps,
            seconds=self._rung_s if steps is None else None,
            done=0 if interrupted is None else interrupted["done"],
            elapsed=0.0 if interrupted is None else interrupted["elapsed"],
            clock=self._clock,
        )

    def _rung(self, rung: int, schedule: Schedule, task: Task) -> None:
        saved_at = self._clock.tick()
        while not schedule.over:
            batch = self._batches.at(self._position, self.steps + schedule.done)
            shown = schedule.progress
            self._training.step(batch, self._loss, rate=schedule.rate(self._settings.rate))
            schedule.done += 1
            now = self._clock.tick()
            task.advance(schedule.progress - shown)
            if now - saved_at >= self._settings.checkpoint_seconds:
                saved_at = now
                self._save(rung, schedule)
        self.steps += schedule.done
        self._spent_s += schedule.elapsed

    def _save(self, rung: int, schedule: Schedule) -> None:
        state: dict[str, Any] = {"rung": rung, "done": schedule.done, "elapsed": schedule.elapsed}
        state |= {"before": self.steps, "spent": self._spent_s, "training": self._training.state}
        self._saved.save(self._position, state)

    def _judged(self) -> dict[str, Judged]:
        """All processes' branches that are still trained."""
        mine = self._training.accuracies(self._judged_on)
        offset = 2.0  # accuracies are -1 to 1; 0 marks a branch that is no longer trained
        values = [mine[name] + offset if name in mine else 0.0 for name in self._costs]
        found = self._ranks.sum(torch.tensor(values, dtype=torch.float64)).tolist()
        return {
            name: Judged(value - offset, cost)
            for (name, cost), value in zip(self._costs.items(), found, strict=True)
            if value
        }

    def _loss(self, answers: torch.Tensor, batch: FeatureBatch) -> torch.Tensor:
        settings = self._settings
        return mixed_loss(
            self._task,
            answers,
            batch.labels,
            batch.teacher,
            temperature=settings.temperature,
            label_weight=settings.label_weight,
        )


@dataclass(frozen=True, kw_only=True)
class ZooSettings:
    """Settings for training branches.

    ``steps``: updates at each cut point, all rungs together; None: as many as the time allows. ``cache_bytes``: limit
    of the cached features. ``rate``: peak learning rate (§4.1), in each rung with warm-up and decay. ``merge``: add
    self-merged siblings. ``temperature``, ``label_weight``: as in the recipe.
    """

    steps: int | None
    cache_bytes: float = 256e6
    rate: float = 1e-3
    merge: bool = True
    temperature: float = 4.0
    label_weight: float = 0.1
    seed: int = 0
    checkpoint_seconds: float = 30.0
    grid: tuple[BranchSpec, ...] = GRID
