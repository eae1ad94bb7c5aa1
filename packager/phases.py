"""The phases of training, in order: what each of them trains, for how long, and the loss of one step.

distil (added blocks imitate what they replace) → tune (sampled paths learn) → exits (branches learn from frozen
features). AdaptiveNet §4.2; the exits after MEEdge.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from device_sdk.graph import Subnet
from packager.batches import BatchSource
from packager.expansion import Expansion, TrainableBlock
from packager.macs_ranges import MacsRanges
from packager.recipe import Recipe

DISTIL, TUNE, EXITS = "distil", "tune", "exits"
_PHASE_BATCHES = 1_000_000_000  # batches of phase k are counted from k times this
_EXIT_UPDATES = 4  # features cost far more than the exits that learn from them: one batch of them, several updates
_SAMPLES_PER_UPDATE = 16  # or more
_TEACHER_BYTES = 256_000_000  # of answers that are kept


@dataclass(frozen=True)
class Phase:
    """One training phase: its name, share of the training, highest rate, what it trains, and the loss of an update.

    A step is one batch; it makes ``updates`` of the weights. ``loss`` takes the number of the update.
    """

    name: str
    share: float
    rate: float
    modules: Mapping[str, nn.Module]
    loss: Callable[[int], torch.Tensor]
    updates: int = 1

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Everything that the phase changes."""
        return [parameter for module in self.modules.values() for parameter in module.parameters()]

    def optimizer(self) -> torch.optim.Optimizer:
        """A fresh one."""
        if self.name == DISTIL:
            return torch.optim.Adam(self.parameters, lr=self.rate)
        return torch.optim.SGD(self.parameters, lr=self.rate, momentum=0.9, nesterov=True, weight_decay=1e-4)


def training_phases(expansion: Expansion, source: BatchSource, recipe: Recipe) -> tuple[Phase, ...]:
    """The phases in which something is trained; those for which there is nothing leave their share to the others."""
    blocks = {block.id: block.module for block in expansion.added}
    exits = {exit_.id: exit_.module for exit_ in expansion.exits}
    losses = Losses(expansion, source, recipe)
    for_exits = (recipe.exit_share if blocks else 1.0) if exits else 0.0
    for_blocks = 1.0 - for_exits
    phases = (
        Phase(DISTIL, for_blocks * recipe.distil_share, recipe.distil_rate, blocks, losses.distil),
        Phase(TUNE, for_blocks * (1 - recipe.distil_share), recipe.tune_rate, blocks, losses.tune),
        Phase(EXITS, for_exits, recipe.exit_rate, exits, losses.exits, losses.exit_updates),
    )
    return tuple(phase for phase in phases if phase.modules)


def phase_steps(phases: Sequence[Phase], steps: int) -> dict[str, int]:
    """``steps`` shared among the phases; they add up to it."""
    bounds, share = [0], 0.0
    for phase in phases:
        share += phase.share
        bounds.append(round(steps * share))
    return {phase.name: bounds[k + 1] - bounds[k] for k, phase in enumerate(phases)}


class Losses:
    """The loss of one update in each phase: a function of its number, so that a resumed run repeats it."""

    def __init__(self, expansion: Expansion, source: BatchSource, recipe: Recipe) -> None:
        self._expansion = expansion
        self._source = source
        self._recipe = recipe
        self._ranges = MacsRanges(expansion) if expansion.added else None
        self._teachers: dict[tuple[int, int], torch.Tensor] = {}
        self._exit_batch = _ExitBatch(-1, {}, torch.empty(0), torch.empty(0))
        self.exit_updates = max(1, min(_EXIT_UPDATES, min(recipe.batch, len(source)) // _SAMPLES_PER_UPDATE))

    def distil(self, step: int) -> torch.Tensor:
        """Every added block imitates what it replaces, from the teacher's own input (§4.2, Eq. 1).

        The squared distance is divided by the variance of the target, so that all blocks weigh the same.
        """
        images, _ = self._source.batch(step)
        with torch.no_grad():
            features = self._expansion.traced.features(images)
        return torch.stack([imitation_error(block, features) for block in self._expansion.added]).sum()

    def tune(self, step: int) -> torch.Tensor:
        """A sampled path learns from the labels and from the full model's logits at a temperature."""
        images, labels = self._source.batch(_PHASE_BATCHES + step)
        teacher = self._teacher(_PHASE_BATCHES + step, images)
        logits = self._expansion.run(self._path(step), images).float()
        return self._answer_loss(logits, labels, teacher)

    def _path(self, step: int) -> Subnet:
        """The path that a tuning step trains."""
        assert self._ranges is not None
        seed = self._recipe.seed + step
        if self._recipe.sampling == "uniform" or step % 4 == 3:
            return self._ranges.sample(seed)
        return self._ranges.between(seed) if step % 4 == 1 else self._ranges.cheapest

    def _teacher(self, step: int, images: torch.Tensor) -> torch.Tensor:
        """The full model's logits [batch, classes] for the batch of ``step``, kept for when it comes round again."""
        key = self._source.key(step)
        if (known := self._teachers.get(key)) is not None:
            return known
        with torch.no_grad():
            logits = self._expansion.traced.features(images)[-1].float()
        if self._recipe.variants and (len(self._teachers) + 1) * logits.nbytes <= _TEACHER_BYTES:
            self._teachers[key] = logits
        return logits

    def exits(self, update: int) -> torch.Tensor:
        """Every exit learns like a path, from features that get no gradient; several updates share a batch of them."""
        step, part = divmod(update, self.exit_updates)
        if self._exit_batch.step != step:
            self._exit_batch = self._new_exit_batch(step)
        batch = self._exit_batch
        losses = []
        labels, teacher = (whole.tensor_split(self.exit_updates)[part] for whole in (batch.labels, batch.teacher))
        for exit_ in self._expansion.exits:
            features = batch.features[exit_.position].tensor_split(self.exit_updates)[part]
            losses.append(self._answer_loss(exit_.module(features).float(), labels, teacher))
        return torch.stack(losses).sum()

    def _new_exit_batch(self, step: int) -> _ExitBatch:
        """Features of the original path; in every other step those of a sampled path replace them where it passes.

        An exit has to answer behind an adapted subnet too.
        """
        images, labels = self._source.batch(2 * _PHASE_BATCHES + step)
        with torch.no_grad():
            features = dict(enumerate(self._expansion.traced.features(images)))
            teacher = features[len(features) - 1].float()
            if self._ranges is not None and step % 2:
                features |= self._expansion.features_along(self._ranges.sample(self._recipe.seed + step), images)
        return _ExitBatch(step, features, labels, teacher)

    def _answer_loss(self, logits: torch.Tensor, labels: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
        """Labels and the teacher's logits at a temperature, mixed. ``logits``, ``teacher``: [batch, classes]."""
        temperature = self._recipe.temperature
        imitation = functional.kl_div(
            functional.log_softmax(logits / temperature, dim=1),
            functional.log_softmax(teacher / temperature, dim=1),
            log_target=True,
            reduction="batchmean",
        )
        weight = self._recipe.label_weight
        return weight * functional.cross_entropy(logits, labels) + (1 - weight) * temperature**2 * imitation


@dataclass(frozen=True)
class _ExitBatch:
    """What the exits learn from in one step: features by cut point, labels [batch], teacher [batch, classes]."""

    step: int
    features: Mapping[int, torch.Tensor]
    labels: torch.Tensor
    teacher: torch.Tensor


def imitation_error(block: TrainableBlock, features: Sequence[torch.Tensor]) -> torch.Tensor:
    """Squared distance of a block from what it replaces over the variance of that; ``features`` at all cut points."""
    target = features[block.end].float()
    imitated = block.module(features[block.start]).float()
    return functional.mse_loss(imitated, target) / target.var().clamp_min(1e-8)


def distillation_errors(expansion: Expansion, samples: torch.Tensor) -> dict[str, float]:
    """For each added block, its ``imitation_error`` on ``samples``: prepared [batch, *input], not trained on."""
    with torch.no_grad():
        features = expansion.traced.features(samples)
        return {block.id: round(imitation_error(block, features).item(), 5) for block in expansion.added}
