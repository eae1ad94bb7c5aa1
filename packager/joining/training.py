"""Trains joints end to end: the path through each imitates the answers of the first network.

A joint leads from a cut point of one network to one of another, or of the same. Only joints learn; all original blocks
stay as they are. A killed run goes on from its last saved state.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import nn

from device_sdk.progress import Progress
from packager.data.batches import BatchSource
from packager.inputs.recipe import Recipe
from packager.joining.networks import CutNetwork, Place
from packager.output.checkpoints import read_state, write_state
from packager.tasks import Classification, mixed_loss
from packager.torch_device import on_device, resolve_device
from packager.tracing.traced_model import tensors_of

_PATHS = 3  # per batch
_HIGHEST_RATE, _LOWEST_SHARE = 2e-3, 0.05  # of Adam; weights are of the size of one
_SAVE_EVERY_S = 60.0


class Joint(Protocol):
    """A dataclass with a module that maps features at ``start`` to features at ``end``."""

    @property
    def start(self) -> Place:
        """Network and cut point of the module's input."""

    @property
    def end(self) -> Place:
        """Network and cut point of the module's output."""

    @property
    def module(self) -> nn.Module:
        """[n, *start] → [n, *end]."""


AnyJoint = TypeVar("AnyJoint", bound=Joint)


@dataclass(frozen=True)
class JointTraining:
    """The length of the joints' training: ``steps``, or ``seconds`` of ``clock``."""

    steps: int | None = None
    seconds: float | None = None
    clock: Callable[[], float] = time.monotonic

    @property
    def is_none(self) -> bool:
        """True if nothing is trained."""
        return not (self.steps or self.seconds)


def trained(
    joints: Sequence[AnyJoint],
    networks: Sequence[CutNetwork],
    source: BatchSource,
    recipe: Recipe,
    length: JointTraining,
    *,
    state: Path,
    title: str,
    progress: Progress,
) -> tuple[AnyJoint, ...]:
    """The joints with trained modules, in the same order; the rest of each is as before.

    A batch is run through the networks once; some joints in turn continue from its features. ``state``: file that
    keeps an unfinished run; ``title``: of the progress.
    """
    if length.is_none or not joints:
        return tuple(joints)
    device = resolve_device(recipe.device)
    made = [_copied(one) for one in joints]
    for one in made:
        one.module.requires_grad_(True)
    modules = [*(block.module for network in networks for block in network.blocks), *(one.module for one in made)]
    with on_device(modules, device):
        _Run(made, networks, source, recipe, length, device, state).go(progress, title)
    for one in made:
        one.module.requires_grad_(False)
    return tuple(made)


def _copied(joint: AnyJoint) -> AnyJoint:
    return replace(joint, module=copy.deepcopy(joint.module))  # type: ignore[type-var]


class _Run:
    def __init__(
        self,
        joints: Sequence[Joint],
        networks: Sequence[CutNetwork],
        source: BatchSource,
        recipe: Recipe,
        length: JointTraining,
        device: torch.device,
        path: Path,
    ) -> None:
        self._joints, self._networks, self._source = joints, networks, source
        self._recipe, self._length, self._device, self._path = recipe, length, device, path
        weights = [one for joint in joints for one in joint.module.parameters()]
        self._optimizer = torch.optim.Adam(weights, lr=_HIGHEST_RATE)
        self._step, self._spent_s = 0, 0.0
        state: dict[str, Any] | None = read_state(self._path)
        if state is not None:
            for joint, weights_ in zip(joints, state["joints"], strict=True):
                joint.module.load_state_dict(weights_)
            self._optimizer.load_state_dict(state["optimizer"])
            self._step, self._spent_s = state["step"], state["seconds"]

    def go(self, progress: Progress, title: str) -> None:
        """Train until the length is reached."""
        clock, shown = self._length.clock, self._share()
        started, saved = clock() - self._spent_s, clock()
        with progress.task(title, 1.0, done=shown) as task:
            while self._share() < 1:
                loss = self._update()
                self._step += 1
                self._spent_s = clock() - started
                task.note(f"loss {loss:.3f}")
                task.advance(self._share() - shown)
                shown = self._share()
                if clock() - saved > _SAVE_EVERY_S:
                    self._save()
                    saved = clock()
        self._save()

    def _share(self) -> float:
        by_steps = self._step / self._length.steps if self._length.steps else 0.0
        by_time = self._spent_s / self._length.seconds if self._length.seconds else 0.0
        return min(1.0, max(by_steps, by_time))

    def _update(self) -> float:
        images, labels = self._source.batch(self._step)
        images, labels = images.to(self._device), labels.to(self._device)
        count = min(_PATHS, len(self._joints))
        mine = [self._joints[(self._step * count + turn) % len(self._joints)] for turn in range(count)]
        wanted = {one.start for one in mine}
        features: dict[tuple[int, int], torch.Tensor] = {}
        for member, network in enumerate(self._networks):
            last = len(network.blocks)
            if member == 0 or any(place == member for place, _ in wanted):
                for cut, found in network.features(images):
                    if (member, cut) in wanted or (member == 0 and cut == last):
                        (features[member, cut],) = tensors_of([found])
        teacher = features[0, len(self._networks[0].blocks)]
        for group in self._optimizer.param_groups:
            group["lr"] = _HIGHEST_RATE * max(1 - self._share(), _LOWEST_SHARE)
        self._optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for one in mine:
            answer = self._networks[one.end[0]].logits_from(one.end[1], one.module(features[one.start]))
            temperature = self._recipe.temperature
            loss = mixed_loss(Classification(), answer, labels, teacher, temperature=temperature, label_weight=0.0)
            loss.backward()
            total += float(loss.detach())
        self._optimizer.step()
        return total / count

    def _save(self) -> None:
        state = {
            "joints": [one.module.state_dict() for one in self._joints],
            "optimizer": self._optimizer.state_dict(),
            "step": self._step,
            "seconds": self._spent_s,
        }
        write_state(self._path, state)
