"""Samples of a hybrid: training batches, the same augmented images prepared for both networks, and the answers of both
to routing and held-out samples. What frozen blocks make of them is computed once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from device_sdk.errors import DataError
from packager.data.batches import BatchSource
from packager.hybrid.job import HybridRecipe
from packager.hybrid.path_network import PathNetwork
from packager.inputs.job import Job
from packager.training.caches import FeatureCache, TeacherAnswers

_ANSWERS_BYTES = 256_000_000
_FEATURES = 0  # their name in the cache
Labels = npt.NDArray[np.int64]
_BATCH = 128
_FLOAT_BYTES = 4


@dataclass(frozen=True)
class BaseBatch:
    """Images for the base [batch, *input], labels [batch], logits of the original global [batch, classes] or None."""

    images: Tensor
    labels: Tensor
    teacher: Tensor | None


@dataclass(frozen=True)
class GlobalBatch:
    """Images for the base [batch, *input], labels [batch], and the global network's features where its copies begin."""

    images: Tensor
    labels: Tensor
    features: Tensor


class HybridBatches:
    """Batches by step: pure functions of the step. ``base`` and ``global_`` list the same images in the same order,
    ``plain`` those of the base without augmentation; ``distorted``: images for both, which the global learns from.

    ``folder`` holds the caches. The global's turns use as many batches as fit into ``cache_mb`` of features.
    """

    def __init__(
        self,
        base: BatchSource,
        plain: BatchSource,
        global_: BatchSource,
        distorted: tuple[BatchSource, BatchSource],
        network: PathNetwork,
        folder: Path,
        *,
        classes: int,
        features: tuple[int, ...],
        cache_mb: float,
        run: Callable[[Callable[[Tensor], Tensor], Tensor], Tensor],
    ) -> None:
        self._base, self._plain, self._global, self._network, self._folder = base, plain, global_, network, folder
        self._distorted = distorted
        self._answers = TeacherAnswers(folder / "hybrid-answers.f32", shape=(classes,), limit_bytes=_ANSWERS_BYTES)
        self._run = run
        self._shapes = {_FEATURES: (base.batch_size, *features)}
        fitting = int(cache_mb * 1e6) // max(1, FeatureCache.size_bytes(batches=1, shapes=self._shapes))
        distinct = base.distinct_batches or base.batches_per_epoch
        self._most = max(1, min(fitting, distinct))
        self._cache: FeatureCache | None = None

    def for_base(self, step: int, *, taught: bool = True) -> BaseBatch:
        """The batch of a step of the base; the teacher's answers are left out if the base is not ``taught``."""
        images, labels = self._base.batch(step)
        if not taught:
            return BaseBatch(images, labels, None)
        key = (*self._base.key(step), len(labels))
        known = self._answers.get(key)
        if known is None:
            known = self._run(self._network.original, self._global.batch(step)[0]).float().cpu()
            self._answers.put(key, known)
        return BaseBatch(images, labels, known)

    def plain(self, step: int) -> Tensor:
        """Images for the base, shuffled and not augmented: [batch, *input]."""
        return self._plain.batch(step)[0]

    def for_global(self, step: int) -> GlobalBatch:
        """The batch of a step of the global network: one of the first that fit into the cache."""
        step %= self._most
        base, global_ = self._distorted
        images, labels = base.batch(step)
        if self._cache is None:
            self._cache = FeatureCache(self._folder, batches=self._most, shapes=self._shapes)
        known = self._cache.get(step)
        if known is None:
            features = self._run(self._network.head, global_.batch(step)[0]).float().cpu()
            known = self._cache.put(step, {_FEATURES: features})
        return GlobalBatch(images, labels, known[_FEATURES])

    def close(self) -> None:
        """Delete the features."""
        if self._cache is not None:
            self._cache.close()
            self._cache = None


@dataclass(frozen=True)
class Answered:
    """Logits [count, classes] of one network."""

    routing: npt.NDArray[np.float32]
    held_out: npt.NDArray[np.float32]


@dataclass(frozen=True)
class _Known:
    """Features of one network: of the routing samples, view after view, and of the held-out ones."""

    routing: Tensor
    held_out: Tensor


class HybridEvidence:
    """Routing samples, from which the router learns, and held-out ones, by which everything is judged and tuned.

    ``networks``: base and global; ``routing``, ``held_out``: jobs that prepare the same validation images for each.
    ``views`` of each routing image: itself, then shifted and mirrored ones. There are fewer views, then fewer images,
    where their features would take more than the recipe's ``cache_mb`` of memory.

    Raises:
        DataError: samples of one class only.
    """

    def __init__(
        self,
        networks: tuple[PathNetwork, PathNetwork],
        routing: tuple[Job, Job],
        held_out: tuple[Job, Job],
        recipe: HybridRecipe,
        *,
        feature_values: int,
    ) -> None:
        fitting = max(1, int(recipe.cache_mb * 1e6) // (_FLOAT_BYTES * feature_values))
        count = min(recipe.router_samples, len(routing[0].validation), fitting)
        self.views = max(1, min(recipe.router_views, fitting // count))
        self._known: dict[int, _Known] = {}
        for network, routed, held in zip(networks, routing, held_out, strict=True):
            routing_features, labels = _features(network, routed, count, self.views)
            held_features, self.held_out_labels = _features(network, held, fitting, 1)
            self.routing_labels: Labels = np.tile(labels, self.views)
            self._known[id(network)] = _Known(routing_features, held_features)
        for what, labels in (("routing", self.routing_labels), ("validation", self.held_out_labels)):
            if len(np.unique(labels)) < 2:
                raise DataError(f"the {what} samples are all of one class", hint="give samples of all classes")

    def answers(self, network: PathNetwork) -> Answered:
        """The logits of one of the two networks, as it is now."""
        known = self._known[id(network)]
        return Answered(network.answers(known.routing), network.answers(known.held_out))


def _features(network: PathNetwork, job: Job, count: int, views: int) -> tuple[Tensor, Labels]:
    """Features of up to ``count`` validation images, view after view, and the labels of the images."""
    found: list[list[Tensor]] = [[] for _ in range(views)]
    labels: list[Labels] = []
    for number, (images, truth) in enumerate(job.validation_batches(count=count, batch=_BATCH)):
        labels.append(truth.astype(np.int64))
        for view, features in enumerate(found):
            shown = torch.from_numpy(images)
            features.append(network.head(shown if not view else _moved(shown, view, number, job)).cpu())
    return torch.cat([part for features in found for part in features]), np.concatenate(labels)


def _moved(images: Tensor, view: int, batch: int, job: Job) -> Tensor:
    """Each image shifted by up to ``crop`` of its side, every second one mirrored; borders repeat."""
    random = torch.Generator().manual_seed((job.recipe.seed * 1_000_003 + view) * 1_000_003 + batch)
    height, width = images.shape[2:]
    most = round(job.recipe.crop * min(height, width))
    shifts = torch.randint(-most, most + 1, (len(images), 2), generator=random)
    mirrored = torch.rand(len(images), generator=random) < 0.5
    rows = (torch.arange(height)[None] + shifts[:, :1]).clamp(0, height - 1)
    columns = (torch.arange(width)[None] + shifts[:, 1:]).clamp(0, width - 1)
    # [count, height, width, channels]
    moved = images[torch.arange(len(images))[:, None, None], :, rows[:, :, None], columns[:, None, :]]
    moved = moved.permute(0, 3, 1, 2)
    if job.recipe.flip:
        moved = torch.where(mirrored[:, None, None, None], moved.flip(3), moved)
    return moved.contiguous()
