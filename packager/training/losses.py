"""The losses of the training phases (AdaptiveNet §4.2; the exits after MEEdge)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from device_sdk.errors import UsageError
from device_sdk.supernet.blocks import TensorSpec
from device_sdk.supernet.plan import Subnet
from packager.data.batches import BatchSource
from packager.inputs.recipe import Recipe
from packager.supernet.blocks.trainable import TrainableBlock, evaluated
from packager.supernet.expansion import Expansion
from packager.supernet.macs_ranges import MacsRanges
from packager.tasks import Classification, LearningTask, mixed_loss
from packager.tracing.traced_model import Feature, tensors_of
from packager.training.caches import FeatureCache, TeacherAnswers

_PHASE_BATCHES = 1_000_000_000  # batches of phase k are counted from k times this
_TUNE, _EXITS, _STATISTICS = (k * _PHASE_BATCHES for k in (1, 2, 3))
_EXIT_UPDATES = 4  # updates per batch of features: computing the features costs far more than training the exits
_SAMPLES_PER_UPDATE = 16  # or more
_LEAST_SAMPLES = 2  # of a process in an update: batch-norm needs them
_SAMPLES = 2
_TOLERANCE = 1e-3  # of the largest magnitude


class Losses:
    """The loss of one update in each phase: a pure function of the update's number, so a resumed run repeats it.

    In distributed training each process computes the loss of its ``source``'s share of the batch. ``features``,
    ``answers``: caches of the originals' features and of the full model's logits, where batches repeat.

    Raises:
        UsageError: a batch is too small for so many processes.
    """

    def __init__(
        self,
        expansion: Expansion,
        source: BatchSource,
        recipe: Recipe,
        *,
        device: torch.device | None = None,
        task: LearningTask | None = None,
    ) -> None:
        self._task = task or Classification()
        self._expansion = expansion
        self._source = source
        self._recipe, self._seed = recipe, recipe.seed
        self._device = device or torch.device("cpu")
        self._format = training_format(expansion, self._device)
        self.features: FeatureCache | None = None
        self._ranges = MacsRanges(expansion) if expansion.trained else None
        self.answers: TeacherAnswers | None = None
        self._exit_batch = _ExitBatch(-1, {}, torch.empty(0), torch.empty(0))
        self.batch = source.batch_size
        self.exit_updates = max(1, min(_EXIT_UPDATES, min(recipe.largest_batch, len(source)) // _SAMPLES_PER_UPDATE))
        self._parts = 1  # updates among which a batch of the source is divided
        self._halved = False
        self._whole: tuple[int, torch.Tensor, torch.Tensor] | None = None  # the last batch that was divided
        self._share = source.share
        self.least_batch = _LEAST_SAMPLES * self._share.count * (self.exit_updates if expansion.exits else 1)
        if self._share.count > 1 and self.batch < self.least_batch:
            raise UsageError(
                f"a batch of {self.batch} is too small for {self._share.count} processes",
                hint=f"start fewer, or use batches of {self.least_batch} samples or more",
            )

    @property
    def samples(self) -> int:
        """Samples per batch in this process."""
        return self._share.of(self.batch)

    def distil(self, step: int) -> torch.Tensor:
        """Added blocks imitate the blocks that they replace (§4.2, Eq. 1).

        Either all of them, each on the teacher's features, or those of a sampled path, on the path's own features. The
        squared distance is divided by the variance of the target, so all blocks have the same weight.
        """
        images, _ = self._batch(0, step)
        with torch.no_grad():
            features = self._expansion.traced.features(images)
        if self._recipe.distil_from == "teacher":
            return torch.stack([imitation_error(block, features) for block in self._expansion.trained]).sum()
        assert self._ranges is not None
        path = self._ranges.sample(self._seed + step)
        imitated = self._expansion.features_along(path, images)
        ends = [block.end for block in self._expansion.trained if block.id in path.block_ids]
        return torch.stack([normalised_mse(imitated[end], features[end]) for end in ends]).mean()

    def tune(self, step: int) -> torch.Tensor:
        """Loss of a sampled path against the labels and the full model's logits at a temperature."""
        images, labels = self._batch(_TUNE, step)
        teacher = self._teacher(_TUNE, step, images)
        logits = self._expansion.run(self._path(step), images).float()
        return self._answer_loss(logits, labels, teacher)

    def statistics(self, step: int) -> tuple[Subnet, torch.Tensor]:
        """A path and the images [batch, *input] on which its batch-norm statistics are recomputed.

        Paths are drawn uniformly, or as in tuning where other paths must stay unchanged.
        """
        assert self._ranges is not None
        leaves_others = self._recipe.sampling == "cheapest"
        path = self._path(step) if leaves_others else self._ranges.sample(self._seed + step)
        return path, self._batch(_STATISTICS, step)[0]

    def exits(self, update: int) -> torch.Tensor:
        """The tuning loss of every exit, on detached features; consecutive updates share one batch of features."""
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

    def take(self, batch: int) -> None:
        """Split the source's batches into updates of ``batch`` samples, a power of two below the source's batch."""
        whole = self._source.batch_size
        self._parts = max(1, whole // batch)
        self.batch = max(self.least_batch, whole // self._parts // (2 if self._halved else 1))
        self._whole = None

    def halve_batch(self) -> bool:
        """Use half of each batch from now on, after running out of memory. False if it cannot be halved."""
        if self.batch // 2 < self.least_batch:
            return False
        self.batch //= 2
        self._halved = True
        self.features = None  # it holds whole batches
        self._exit_batch = _ExitBatch(-1, {}, torch.empty(0), torch.empty(0))
        return True

    def _batch(self, first: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Images and labels of update ``step`` of the phase whose batches are counted from ``first``."""
        number, part = divmod(step, self._parts)
        if self._parts == 1:
            images, labels = self._source.batch(first + number)
        else:
            if self._whole is None or self._whole[0] != first + number:
                self._whole = (first + number, *self._source.batch(first + number))
            images, labels = (whole.tensor_split(self._parts)[part] for whole in self._whole[1:])
        images = images[: self.samples].to(self._device, memory_format=self._format)
        return images, labels[: self.samples].to(self._device)

    def _path(self, step: int) -> Subnet:
        """The path that a tuning step trains."""
        assert self._ranges is not None
        sampling, seed = self._recipe.sampling, self._seed + step
        if sampling == "uniform" or (sampling == "sandwich" and step % 4 == 3):
            return self._ranges.sample(seed)
        return self._ranges.between(seed) if step % 2 else self._ranges.cheapest

    def _teacher(self, first: int, step: int, images: torch.Tensor) -> torch.Tensor:
        """The full model's logits [batch, classes] for the batch of ``step``, cached if batches repeat."""
        number, part = divmod(step, self._parts)
        edition, position = self._source.key(first + number)
        key = (edition, position * self._parts + part, self.samples)
        if self.answers is not None and (known := self.answers.get(key)) is not None:
            return known.to(self._device)
        with torch.no_grad():
            logits = self._expansion.traced.answer(images).float()
        if self.answers is not None:
            self.answers.put(key, logits)
        return logits

    def _new_exit_batch(self, step: int) -> _ExitBatch:
        """Features of the original path; in every second step those of a sampled path replace them where it passes.

        This trains exits for use behind adapted subnets too.
        """
        images, labels = self._batch(_EXITS, step)
        with torch.no_grad():
            features = self._original_features(_EXITS + step, images)
            teacher = features[len(self._expansion.originals)].float()
            if self._ranges is not None and step % 2:
                path = self._ranges.sample(self._seed + step)
                features |= _single(self._expansion.features_along(path, images))
        return _ExitBatch(step, features, labels, teacher)

    def _original_features(self, step: int, images: torch.Tensor) -> dict[int, torch.Tensor]:
        """The originals' features for the batch of ``step``, by cut point; from the cache if present."""
        if self.features is None:
            return _single(dict(enumerate(self._expansion.traced.features(images))))
        edition, number = self._source.key(step)
        number += edition * self._source.batches_per_epoch
        features = self.features.get(number)
        if features is None:
            features = self.features.put(number, _single(dict(enumerate(self._expansion.traced.features(images)))))
        return {position: value.to(self._device) for position, value in features.items()}

    def _answer_loss(self, answers: torch.Tensor, labels: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
        """The task's loss against the labels, mixed with its loss against the teacher's logits."""
        temperature, label_weight = self._recipe.temperature, self._recipe.label_weight
        return mixed_loss(self._task, answers, labels, teacher, temperature=temperature, label_weight=label_weight)


@dataclass(frozen=True)
class _ExitBatch:
    """A training batch for exits: features by cut point, labels [batch], teacher's logits [batch, classes]."""

    step: int
    features: Mapping[int, torch.Tensor]
    labels: torch.Tensor
    teacher: torch.Tensor


def _single(features: Mapping[int, Feature]) -> dict[int, torch.Tensor]:
    """The features at cut points with a single tensor, the only ones that have exits."""
    return {position: feature for position, feature in features.items() if isinstance(feature, torch.Tensor)}


def imitation_error(block: TrainableBlock, features: Sequence[Feature]) -> torch.Tensor:
    """``normalised_mse`` of a block on the teacher's ``features`` at all cut points."""
    return normalised_mse(block.run(dict(enumerate(features))), features[block.end])


def normalised_mse(imitated: Feature, target: Feature) -> torch.Tensor:
    """Mean squared error divided by the variance of the target, differentiable; averaged over several tensors."""
    pairs = zip(tensors_of([imitated]), tensors_of([target]), strict=True)
    errors = [
        functional.mse_loss(found.float(), wanted.float()) / wanted.float().var().clamp_min(1e-8)
        for found, wanted in pairs
    ]
    return torch.stack(errors).mean()


def distillation_errors(expansion: Expansion, samples: torch.Tensor, *, batch: int = 64) -> dict[str, float]:
    """``imitation_error`` of each added block on held-out ``samples``, prepared [count, *input].

    They run in batches of ``batch``.
    """
    distances = {block.id: 0.0 for block in expansion.added}
    targets = {block.end: _Spread() for block in expansion.added}
    with torch.no_grad():
        for images in samples.split(batch):
            features = expansion.traced.features(images)
            for end, spread in targets.items():
                for tensor in tensors_of([features[end]]):
                    spread.add(tensor)
            for block in expansion.added:
                imitated, wanted = (
                    tensors_of([feature]) for feature in (block.run(dict(enumerate(features))), features[block.end])
                )
                for own, target in zip(imitated, wanted, strict=True):
                    distances[block.id] += float(((own - target) ** 2).sum(dtype=torch.float64))
    return {block.id: round(targets[block.end].relative(distances[block.id]), 5) for block in expansion.added}


class _Spread:
    """Running variance over batches of values."""

    def __init__(self) -> None:
        self._count, self._sum, self._squares = 0, 0.0, 0.0

    def add(self, values: torch.Tensor) -> None:
        values = values.double()
        self._count += values.numel()
        self._sum += float(values.sum())
        self._squares += float((values**2).sum())

    def relative(self, squared_distance: float) -> float:
        """The mean squared distance divided by the variance."""
        mean = self._sum / self._count
        variance = max(self._squares - self._count * mean**2, 0.0) / max(self._count - 1, 1)
        return squared_distance / self._count / max(variance, 1e-8)


def exit_cache_shapes(expansion: Expansion, *, batch: int) -> dict[int, tuple[int, ...]]:
    """Shapes per batch in the cache for training exits, by cut point: [batch, *features], and the logits."""
    positions = {exit_.position for exit_ in expansion.exits} | {len(expansion.originals)}
    return {position: (batch, *expansion.traced.tensors[position].shape) for position in sorted(positions)}


def training_format(expansion: Expansion, device: torch.device) -> torch.memory_format:
    """``channels_last`` on a CPU, for images, if every part computes the same from channels-last inputs.

    CPU convolutions are faster in it: a tuning step of ResNet-56 takes 0.8 of the time (2 threads). Layout-sensitive
    operators such as ``view`` may fail.
    """
    cuts = expansion.traced.cuts
    if device.type != "cpu" or len(cuts[0][0].shape) != 3:
        return torch.contiguous_format
    parts = [(block.module, (*block.taps, block.start)) for block in expansion.blocks]
    parts += [(exit_.module, (exit_.position,)) for exit_ in expansion.exits]
    for module, read in parts:
        if not _bears_channels_last(module, [spec for position in read for spec in cuts[position]]):
            return torch.contiguous_format
    return torch.channels_last


def _bears_channels_last(module: nn.Module, specs: list[TensorSpec]) -> bool:
    random = torch.Generator().manual_seed(0)
    inputs = [torch.randn(_SAMPLES, *spec.shape, generator=random) for spec in specs]
    try:
        with evaluated(module):
            expected = tensors_of([module(*inputs)])
            found = tensors_of([module(*(_channels_last(tensor) for tensor in inputs))])
    except RuntimeError:  # of an operator that needs another layout
        return False
    pairs = zip(found, expected, strict=True)
    return all(bool((one - other).abs().max() <= _TOLERANCE * other.abs().max()) for one, other in pairs)


def _channels_last(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor
