"""Trains exits together with the blocks before them: all imitate the model, the end too. Resumable at any step."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from device_sdk.progress import Progress, Task
from packager.data.batches import BatchSource
from packager.errors import TrainingError
from packager.inputs.recipe import Recipe
from packager.joining.training import JointTraining
from packager.joint_exits.network import JointNetwork
from packager.output.checkpoints import read_state, write_state
from packager.tasks import LearningTask, mixed_loss
from packager.torch_device import on_device, resolve_device
from packager.training.schedule import Schedule

_END_WEIGHT = 2.0  # of the end's loss against that of an exit: hard samples are left to it
_GRADIENT_NORM = 5.0
_MOMENTUM, _DECAY = 0.9, 1e-4


@dataclass(frozen=True)
class JointAccuracy:
    """Share of held-out samples answered correctly: by exit, at the end of the copy, and by the model itself."""

    exits: dict[str, float]
    end: float
    model: float


def train_jointly(
    network: JointNetwork,
    model: nn.Module,
    source: BatchSource,
    recipe: Recipe,
    length: JointTraining,
    *,
    task: LearningTask,
    state: Path,
    progress: Progress,
) -> int:
    """Train exits and blocks of ``network`` to answer as ``model`` does; returns the steps.

    SGD with Nesterov momentum: blocks at the recipe's ``tune_rate``, exits at its ``exit_rate``, both with linear
    warm-up and cosine decay. The loss is the weighted mean over exits and end of ``tasks.mixed_loss``. Batch-norms of
    blocks that learn take the statistics of the batch. ``state``: file that keeps an unfinished run.

    Raises:
        TrainingError: the loss is not finite; the last good state stays saved.
        ResumeError: the saved state is damaged.
    """
    device = resolve_device(recipe.device)
    teacher = copy.deepcopy(model).eval()
    run = _Run(network, teacher, source, recipe, length, task, device, state)
    modules = [teacher, network.module, *(one.module for one in network.exits)]
    with on_device(modules, device):
        run.restore()
        with progress.task("train exits jointly", 1.0, done=run.schedule.progress) as shown:
            run.go(shown)
    return run.schedule.done


class _Run:
    def __init__(
        self,
        network: JointNetwork,
        teacher: nn.Module,
        source: BatchSource,
        recipe: Recipe,
        length: JointTraining,
        task: LearningTask,
        device: torch.device,
        path: Path,
    ) -> None:
        self._network, self._teacher, self._source, self._recipe = network, teacher, source, recipe
        self._length, self._task, self._device, self._path = length, task, device, path
        self._heads = [one.module for one in network.exits]
        self.schedule = self._schedule()
        self._rates = recipe.highest_rate("tune_rate"), recipe.highest_rate("exit_rate")

    def _schedule(self, done: int = 0, elapsed: float = 0.0) -> Schedule:
        length = self._length
        return Schedule(steps=length.steps, seconds=length.seconds, done=done, elapsed=elapsed, clock=length.clock)

    @property
    def _parts(self) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        """Parameters of blocks, and of exits."""
        trunk = {id(one): one for block in self._network.learned for one in block.parameters()}
        return list(trunk.values()), [one for head in self._heads for one in head.parameters()]

    def restore(self) -> None:
        """Take up the saved state, if there is one; ``optimizer`` is made for the weights where they are now."""
        self._network.module.requires_grad_(False)
        for module in (*self._network.learned, *self._heads):
            module.requires_grad_(True)
        groups = [{"params": part} for part in self._parts]
        self._optimizer = torch.optim.SGD(groups, lr=1.0, momentum=_MOMENTUM, weight_decay=_DECAY, nesterov=True)
        saved: dict[str, Any] | None = read_state(self._path)
        if saved is not None:
            self._network.module.load_state_dict(saved["trunk"])
            for head, weights in zip(self._heads, saved["exits"], strict=True):
                head.load_state_dict(weights)
            self._optimizer.load_state_dict(saved["optimizer"])
            self.schedule = self._schedule(saved["step"], saved["seconds"])

    def go(self, task: Task) -> None:
        """Train to the end of the schedule."""
        clock = self._length.clock
        saved_s = clock()
        self._set_training(True)
        while not self.schedule.over:
            before = self.schedule.progress
            losses = self._step()
            self.schedule.done += 1
            task.note("loss " + " ".join(f"{one:.2f}" for one in losses))
            task.advance(self.schedule.progress - before)
            if clock() - saved_s >= self._recipe.checkpoint_seconds:
                self._save()
                saved_s = clock()
        self._set_training(False)
        self._network.module.requires_grad_(False)
        for head in self._heads:
            head.requires_grad_(False)
        self._save()

    def _set_training(self, on: bool) -> None:
        self._network.module.eval()
        for module in (*self._network.learned, *self._heads):
            module.train(on)

    def _step(self) -> list[float]:
        images, labels = self._source.batch(self.schedule.done)
        images, labels = images.to(self._device), labels.to(self._device)
        with torch.no_grad():
            wanted = self._teacher(images)
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            group["lr"] = self.schedule.rate(rate)
        losses = list(self._losses(images, labels, wanted))
        weights = [1.0] * (len(losses) - 1) + [_END_WEIGHT]
        total = torch.stack([weight * one for weight, one in zip(weights, losses, strict=True)]).sum() / sum(weights)
        if not bool(torch.isfinite(total)):
            raise TrainingError(
                "the loss of joint exits is not finite", hint="lower tune_rate or exit_rate; repeat to go on from there"
            )
        self._optimizer.zero_grad(set_to_none=True)
        total.backward()
        nn.utils.clip_grad_norm_([one for part in self._parts for one in part], _GRADIENT_NORM)
        self._optimizer.step()
        return [float(one.detach()) for one in losses]

    def _losses(self, images: torch.Tensor, labels: torch.Tensor, wanted: torch.Tensor) -> Iterator[torch.Tensor]:
        recipe = self._recipe
        for answer in self._network.answers(images):
            yield mixed_loss(
                self._task, answer, labels, wanted, temperature=recipe.temperature, label_weight=recipe.label_weight
            )

    def _save(self) -> None:
        state = {
            "trunk": self._network.module.state_dict(),
            "exits": [head.state_dict() for head in self._heads],
            "optimizer": self._optimizer.state_dict(),
            "step": self.schedule.done,
            "seconds": self.schedule.elapsed,
        }
        write_state(self._path, state)


@torch.no_grad()
def judge(network: JointNetwork, model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> JointAccuracy:
    """Accuracies on ``images`` [n, *input] with ``labels`` [n]."""
    right: list[list[torch.Tensor]] = []
    for some, wanted in zip(images.split(64), labels.split(64), strict=True):
        answers = [*network.answers(some), model(some)]
        right.append([(answer.argmax(1) == wanted).float() for answer in answers])
    means = [float(torch.cat(one).mean()) for one in zip(*right, strict=True)]
    return JointAccuracy(dict(zip((one.id for one in network.exits), means, strict=False)), means[-2], means[-1])
