"""Training batches of a hybrid: the same augmented images prepared for both networks, with what is known of them.

The original global model's answers to them, and its features for the turns of its last blocks, are computed once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from packager.data.batches import BatchSource
from packager.hybrid.path_network import PathNetwork
from packager.training.caches import FeatureCache, TeacherAnswers

_ANSWERS_BYTES = 256_000_000
_FEATURES = 0  # their name in the cache


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
