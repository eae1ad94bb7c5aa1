"""Trains router, base and global in turn (Hybrid Alg. 3), resumable at any point.

Each round: the global learns, then the base, with the weights that the router of the moment gives; after each, the
router is fitted anew, since its inputs or its target have changed. A network that does not make the hybrid better on
images that neither network learns from, by more than a standard error, goes back to where it began its turn. The
statistics of the base's batch norms have a turn of their own before the others: those of a network that was trained on
strongly augmented images rarely are those of plain ones.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import msgspec
import numpy as np
import torch
from torch import Tensor

from device_sdk.offload.remote_model import LogarithmicPool
from device_sdk.policies.deciding.decider_fitting import fit_pool
from device_sdk.progress import Progress, Task
from device_sdk.supernet.deciders.logistic import Logistic
from device_sdk.supernet.deciders.port import ease, hard
from packager.errors import TrainingError
from packager.hybrid.deciding import (
    RoutingSamples,
    answer_losses,
    base_weights,
    fit_router,
    global_weights,
    helps,
    right_at,
    tuned_to_coverage,
    weighted,
)
from packager.hybrid.job import HybridRecipe
from packager.hybrid.path_network import PathNetwork, State
from packager.hybrid.samples import HybridBatches, HybridEvidence
from packager.output.checkpoints import Checkpoints
from packager.torch_device import resolve_precision
from packager.training.schedule import Schedule

_GRADIENT_NORM = 5.0  # gradients are clipped to this norm
Learner = Literal["global", "base"]
Learned = Literal["global", "base", "statistics"]


class AlternatingTrainer:
    """Trains the copies of ``base`` and ``global_`` by ``recipe``; after ``train``, ``router`` is that of the result.

    ``seconds_left``: for all turns together, where the recipe counts minutes; asked once, when the first one begins.
    ``report``: a ``Turn`` each.
    """

    def __init__(
        self,
        base: PathNetwork,
        global_: PathNetwork,
        batches: HybridBatches,
        evidence: HybridEvidence,
        recipe: HybridRecipe,
        checkpoints: Checkpoints,
        progress: Progress,
        *,
        device: torch.device,
        seconds_left: Callable[[], float] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._networks: dict[Learner, PathNetwork] = {"global": global_, "base": base}
        self._batches, self._evidence, self._recipe = batches, evidence, recipe
        self._checkpoints, self._progress, self._device, self._clock = checkpoints, progress, device, clock
        self._precision = resolve_precision(recipe.precision, device)
        learners: list[Learner] = ["global"] * recipe.global_learns + ["base"] * recipe.base_learns  # type: ignore[assignment]
        turns: list[tuple[int, Learned]] = [
            (number, learner) for number in range(recipe.rounds) for learner in learners
        ]
        recalibrates = recipe.base_learns and recipe.recalibrate_batches and base.has_statistics
        first: list[tuple[int, Learned]] = [(0, "statistics")] if recalibrates else []
        self._turns = first + turns
        shares = {"global": recipe.global_share, "base": 1.0 - recipe.global_share}
        whole = sum(shares[learner] for learner in learners) or 1.0
        self._shares = {learner: shares[learner] / whole for learner in learners}
        self._seconds_left = seconds_left
        self._where = Where()
        self._known = {learner: TurnProgress() for learner in learners}

    @property
    def report(self) -> tuple[Turn, ...]:
        """The turns so far."""
        return tuple(Turn(**entry) for entry in self._where.report)

    @property
    def router(self) -> Logistic:
        """The router of the weights of the moment, tuned to the coverage."""
        assert self._where.router is not None
        return self._where.router

    @property
    def accuracy(self) -> float:
        """The hybrid's accuracy on the held-out samples at the coverage."""
        assert self._where.right is not None
        return self._held_out(self._where.right)

    @property
    def pool(self) -> LogarithmicPool | None:
        """The pool of both networks' answers, fitted to all images that neither learns from."""
        evidence = self._evidence
        once = len(evidence.routing_labels) // evidence.views
        base, global_ = (evidence.answers(self._networks[name]) for name in ("base", "global"))
        logits = [np.concatenate([one.routing[:once], one.held_out]) for one in (base, global_)]
        labels = np.concatenate([evidence.routing_labels[:once], evidence.held_out_labels])
        return fit_pool(logits[0], logits[1], labels)

    def learned(self, learner: Learner) -> bool:
        """True if the network differs from its original state."""
        own = {learner, "statistics"} if learner == "base" else {learner}
        return any(turn.kept and turn.steps for turn in self.report if turn.learner in own)

    def train(self) -> None:
        """Run all turns, from the last saved state on.

        Raises:
            TrainingError: a loss is not finite; the last good state stays saved.
            DataError: a router has nothing to learn from.
        """
        if self._checkpoints.state is not None and "where" in self._checkpoints.state:
            self._restore(self._checkpoints.state)
        else:
            self._where.router, self._where.right = self._routed()
            self._where.seconds = self._seconds_left() if self._seconds_left is not None else 0.0
        for number in range(self._where.turn, len(self._turns)):
            self._run(number)
        for network in self._networks.values():
            network.train(False)

    def _run(self, number: int) -> None:
        """1. remember the start; 2. steps; 3. a new router; 4. keep the better state."""
        where, (round_, learned) = self._where, self._turns[number]
        learner: Learner = "base" if learned == "statistics" else learned
        network = self._networks[learner]
        if where.start is None:  # 1
            where.start = network.state
        if learned != "statistics":  # 2
            self._steps(learner)
        statistics_kept = any(turn.kept for turn in self.report if turn.learner == "statistics")
        if learned == "statistics" or (learner == "base" and statistics_kept):
            self._recalibrate()
        router, right = self._routed()  # 3
        assert where.right is not None
        kept = helps(where.right.numpy(), right.numpy())
        known = self._known[learner]
        before, after = self._held_out(where.right), self._held_out(right)
        steps = known.done if learned != "statistics" else self._recipe.recalibrate_batches
        turn = Turn(round_, learned, steps, where.loss, before, after, kept)
        if kept:  # 4
            where.router, where.right = router, right
        else:
            network.restore(where.start)
        where.report.append(dict(turn.__dict__))
        where.turn, where.start, where.loss = number + 1, None, None
        self._known[learner] = TurnProgress(earlier=known.earlier + known.done)
        self._save()

    def _recalibrate(self) -> None:
        """Replace the statistics of the base's batch norms by their means over plain training images."""
        base, count = self._networks["base"], self._recipe.recalibrate_batches
        base.train(False)
        with self._progress.task("recalibrate", count) as task:
            base.recalibrate(self._plain(count, task))

    def _plain(self, count: int, task: Task) -> Iterator[Tensor]:
        for step in range(count):
            yield self._batches.plain(step)
            task.advance()

    def _steps(self, learner: Learner) -> None:
        """Update the network until its turn is over. Each turn has a schedule of its own, so that it ends at rest."""
        network, known = self._networks[learner], self._known[learner]
        share, rounds = self._shares[learner], self._recipe.rounds
        steps = None if self._recipe.steps is None else round(self._recipe.steps * share / rounds)
        seconds = None if steps is not None else self._where.seconds * share / rounds
        schedule = Schedule(steps=steps, seconds=seconds, done=known.done, elapsed=known.elapsed, clock=self._clock)
        rate = getattr(self._recipe, f"{learner}_rate")
        optimizer = torch.optim.SGD(network.parameters, lr=rate, momentum=0.9, nesterov=True, weight_decay=1e-4)
        if known.optimizer is not None:
            optimizer.load_state_dict(known.optimizer)
        network.train(learner == "base")  # a global keeps its statistics: they are of more data than its turns see
        saved_at, shown = self._clock(), schedule.progress
        with self._progress.task(f"{learner} learns", 1.0, done=shown) as task:
            while not schedule.over:
                step = known.earlier + schedule.done
                self._where.loss = self._update(learner, optimizer, step, schedule.rate(rate))
                schedule.done += 1
                task.advance(schedule.progress - shown)
                task.note(f"loss {self._where.loss:.4f}, hybrid {self.accuracy:.4f}")
                shown = schedule.progress
                self._known[learner] = TurnProgress(
                    schedule.done, schedule.elapsed, known.earlier, optimizer.state_dict()
                )
                if self._clock() - saved_at >= self._recipe.checkpoint_seconds:
                    self._save()
                    saved_at = self._clock()

    def _held_out(self, right: Tensor) -> float:
        return float(right[-len(self._evidence.held_out_labels) :].double().mean())

    def _update(self, learner: Learner, optimizer: torch.optim.Optimizer, step: int, rate: float) -> float:
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad(set_to_none=True)
        reduced = self._precision != torch.float32
        with torch.random.fork_rng([]), torch.autocast(self._device.type, self._precision, enabled=reduced):
            torch.manual_seed(self._recipe.seed * 1_000_003 + step)  # of dropout
            loss = self._base_loss(step) if learner == "base" else self._global_loss(step)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise TrainingError(
                f"the loss of the {learner} became {value} at step {step}",
                hint=f"lower the recipe's {learner}_rate; the last saved state is kept",
            )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._networks[learner].parameters, _GRADIENT_NORM)
        optimizer.step()
        return value

    def _base_loss(self, step: int) -> Tensor:
        batch = self._batches.for_base(step, taught=self._recipe.label_weight < 1.0)
        logits = self._networks["base"].tail(self._networks["base"].head(batch.images)).float()
        losses = answer_losses(
            logits,
            batch.labels.to(self._device),
            None if batch.teacher is None else batch.teacher.to(self._device),
            label_weight=self._recipe.label_weight,
            temperature=self._recipe.temperature,
        )
        return weighted(losses, base_weights(self._sent(logits)))

    def _global_loss(self, step: int) -> Tensor:
        batch = self._batches.for_global(step)
        with torch.no_grad():
            base = self._networks["base"].tail(self._networks["base"].head(batch.images)).float()
        losses = answer_losses(self._networks["global"].tail(batch.features).float(), batch.labels.to(self._device))
        return weighted(losses, global_weights(self._sent(base)))

    def _sent(self, logits: Tensor) -> Tensor:
        """r(x) of the router of this turn: [batch], 0 or 1."""
        assert self._where.router is not None
        found = hard(self._where.router, logits.detach().float().cpu().numpy())
        return torch.from_numpy(found).to(logits.device)

    def _routed(self) -> tuple[Logistic, Tensor]:
        """A router for the networks as they are, tuned to the coverage, and a mask of the hybrid's correct answers.

        Routing images are judged by a router that did not learn from them.
        """
        base, global_ = (self._evidence.answers(self._networks[name]) for name in ("base", "global"))
        routing, held_out, coverage = (
            self._evidence.routing_labels,
            self._evidence.held_out_labels,
            self._recipe.coverage,
        )
        fitted = fit_router(RoutingSamples(base.routing, global_.routing, routing, self._evidence.views))
        router = tuned_to_coverage(fitted.decider, base.held_out, coverage)
        once = len(routing) // self._evidence.views
        parts = (
            right_at(fitted.eases, base.routing[:once], global_.routing[:once], routing[:once], coverage),
            right_at(ease(router, base.held_out), base.held_out, global_.held_out, held_out, coverage),
        )
        return router, torch.from_numpy(np.concatenate(parts))

    def _save(self) -> None:
        where, router = self._where, self._where.router
        assert router is not None
        self._checkpoints.save(
            {
                "where": {key: value for key, value in where.__dict__.items() if key != "router"},
                "router": torch.from_numpy(np.frombuffer(msgspec.json.encode(router), np.uint8).copy()),
                "known": {name: dict(known.__dict__) for name, known in self._known.items()},
                "networks": {name: network.state for name, network in self._networks.items()},
            }
        )

    def _restore(self, state: dict[str, Any]) -> None:
        router = msgspec.json.decode(state["router"].numpy().tobytes(), type=Logistic)
        self._where = Where(**state["where"], router=router)
        self._known = {name: TurnProgress(**known) for name, known in state["known"].items()}
        for name, network in self._networks.items():
            network.restore(state["networks"][name])


def tensors_of(states: Sequence[State]) -> dict[str, Tensor]:
    """Weights of copies as ``<block>.<name>``, as ``branch_weights`` are."""
    return {
        f"{block}.{key}": cast(Tensor, value).contiguous()
        for state in states
        for block, part in state.items()
        for key, value in part.items()
    }


@dataclass(frozen=True)
class Turn:
    """One network's turn: its steps, and the hybrid's held-out accuracy at the coverage before and after.

    ``learner``: ``statistics`` for the batch norms of the base alone. ``kept``: False if it was set back to its start.
    """

    round: int
    learner: Learned
    steps: int
    loss: float | None
    before: float
    after: float
    kept: bool

    def __str__(self) -> str:
        """One line for the terminal."""
        kept = "kept" if self.kept else "not kept"
        loss = "" if self.loss is None else f", loss {self.loss:.4f}"
        said = f"round {self.round + 1}, {self.learner}: {self.steps} steps{loss}"
        return f"{said}; hybrid accuracy {self.before:.4f} -> {self.after:.4f}, {kept}"


def told(turns: Sequence[Turn]) -> tuple[str, ...]:
    """A line for each turn, and one that says so if none of them was kept."""
    said = tuple(map(str, turns))
    if not turns or any(turn.kept for turn in turns):
        return said
    return (
        *said,
        "kept nothing: no turn made the hybrid better by more than a standard error; only the router learned",
    )


@dataclass
class TurnProgress:
    """State of a network in a checkpoint besides its weights: steps and seconds of this turn, ``earlier`` steps."""

    done: int = 0
    elapsed: float = 0.0
    earlier: int = 0
    optimizer: dict[str, Any] | None = None


@dataclass
class Where:
    """The turn that runs, the initial state of its network, the router then, and the seconds of all turns.

    ``right``: mask of the hybrid's correct answers at the coverage, to the routing images, then the held-out ones.
    """

    turn: int = 0
    loss: float | None = None
    start: State | None = None
    router: Logistic | None = None
    right: Tensor | None = None
    seconds: float = 0.0
    report: list[dict[str, Any]] = field(default_factory=list)
