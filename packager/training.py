"""Training the added blocks: branch-wise distillation, then tuning of sampled paths (AdaptiveNet §4.2).

The original blocks stay frozen in evaluation mode, so the pretrained model is one of the subnets, bit for bit.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from device_sdk.graph import Edge, Subnet
from device_sdk.paths import WindowSampler, k_cheapest
from device_sdk.progress import Progress
from device_sdk.random_source import SplitMix64
from packager.batches import BatchSource
from packager.checkpoints import Checkpoints
from packager.errors import TrainingError
from packager.expansion import Expansion, TrainableBlock
from packager.recipe import Recipe
from packager.schedule import Schedule

_DONE = "done"
_GRADIENT_NORM = 5.0  # longest gradient that is followed
_DRAWS = 1000  # each has a fair chance of a path with an added block
MACS_RANGES = 6  # ranges of a path's MACs in which paths are sampled and accuracy is reported


@dataclass(frozen=True)
class Phase:
    """One of the two training phases: its name, share of the training, and one step of it."""

    name: str
    share: float
    rate: float
    step: Callable[[int], torch.Tensor]


class Trainer:
    """Trains the added blocks of ``expansion`` as ``recipe`` says, saving its state every so often."""

    def __init__(
        self,
        expansion: Expansion,
        source: BatchSource,
        recipe: Recipe,
        checkpoints: Checkpoints,
        progress: Progress,
    ) -> None:
        self._expansion = expansion
        self._source = source
        self._recipe = recipe
        self._checkpoints = checkpoints
        self._progress = progress
        self._ranges = MacsRanges(expansion)
        self._parameters = [p for block in expansion.added for p in block.module.parameters()]
        self._precision = resolve_precision(recipe.precision)
        self.steps_done = {"distil": 0, "tune": 0}

    def train(self) -> None:
        """Run both phases, or what is left of them after an interruption.

        Raises:
            TrainingError: the loss is no longer a number; the last good state stays saved.
        """
        if not self._parameters:
            return
        phases = [
            Phase("distil", self._recipe.distil_share, self._recipe.distil_rate, self._distil_step),
            Phase("tune", 1 - self._recipe.distil_share, self._recipe.tune_rate, self._tune_step),
        ]
        saved = self._checkpoints.state or {"phase": "distil"}
        self._restore(saved)
        names = [phase.name for phase in phases] + [_DONE]
        for phase, following in list(zip(phases, names[1:], strict=True))[names.index(saved["phase"]) :]:
            self._run(phase, saved)
            saved = {"phase": following}
            self._save(following)
        for block in self._expansion.added:
            block.module.eval()

    def _run(self, phase: Phase, saved: dict[str, Any]) -> None:
        optimizer = _optimizer(phase, self._parameters)
        if "optimizer" in saved:
            optimizer.load_state_dict(saved["optimizer"])
        schedule = self._schedule(phase, saved)
        for block in self._expansion.added:
            block.module.train()
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

    def _descend(self, phase: Phase, schedule: Schedule, optimizer: torch.optim.Optimizer) -> float:
        for group in optimizer.param_groups:
            group["lr"] = schedule.rate(phase.rate)
        with (
            torch.random.fork_rng(devices=[]),
            torch.autocast("cpu", self._precision, enabled=self._precision != torch.float32),
        ):
            # dropout draws from torch's own generator: a function of the step, so that a resumed run draws the same
            torch.manual_seed(SplitMix64(self._recipe.seed + schedule.done).next())
            loss = phase.step(schedule.done)
        value = loss.item()
        if not math.isfinite(value):
            raise _diverged("loss", value, phase, schedule)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        length = torch.nn.utils.clip_grad_norm_(self._parameters, _GRADIENT_NORM)
        if not torch.isfinite(length):
            raise _diverged("gradient", length.item(), phase, schedule)
        optimizer.step()
        return value

    def _schedule(self, phase: Phase, saved: dict[str, Any]) -> Schedule:
        recipe = self._recipe
        if recipe.steps is not None:
            distil = round(recipe.steps * recipe.distil_share)
            steps = distil if phase.name == "distil" else recipe.steps - distil
            return Schedule(steps=steps, seconds=None, done=saved.get("done", 0))
        seconds = (recipe.budget_minutes or 0.0) * 60 * phase.share
        return Schedule(steps=None, seconds=seconds, done=saved.get("done", 0), elapsed=saved.get("elapsed", 0.0))

    def _save(
        self, phase: str, schedule: Schedule | None = None, optimizer: torch.optim.Optimizer | None = None
    ) -> None:
        state: dict[str, Any] = {
            "phase": phase,
            "blocks": {block.id: block.module.state_dict() for block in self._expansion.added},
            "steps_done": dict(self.steps_done),
        }
        if schedule is not None and optimizer is not None:
            state |= {"optimizer": optimizer.state_dict(), "done": schedule.done, "elapsed": schedule.elapsed}
        self._checkpoints.save(state)

    def _restore(self, saved: dict[str, Any]) -> None:
        if "blocks" in saved:
            for block in self._expansion.added:
                block.module.load_state_dict(saved["blocks"][block.id])
        self.steps_done.update(saved.get("steps_done", {}))

    def _distil_step(self, step: int) -> torch.Tensor:
        """Every added block imitates what it replaces, from the teacher's own input (§4.2, Eq. 1).

        The squared distance is divided by the variance of the target, so that all blocks weigh the same.
        """
        images, _ = self._source.batch(step)
        with torch.no_grad():
            features = self._expansion.traced.features(images)
        return torch.stack([_imitation_error(block, features) for block in self._expansion.added]).sum()

    def _tune_step(self, step: int) -> torch.Tensor:
        """A sampled path learns from the labels and from the full model's logits at a temperature."""
        images, labels = self._source.batch(1_000_000_000 + step)
        with torch.no_grad():
            teacher = self._expansion.traced.features(images)[-1].float()
        logits = self._expansion.run(self._ranges.sample(self._recipe.seed + step), images).float()
        temperature = self._recipe.temperature
        imitation = functional.kl_div(
            functional.log_softmax(logits / temperature, dim=1),
            functional.log_softmax(teacher / temperature, dim=1),
            log_target=True,
            reduction="batchmean",
        )
        weight = self._recipe.label_weight
        return weight * functional.cross_entropy(logits, labels) + (1 - weight) * temperature**2 * imitation


def _diverged(what: str, value: float, phase: Phase, schedule: Schedule) -> TrainingError:
    return TrainingError(
        f"the {what} became {value} at step {schedule.done} of {phase.name}",
        hint=f"lower the recipe's {phase.name}_rate; the last saved state is kept",
    )


def _imitation_error(block: TrainableBlock, features: Sequence[torch.Tensor]) -> torch.Tensor:
    target = features[block.end].float()
    imitated = block.module(features[block.start]).float()
    return functional.mse_loss(imitated, target) / target.var().clamp_min(1e-8)


def resolve_precision(precision: str) -> torch.dtype:
    """The number format of the training's arithmetic; ``auto`` asks the processor."""
    if precision == "auto":
        has_matrix_units = getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
        return torch.bfloat16 if has_matrix_units() else torch.float32
    return torch.bfloat16 if precision == "bfloat16" else torch.float32


def distillation_errors(expansion: Expansion, samples: torch.Tensor) -> dict[str, float]:
    """For each added block, its squared distance from what it replaces over the variance of that.

    ``samples``: prepared [batch, *input], not trained on.
    """
    with torch.no_grad():
        features = expansion.traced.features(samples)
        return {block.id: round(_imitation_error(block, features).item(), 5) for block in expansion.added}


def _optimizer(phase: Phase, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    if phase.name == "distil":
        return torch.optim.Adam(parameters, lr=phase.rate)
    return torch.optim.SGD(parameters, lr=phase.rate, momentum=0.9, nesterov=True, weight_decay=1e-4)


class MacsRanges:
    """Paths by their MACs relative to the original path: the stand-in for latency while packaging."""

    def __init__(self, expansion: Expansion) -> None:
        supernet = expansion.supernet()
        macs = {block.id: block.macs for block in supernet.blocks}
        self._original = supernet.original
        whole = sum(macs[edge.block] for edge in self._original.edges) or 1

        def ratio(edge: Edge) -> float:
            return macs[edge.block] / whole

        lowest = k_cheapest(supernet, ratio, k=1)[0][0]
        step = (1.0 - lowest) / MACS_RANGES
        bounds = [lowest + step * k for k in range(MACS_RANGES)] + [1.0]
        self._samplers: list[tuple[float, float, WindowSampler]] = []
        for low, high in itertools.pairwise(bounds):
            sampler = WindowSampler(supernet, ratio, low=low - 1e-9, high=high + 1e-9)
            if sampler.sample(count=1, random=SplitMix64(0)):
                self._samplers.append((low, high, sampler))

    def sample(self, seed: int) -> Subnet:
        """A range at random, then a path uniformly from it, the original path left out: a function of ``seed``."""
        random = SplitMix64(seed)
        for _ in range(_DRAWS):
            _, _, sampler = random.choice(self._samplers)
            for subnet in sampler.sample(count=1, random=random):
                if subnet != self._original:
                    return subnet
        raise TrainingError("no path with an added block is cheaper than the original path")

    def samples(self, count: int, *, seed: int) -> Iterator[tuple[float, float, list[Subnet]]]:
        """Up to ``count`` different paths of each range: (lowest ratio, highest ratio, paths)."""
        random = SplitMix64(seed)
        for low, high, sampler in self._samplers:
            yield low, high, sorted(set(sampler.sample(count=count, random=random)))
