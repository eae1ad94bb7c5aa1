"""Trains the branches at one cut point in rungs, between which the hopeless are dropped; resumable and sharded among
processes, whose results are gathered.

A profile (docs/adr/0043) decided how many independent branches learn in one pass over the batches: forward and
backward branch by branch, on the CPU several at once with one thread each, since a branch's operators are too small to
be divided among cores; then one fused optimizer update. Grouped convolutions, ``vmap``'s way, are slower on CPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from device_sdk.progress import Progress, Task
from packager.branch_zoo.features import FeatureBatch, StemmedBatches
from packager.branch_zoo.modules import Branch
from packager.branch_zoo.selection import RUNGS, Judged, kept, rung_counts, rung_steps
from packager.branch_zoo.specs import GRID, BranchCost, BranchSpec
from packager.output.checkpoints import decode_state, encode_state, read_state, write_state
from packager.supernet.blocks.trainable import evaluated
from packager.tasks import LearningTask, mixed_loss
from packager.training.ranks import LeadClock, Ranks
from packager.training.schedule import Schedule

State = dict[str, Any]
_EMPTY: State = {"exits": [], "trained": 0, "dropped_late": 0, "steps": 0, "batches": 1}
_GRADIENT_NORM = 5.0  # each branch's gradient is clipped to this norm
Result = TypeVar("Result")
BranchLoss = Callable[[torch.Tensor, FeatureBatch], torch.Tensor]
"""The loss of one branch's logits [batch, classes]."""


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


class ZooCheckpoints:
    """Files in the run's work folder: one per finished cut point, one per process for the one that is being trained.

    ``saved``: called after each is written.
    """

    def __init__(self, folder: Path, ranks: Ranks, *, saved: Callable[[], None] = lambda: None) -> None:
        self._saved = saved
        self._folder = folder
        self._ranks = ranks

    def finished(self, positions: Sequence[int]) -> dict[int, State]:
        """The results of the finished cut points, the same positions in all processes; full only in rank 0.

        Raises:
            ResumeError: a file is damaged.
        """
        found: dict[int, State] = {}
        for position in positions:
            there = self._ranks.leads and self._result(position).exists()
            if not self._ranks.from_lead(float(there)):
                break
            found[position] = read_state(self._result(position)) if there else _EMPTY
        return found

    def finish(self, position: int, mine: State) -> State:
        """Gather all processes' results of a cut point and keep them. Returns them, in rank 0."""
        parts = [self._from(rank, mine) for rank in range(self._ranks.share.count)]
        whole: State = {
            "exits": sorted((one for part in parts for one in part["exits"]), key=lambda one: str(one["name"])),
            "trained": sum(part["trained"] for part in parts),
            "dropped_late": sum(part["dropped_late"] for part in parts),
            "steps": parts[0]["steps"],
            "batches": min(part["batches"] for part in parts),
        }
        if self._ranks.leads:
            write_state(self._result(position), whole)
        self._saved()
        self._own().unlink(missing_ok=True)
        return whole

    def save(self, position: int, state: State) -> None:
        """Replace this process's state of the cut point that is being trained."""
        write_state(self._own(), state | {"position": position})
        self._saved()

    def unfinished(self, position: int) -> State | None:
        """The saved state of this cut point, if all processes saved it at the same step; else None: it begins anew.

        Raises:
            ResumeError: the file is damaged.
        """
        state = read_state(self._own())
        place = -1.0 if state is None or state["position"] != position else float(state["before"] + state["done"])
        agreed = self._ranks.from_lead(place)
        if self._ranks.any(place != agreed) or agreed < 0:
            return None
        return state

    def _from(self, rank: int, mine: State) -> State:
        """The result of process ``rank``, in all processes."""
        if self._ranks.alone:
            return mine
        data = encode_state(mine) if rank == self._ranks.share.rank else b""
        size = int(self._ranks.sum(torch.tensor(len(data))).item())
        buffer = torch.zeros(size, dtype=torch.uint8)
        if data:
            buffer = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        found: State = decode_state(self._ranks.sum(buffer).to(torch.uint8).numpy().tobytes())
        return found

    def _result(self, position: int) -> Path:
        return self._folder / f"branches-{position}.pt"

    def _own(self) -> Path:
        share = self._ranks.share
        return self._folder / f"branches.{share.rank}-of-{share.count}.pt"


class BranchTraining:
    """Branches by exit id, trained together. ``diverged``: those whose gradient was not finite; they learn no more."""

    def __init__(self, branches: Mapping[str, Branch], *, rate: float, device: torch.device) -> None:
        self.branches = {name: branch.to(device) for name, branch in branches.items()}
        self.diverged: set[str] = set()
        self._rate = rate
        self._fused = device.type in ("cpu", "cuda")
        workers = torch.get_num_threads() if device.type == "cpu" else 1
        self._pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,))
        self._optimizer = self._new_optimizer()

    def step(self, batch: FeatureBatch, loss: BranchLoss, *, rate: float) -> None:
        """One update of every branch at learning rate ``rate``."""
        if self._optimizer is None:
            return
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.zero_grad(set_to_none=True)
        learning = {name: branch for name, branch in self.branches.items() if name not in self.diverged}

        def learn(name: str) -> bool:
            branch = learning[name]
            branch.train()
            loss(branch.after_stem(batch.stemmed).float(), batch).backward()
            return bool(torch.isfinite(nn.utils.clip_grad_norm_(list(branch.parameters()), _GRADIENT_NORM)))

        for name, finite in self._side_by_side(learn, learning):
            if not finite:
                self.diverged.add(name)
                self.branches[name].zero_grad(set_to_none=True)
        self._optimizer.step()

    def keep(self, names: Collection[str]) -> None:
        """Drop all other branches; those kept keep their optimizer state."""
        states: Mapping[nn.Parameter, Any] = {} if self._optimizer is None else self._optimizer.state
        self.branches = {name: branch for name, branch in self.branches.items() if name in names}
        self._optimizer = self._new_optimizer()
        if self._optimizer is not None:
            self._optimizer.state.update({p: states[p] for p in self._parameters() if p in states})

    def accuracies(self, judged_on: FeatureBatch, *, batch: int = 256) -> dict[str, float]:
        """The accuracy of each branch, 0 to 1; -1 for one that diverged."""

        def accuracy(name: str) -> float:
            return -1.0 if name in self.diverged else branch_accuracy(self.branches[name], judged_on, batch=batch)

        return dict(self._side_by_side(accuracy, self.branches))

    @property
    def state(self) -> dict[str, Any]:
        """All that ``restore`` needs, as plain tensors."""
        return {
            "branches": {name: branch.state_dict() for name, branch in self.branches.items()},
            "optimizer": None if self._optimizer is None else self._optimizer.state_dict(),
            "diverged": sorted(self.diverged),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from ``state``: of a training that began with the same branches."""
        self.keep(state["branches"].keys())
        for name, branch in self.branches.items():
            branch.load_state_dict(state["branches"][name])
        if self._optimizer is not None:
            self._optimizer.load_state_dict(state["optimizer"])
        self.diverged = set(state["diverged"])

    def close(self) -> None:
        """End the threads. Idempotent."""
        self._pool.shutdown()

    def _side_by_side(self, work: Callable[[str], Result], names: Iterable[str]) -> list[tuple[str, Result]]:
        """``work`` for each branch, in their order."""
        chosen = list(names)
        return list(zip(chosen, self._pool.map(work, chosen), strict=True))

    def _parameters(self) -> Iterator[nn.Parameter]:
        for branch in self.branches.values():
            yield from branch.parameters()

    def _new_optimizer(self) -> torch.optim.Optimizer | None:
        parameters = list(self._parameters())
        return torch.optim.AdamW(parameters, lr=self._rate, fused=self._fused) if parameters else None


def branch_accuracy(branch: Branch, judged_on: FeatureBatch, *, batch: int = 256) -> float:
    """The share of samples that ``branch`` answers right, 0 to 1."""
    with evaluated(branch):
        answers = torch.cat([branch.after_stem(part).argmax(1) for part in judged_on.stemmed.split(batch)])
    return float((answers == judged_on.labels).double().mean())
