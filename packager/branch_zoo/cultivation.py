"""Grows the exits of an expansion from the branch zoo (MEEdge §3.2, §3.5), cut point by cut point.

At each cut point: 1. train all branches on cached features, in rungs between which the hopeless are dropped; 2. keep
what survives; 3. add self-merged siblings, retrained on a fifth of the data. Several processes share the branches.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from device_sdk.progress import Progress
from packager.branch_zoo.features import FeatureBatch, StemmedBatches, held_out_batches, positions_together
from packager.branch_zoo.modules import Branch, build_branch
from packager.branch_zoo.rungs import BranchTraining, RungTraining, ZooCheckpoints, ZooSettings, branch_accuracy
from packager.branch_zoo.selection import AnswerTimes, survives
from packager.branch_zoo.self_merge import DATA_SHARE, best_merge, exit_of, few_vectors, retrain_to_least_loss
from packager.branch_zoo.specs import BranchSpec, branch_cost, specs_for
from packager.data.batches import BatchSource
from packager.supernet.expansion import Expansion, TrainableExit, count_macs
from packager.tasks import Classification, LearningTask
from packager.training.ranks import Alone, LeadClock, Ranks

_MERGE_SHARE = 0.1  # of a cut point's time, for siblings


@dataclass(frozen=True)
class Grown:
    """A branch that became an exit, and its accuracy on held-out samples, 0 to 1."""

    exit: TrainableExit
    accuracy: float


@dataclass(frozen=True)
class Cultivated:
    """The exits of the cut points done so far, with what became of other branches.

    ``trained``: branches that were trained; ``steps``: updates by cut point; ``dropped_late``: branches and siblings
    that answered after the full model and were no better.
    """

    grown: tuple[Grown, ...] = ()
    trained: int = 0
    steps: Mapping[int, int] = field(default_factory=dict)
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
        self._traced, self._source, self._held_out = expansion.traced, source, held_out
        self._positions, self._times, self._settings = tuple(positions), times, settings
        self._progress, self._ranks = progress, ranks or Alone()
        self._device, self._task = device or torch.device("cpu"), task or Classification()
        self._seconds_left, self._folder = seconds_left, folder
        self._clock = LeadClock(self._ranks, time.monotonic)
        self._saved = ZooCheckpoints(folder, self._ranks, saved=saved)
        self._classes = self._traced.tensors[-1].size
        self._batches: tuple[tuple[int, ...], StemmedBatches] | None = None

    def run(self) -> Cultivated:
        """Cultivate all cut points, going on after an interruption. Only rank 0 gets the exits for sure."""
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
        """1. train and drop; 2. keep what survives; 3. merge. Returns this process's part as plain values."""
        shape = self._traced.tensors[position].shape
        specs = {spec.exit_id(position): spec for spec in specs_for(shape, self._settings.grid)}
        judged_on = held_out_batches(self._traced, [position], *self._held_out, device=self._device)[position]
        batches = self._batches_at(position)
        training, steps = self._trained(position, specs, batches, judged_on)
        accuracies = training.accuracies(judged_on)
        training.close()
        found = [(specs[name], branch, accuracies[name]) for name, branch in training.branches.items()]
        alive = [one for one in found if self._survives(position, *one, judged_on)]
        siblings = self._siblings(alive, batches.few(position, DATA_SHARE), judged_on) if steps else []
        kept_siblings = [one for one in siblings if self._survives(position, *one, judged_on)]
        return {
            "exits": [
                {
                    "name": spec.name,
                    "accuracy": accuracy,
                    "state": {key: value.detach().cpu().clone() for key, value in branch.state_dict().items()},
                }
                for spec, branch, accuracy in alive + kept_siblings
            ],
            "trained": len(range(self._ranks.share.rank, len(specs), self._ranks.share.count)),
            "steps": steps,
            "dropped_late": len(found) + len(siblings) - len(alive) - len(kept_siblings),
            "batches": batches.used,
        }

    def _trained(
        self, position: int, specs: Mapping[str, BranchSpec], batches: StemmedBatches, judged_on: FeatureBatch
    ) -> tuple[BranchTraining, int]:
        """This process's branches that are left after all rungs, and the number of updates."""
        shape, share = self._traced.tensors[position].shape, self._ranks.share
        mine = list(specs.items())[share.rank :: share.count]
        branches = {name: self._built(spec, position) for name, spec in mine}
        training = BranchTraining(branches, rate=self._settings.rate, device=self._device)
        interrupted = self._saved.unfinished(position)
        spent_s = 0.0 if interrupted is None else interrupted["spent"] + interrupted["elapsed"]
        rungs = RungTraining(
            position,
            training,
            {name: branch_cost(spec, shape, classes=self._classes) for name, spec in specs.items()},
            batches,
            judged_on,
            settings=self._settings,
            task=self._task,
            saved=self._saved,
            ranks=self._ranks,
            clock=self._clock,
            seconds=self._seconds(position, spent_s),
        )
        rungs.run(interrupted, self._progress)
        return training, rungs.steps

    def _siblings(
        self,
        alive: Sequence[tuple[BranchSpec, Branch, float]],
        few: Sequence[FeatureBatch],
        judged_on: FeatureBatch,
    ) -> list[tuple[BranchSpec, Branch, float]]:
        """The self-merged siblings of all branches with hidden layers, retrained on ``few`` batches."""

        def accuracy(branch: Branch) -> float:
            return branch_accuracy(branch, judged_on)

        found = []
        for spec, branch, _ in alive if self._settings.merge else ():
            if spec.dense.hidden:
                merged = best_merge(branch, accuracy, few_vectors(branch, few))
                retrain_to_least_loss(merged, few, judged_on)
                found.append((replace(spec, merged=True), merged.branch, accuracy(merged.branch)))
        return found

    def _survives(
        self, position: int, spec: BranchSpec, branch: Branch, accuracy: float, judged_on: FeatureBatch
    ) -> bool:
        if accuracy < 0:  # diverged
            return False
        macs = count_macs(branch, self._traced.tensors[position].shape)
        return survives(
            answer_time=self._times.answer(spec.exit_id(position), position, macs),
            accuracy=accuracy,
            full_time=self._times.full,
            full_accuracy=float((judged_on.teacher.argmax(1) == judged_on.labels).double().mean()),
        )

    def _built(self, spec: BranchSpec, position: int) -> Branch:
        shape = self._traced.tensors[position].shape
        branch = build_branch(spec, shape, classes=self._classes, seed=self._settings.seed + position)
        assert branch is not None, spec
        return branch

    def _batches_at(self, position: int) -> StemmedBatches:
        """The cached batches of this cut point, and of as many later ones as fit beside all batches wanted."""
        if self._batches is not None and position in self._batches[0]:
            return self._batches[1]
        if self._batches is not None:
            self._batches[1].close()
        wanted = self._source.distinct_batches
        if self._settings.steps is not None:
            wanted = min(wanted, max(1, self._settings.steps))
        chosen = positions_together(
            self._traced,
            self._positions[self._positions.index(position) :],
            batch=self._source.batch_size,
            wanted=wanted,
            limit_bytes=self._settings.cache_bytes,
        )
        batches = StemmedBatches(
            self._traced,
            self._source,
            chosen,
            folder=self._folder,
            limit_bytes=self._settings.cache_bytes,
            wanted=wanted,
            device=self._device,
        )
        self._batches = chosen, batches
        return batches

    def _seconds(self, position: int, spent_s: float) -> float | None:
        """The time for the rungs of a cut point, whose share is that of those left; None where steps are counted."""
        if self._settings.steps is not None:
            return None
        left = len(self._positions) - self._positions.index(position)
        whole = (spent_s + self._ranks.from_lead(self._seconds_left())) / left
        return whole * (1 - _MERGE_SHARE * self._settings.merge)

    def _collected(self, results: Sequence[dict[str, Any]]) -> Cultivated:
        """The exits of the finished cut points, rebuilt from their plain values."""
        done = list(zip(self._positions, results, strict=False))
        grown = [
            Grown(
                exit_of(position, stored["name"], stored["state"], self._traced.tensors[position].shape),
                stored["accuracy"],
            )
            for position, result in done
            for stored in result["exits"]
        ]
        return Cultivated(
            tuple(grown),
            trained=sum(result["trained"] for result in results),
            steps={position: result["steps"] for position, result in done},
            dropped_late=sum(result["dropped_late"] for result in results),
            notes=self._notes(results),
        )

    def _notes(self, results: Sequence[dict[str, Any]]) -> tuple[str, ...]:
        unit = {"ms": "measured latency", "MACs": "MACs: no profile was given"}[self._times.unit]
        dropped = sum(result["dropped_late"] for result in results)
        notes = [f"branch zoo: survival judged by {unit}; {dropped} branches answered too late and no better"]
        used, whole = min(result["batches"] for result in results), self._source.distinct_batches
        if used < min(whole, self._settings.steps or whole):
            notes.append(f"branch zoo: the cache of features holds {used} of {whole} batches, and only they were used")
        return tuple(notes)
