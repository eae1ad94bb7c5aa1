"""Grows the exits of an expansion from the branch zoo (MEEdge §3.2, §3.5), cut point by cut point.

At each cut point: 1. train all branches on cached features, in rungs between which the hopeless are dropped; 2. keep
what survives; 3. add self-merged siblings, retrained on a fifth of the data. Several processes share the branches.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from device_sdk.progress import Progress, Task
from packager.branch_zoo.branch_training import BranchTraining, branch_accuracy
from packager.branch_zoo.features import (
    FeatureBatch,
    StemmedBatches,
    batch_shapes,
    batches_within,
    held_out_batches,
)
from packager.branch_zoo.few_shot import DATA_SHARE, retrain
from packager.branch_zoo.halving import RUNGS, Judged, kept, rung_counts, rung_steps
from packager.branch_zoo.modules import Branch, build_branch
from packager.branch_zoo.saved import ZooCheckpoints
from packager.branch_zoo.self_merge import MergedBranch, best_merge
from packager.branch_zoo.specs import GRID, BranchSpec, branch_cost, specs_for
from packager.branch_zoo.stored_branch import exit_of
from packager.branch_zoo.survival import AnswerTimes, survives
from packager.supernet.expansion import Expansion, TrainableExit, count_macs
from packager.tasks import Classification, LearningTask, mixed_loss
from packager.training.batches import BatchSource
from packager.training.ranks import Alone, LeadClock, Ranks
from packager.training.schedule import Schedule

BRANCH_ZOO = "branch zoo"  # the step's name in reports
_MERGE_SHARE = 0.1  # of a cut point's time, for siblings


@dataclass(frozen=True, kw_only=True)
class ZooSettings:
    """How branches are trained.

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


@dataclass(frozen=True)
class Grown:
    """A branch that became an exit, and its accuracy on held-out samples, 0 to 1."""

    exit: TrainableExit
    accuracy: float


@dataclass(frozen=True)
class Cultivated:
    """The exits of all cut points, with what became of the others.

    ``trained``: branches that were trained; ``steps``: updates by cut point; ``dropped_late``: of those that were left
    after halving, how many answered after the full model and were no better.
    """

    grown: tuple[Grown, ...] = ()
    trained: int = 0
    steps: dict[int, int] = field(default_factory=dict)
    dropped_late: int = 0
    notes: tuple[str, ...] = ()


class Cultivation:
    """Trains the zoo at the cut points ``positions`` of ``expansion``, whose originals stay as they are.

    Args:
        source: whole batches, which repeat; the same in all processes.
        held_out: images [count, *input] and labels [count] by which branches are dropped and chosen.
        times: when branches and the full model answer.
        folder: for checkpoints and the cache.
        seconds_left: the time left for all remaining cut points, where ``settings`` give no steps.
        saved: called after each checkpoint.
    """

    def __init__(
        self,
        expansion: Expansion,
        source: BatchSource,
        held_out: tuple[torch.Tensor, torch.Tensor],
        *,
        positions: Sequence[int],
        times: AnswerTimes,
        settings: ZooSettings,
        folder: Path,
        progress: Progress,
        ranks: Ranks | None = None,
        device: torch.device | None = None,
        task: LearningTask | None = None,
        seconds_left: Callable[[], float] = lambda: math.inf,
        saved: Callable[[], None] = lambda: None,
    ) -> None:
        self._expansion, self._source, self._held_out = expansion, source, held_out
        self._positions, self._times, self._settings = tuple(positions), times, settings
        self._progress, self._ranks = progress, ranks or Alone()
        self._device, self._task = device or torch.device("cpu"), task or Classification()
        self._seconds_left, self._folder = seconds_left, folder
        self._clock = LeadClock(self._ranks, time.monotonic)
        self._saved = ZooCheckpoints(folder, self._ranks, saved=saved)
        self._classes = expansion.traced.tensors[-1].size
        self._batches: tuple[tuple[int, ...], StemmedBatches] | None = None

    def run(self) -> Cultivated:
        """Cultivate all cut points, going on after an interruption. Only rank 0 gets the exits."""
        found = Cultivated()
        for done in self.cut_points():
            found = done
        return found

    def cut_points(self) -> Iterator[Cultivated]:
        """``run``, yielding what there is after each cut point."""
        results: list[dict[str, Any]] = []
        finished = self._saved.finished(self._positions)
        try:
            for position in self._positions:
                if position in finished:
                    results.append(finished[position])
                else:
                    results.append(self._saved.finish(position, self._cultivate(position)))
                yield self._collected(results)
        finally:
            if self._batches is not None:
                self._batches[1].close()

    def _cultivate(self, position: int) -> dict[str, Any]:
        """Train, drop, survive and merge at one cut point; returns this process's part as plain values."""
        shape = self._expansion.traced.tensors[position].shape
        specs = {spec.exit_id(position): spec for spec in specs_for(shape, self._settings.grid)}
        share = self._ranks.share
        mine = {
            name: self._built(spec, position)
            for number, (name, spec) in enumerate(specs.items())
            if number % share.count == share.rank
        }
        training = BranchTraining(mine, rate=self._settings.rate, device=self._device)
        judged_on = held_out_batches(self._expansion.traced, [position], *self._held_out, device=self._device)[position]
        steps = self._trained(position, specs, training, judged_on)
        accuracies = training.accuracies(judged_on)
        full_accuracy = float((judged_on.teacher.argmax(1) == judged_on.labels).double().mean())
        alive = {
            name: branch
            for name, branch in training.branches.items()
            if name not in training.diverged and self._survives(position, branch, name, accuracies[name], full_accuracy)
        }
        found = [(specs[name], branch, accuracies[name]) for name, branch in alive.items()]
        if self._settings.merge and steps:
            found += self._siblings(position, {name: (specs[name], alive[name]) for name in alive}, judged_on)
        return {
            "exits": [
                {"name": spec.name, "accuracy": accuracy, "state": _on_cpu(branch)} for spec, branch, accuracy in found
            ],
            "trained": len(mine),
            "steps": steps,
            "dropped_late": len(training.branches) - len(alive),
            "batches": self._batches_at(position).used,
        }

    def _trained(
        self, position: int, specs: dict[str, BranchSpec], training: BranchTraining, judged_on: FeatureBatch
    ) -> int:
        """All rungs. Returns the number of steps."""
        saved = self._saved.unfinished(position)
        if saved is not None:
            training.restore(saved["training"])
        costs = {
            name: branch_cost(spec, self._expansion.traced.tensors[position].shape, classes=self._classes)
            for name, spec in specs.items()
        }
        counts = rung_counts(len(specs))
        planned = rung_steps(self._settings.steps) if self._settings.steps is not None else [None] * RUNGS
        seconds = self._rung_seconds(position, 0.0 if saved is None else saved["spent"])
        before, spent = (0, 0.0) if saved is None else (saved["before"], saved["spent"] - saved["elapsed"])
        with self._progress.task(f"exits at {position}", RUNGS, done=0 if saved is None else saved["rung"]) as task:
            for rung in range(0 if saved is None else saved["rung"], RUNGS):
                schedule = Schedule(
                    steps=planned[rung],
                    seconds=None if planned[rung] is not None else seconds,
                    done=saved["done"] if saved is not None else 0,
                    elapsed=saved["elapsed"] if saved is not None else 0.0,
                    clock=self._clock,
                )
                saved = None
                self._rung(position, rung, training, schedule, before=before, spent=spent, task=task)
                before, spent = before + schedule.done, spent + schedule.elapsed
                if rung + 1 < RUNGS:
                    accuracies = self._everywhere(specs, training.accuracies(judged_on))
                    judged = {name: Judged(value, costs[name]) for name, value in accuracies.items()}
                    training.keep(kept(judged, counts[rung + 1]))
        return before

    def _rung(
        self,
        position: int,
        rung: int,
        training: BranchTraining,
        schedule: Schedule,
        *,
        before: int,
        spent: float,
        task: Task,
    ) -> None:
        saved_at = self._clock.tick()
        while not schedule.over:
            batch = self._batches_at(position).at(position, before + schedule.done)
            share = schedule.progress
            training.step(batch, self._loss, rate=schedule.rate(self._settings.rate))
            schedule.done += 1
            now = self._clock.tick()
            task.advance(schedule.progress - share)
            if now - saved_at >= self._settings.checkpoint_seconds:
                saved_at = now
                self._saved.save(
                    position,
                    {
                        "rung": rung,
                        "done": schedule.done,
                        "elapsed": schedule.elapsed,
                        "before": before,
                        "spent": spent + schedule.elapsed,
                        "training": training.state,
                    },
                )

    def _siblings(
        self, position: int, alive: dict[str, tuple[BranchSpec, Branch]], judged_on: FeatureBatch
    ) -> list[tuple[BranchSpec, Branch, float]]:
        """The self-merged siblings of all branches with hidden layers, retrained."""
        merged: dict[str, tuple[BranchSpec, MergedBranch]] = {}
        for name, (spec, branch) in alive.items():
            if spec.dense.hidden:
                best = best_merge(branch, lambda one: branch_accuracy(one, judged_on))
                merged[name] = replace(spec, merged=True), best
        if not merged:
            return []
        batches = self._batches_at(position)
        few = [batches.at(position, number) for number in range(max(1, round(DATA_SHARE * batches.used)))]
        retrain({name: one for name, (_, one) in merged.items()}, few)
        return [(spec, one.branch, branch_accuracy(one.branch, judged_on)) for spec, one in merged.values()]

    def _survives(self, position: int, branch: Branch, name: str, accuracy: float, full_accuracy: float) -> bool:
        macs = count_macs(branch, self._expansion.traced.tensors[position].shape)
        return survives(
            answer_time=self._times.answer(name, position, macs),
            accuracy=accuracy,
            full_time=self._times.full,
            full_accuracy=full_accuracy,
        )

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

    def _built(self, spec: BranchSpec, position: int) -> Branch:
        shape = self._expansion.traced.tensors[position].shape
        branch = build_branch(spec, shape, classes=self._classes, seed=self._settings.seed + position)
        assert branch is not None, spec
        return branch

    def _everywhere(self, specs: dict[str, BranchSpec], mine: dict[str, float]) -> dict[str, float]:
        """The accuracies of all processes' branches, in the order of ``specs``; only of those still trained."""
        offset = 2.0  # accuracies are -1 to 1; 0 marks a branch that is no longer trained
        values = torch.tensor([mine[name] + offset if name in mine else 0.0 for name in specs], dtype=torch.float64)
        found = self._ranks.sum(values).tolist()
        return {name: value - offset for name, value in zip(specs, found, strict=True) if value}

    def _batches_at(self, position: int) -> StemmedBatches:
        """The cached batches of this cut point, and of as many later ones as fit beside all batches wanted."""
        if self._batches is not None and position in self._batches[0]:
            return self._batches[1]
        if self._batches is not None:
            self._batches[1].close()
        traced, later = self._expansion.traced, self._positions[self._positions.index(position) :]
        wanted = self._source.distinct_batches
        if self._settings.steps is not None:
            wanted = min(wanted, max(1, self._settings.steps))
        together = 1
        while together < len(later):
            shapes = batch_shapes(traced, later[: together + 1], batch=self._source.batch_size)
            if batches_within(shapes, self._settings.cache_bytes) < wanted:
                break
            together += 1
        chosen = tuple(later[:together])
        batches = StemmedBatches(
            traced,
            self._source,
            chosen,
            folder=self._folder,
            limit_bytes=self._settings.cache_bytes,
            wanted=wanted,
            device=self._device,
        )
        self._batches = chosen, batches
        return batches

    def _rung_seconds(self, position: int, spent: float) -> float | None:
        """The time of one rung; None where steps are counted. A cut point's share is that of those left."""
        if self._settings.steps is not None:
            return None
        left = len(self._positions) - self._positions.index(position)
        whole = (spent + self._ranks.from_lead(self._seconds_left())) / left
        return whole * (1 - _MERGE_SHARE * self._settings.merge) / RUNGS

    def _collected(self, results: Sequence[dict[str, Any]]) -> Cultivated:
        """The exits of the finished cut points, rebuilt from their plain values."""
        grown: list[Grown] = []
        unit = {"ms": "measured latency", "MACs": "MACs: no profile was given"}[self._times.unit]
        dropped = sum(result["dropped_late"] for result in results)
        for position, result in zip(self._positions, results, strict=False):
            for stored in result["exits"]:
                exit_ = exit_of(
                    position, stored["name"], stored["state"], self._expansion.traced.tensors[position].shape
                )
                grown.append(Grown(exit_, stored["accuracy"]))
        used, whole = min(result["batches"] for result in results), self._source.distinct_batches
        notes = [f"branch zoo: survival judged by {unit}; {dropped} branches answered too late and no better"]
        if used < min(whole, self._settings.steps or whole):
            notes.append(f"branch zoo: the cache of features holds {used} of {whole} batches, and only they were used")
        return Cultivated(
            tuple(grown),
            trained=sum(result["trained"] for result in results),
            steps={position: result["steps"] for position, result in zip(self._positions, results, strict=False)},
            dropped_late=dropped,
            notes=tuple(notes),
        )


def _on_cpu(branch: Branch) -> dict[str, torch.Tensor]:
    return {key: value.detach().cpu().clone() for key, value in branch.state_dict().items()}
