"""Cached features of the frozen originals, as the branches at a cut point read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from device_sdk.errors import StorageError
from packager.branch_zoo.modules import stem_of
from packager.branch_zoo.specs import layout_of
from packager.data.batches import BatchSource
from packager.tracing.traced_model import TracedModel
from packager.training.caches import FeatureCache

_STEMMED_AT_ONCE = 64  # held-out samples in one forward pass


@dataclass(frozen=True)
class FeatureBatch:
    """Batch of features on which branches at one cut point are trained or judged.

    ``stemmed``: their stem's result [batch, channels, *sides]; ``labels`` [batch]; ``teacher``: the full model's logits
    [batch, classes].
    """

    stemmed: torch.Tensor
    labels: torch.Tensor
    teacher: torch.Tensor


class StemmedBatches:
    """Training batches at several cut points, in float16 on disk: each passes through the originals only once.

    ``source`` repeats its batches. If the first ``wanted`` of them exceed ``limit_bytes``, as many as fit are used, at
    least one; ``used`` is their number.
    """

    def __init__(
        self,
        traced: TracedModel,
        source: BatchSource,
        positions: Sequence[int],
        *,
        folder: Path,
        limit_bytes: float,
        wanted: int,
        device: torch.device,
    ) -> None:
        assert source.distinct_batches, "the source never repeats a batch"
        self._traced, self._source, self._device = traced, source, device
        self._stems = {position: stem_at(traced, position) for position in positions}
        shapes = batch_shapes(traced, positions, batch=source.batch_size)
        self.used = min(wanted, source.distinct_batches, batches_within(shapes, limit_bytes))
        self._labels: dict[int, torch.Tensor] = {}
        self._order: tuple[int, torch.Tensor] = (-1, torch.empty(0))
        try:
            self._cache: FeatureCache | None = FeatureCache(folder, batches=self.used, shapes=shapes)
        except StorageError:  # disk full: computed again each time
            self._cache = None

    def at(self, position: int, step: int) -> FeatureBatch:
        """The batch of ``step`` at a cut point; a function of the step. All batches come once per epoch, shuffled."""
        epoch, place = divmod(step, self.used)
        if self._order[0] != epoch:
            self._order = (epoch, torch.randperm(self.used, generator=torch.Generator().manual_seed(epoch)))
        return self._numbered(position, int(self._order[1][place]))

    def few(self, position: int, share: float) -> list[FeatureBatch]:
        """Batches at a cut point of a ``share`` of the images, each image once."""
        whole = min(self.used, self._source.batches_per_epoch)
        return [self._numbered(position, number) for number in range(max(1, round(share * whole)))]

    def _numbered(self, position: int, number: int) -> FeatureBatch:
        found = self._known(number) or self._computed(number)
        return FeatureBatch(
            found[position].to(self._device), self._labels[number].to(self._device), found[self._end].to(self._device)
        )

    def close(self) -> None:
        """Delete the cache."""
        if self._cache is not None:
            self._cache.close()

    @property
    def _end(self) -> int:
        return len(self._traced.blocks)

    def _known(self, number: int) -> Mapping[int, torch.Tensor] | None:
        return self._cache.get(number) if self._cache is not None and number in self._labels else None

    def _computed(self, number: int) -> Mapping[int, torch.Tensor]:
        images, labels = self._source.batch(number)
        self._labels[number] = labels
        with torch.no_grad():
            features = self._traced.features(images.to(self._device))
            found = {position: stem(_single(features[position])) for position, stem in self._stems.items()}
            found[self._end] = _single(features[self._end])
        return self._cache.put(number, found) if self._cache is not None else found


def batch_shapes(traced: TracedModel, positions: Sequence[int], *, batch: int) -> dict[int, tuple[int, ...]]:
    """Shapes per batch in the cache, by cut point: stemmed features, and the logits."""
    shapes: dict[int, tuple[int, ...]] = {}
    for position in positions:
        layout = layout_of(traced.tensors[position].shape)
        assert layout is not None, position
        shapes[position] = (batch, layout.channels, *layout.pooled)
    return shapes | {len(traced.blocks): (batch, *traced.tensors[-1].shape)}


def batches_within(shapes: Mapping[int, Sequence[int]], limit_bytes: float) -> int:
    """The number of batches that fit into a cache of ``limit_bytes``, at least 1."""
    return max(1, int(limit_bytes // FeatureCache.size_bytes(batches=1, shapes=shapes)))


def positions_together(
    traced: TracedModel, positions: Sequence[int], *, batch: int, wanted: int, limit_bytes: float
) -> tuple[int, ...]:
    """The first of ``positions``, and those behind it for which ``wanted`` batches fit beside its own."""
    count = 1
    while count < len(positions):
        shapes = batch_shapes(traced, positions[: count + 1], batch=batch)
        if batches_within(shapes, limit_bytes) < wanted:
            break
        count += 1
    return tuple(positions[:count])


def stem_at(traced: TracedModel, position: int) -> nn.Module:
    """The stem of all branches at a cut point."""
    layout = layout_of(traced.tensors[position].shape)
    assert layout is not None, position
    return stem_of(layout)


def held_out_batches(
    traced: TracedModel,
    positions: Sequence[int],
    images: torch.Tensor,
    labels: torch.Tensor,
    *,
    device: torch.device,
) -> dict[int, FeatureBatch]:
    """Held-out ``images`` [count, *input], as branches at each of the cut points are judged on them."""
    stems = {position: stem_at(traced, position) for position in positions}
    stemmed: dict[int, list[torch.Tensor]] = {position: [] for position in positions}
    teacher = []
    with torch.no_grad():
        for part in images.split(_STEMMED_AT_ONCE):
            features = traced.features(_quick(part).to(device))
            for position, stem in stems.items():
                stemmed[position].append(_quick(stem(_single(features[position]))))
            teacher.append(_single(features[len(traced.blocks)]).float())
    logits, labels = torch.cat(teacher), labels.to(device)
    return {position: FeatureBatch(_quick(torch.cat(parts)), labels, logits) for position, parts in stemmed.items()}


def _quick(features: torch.Tensor) -> torch.Tensor:
    """In the layout in which convolutions are fastest."""
    return features.contiguous(memory_format=torch.channels_last) if features.dim() == 4 else features


def _single(feature: object) -> torch.Tensor:
    assert isinstance(feature, torch.Tensor), "branches read one tensor"
    return feature
