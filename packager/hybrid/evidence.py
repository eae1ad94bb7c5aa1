"""What both networks answer to routing samples and to held-out ones. Frozen features are computed once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from device_sdk.errors import DataError
from packager.hybrid.path_network import PathNetwork
from packager.inputs.job import Job
from packager.training.batches import BatchSource

Labels = npt.NDArray[np.int64]
_BATCH = 128


@dataclass(frozen=True)
class Answered:
    """Logits [count, classes] of one network."""

    routing: npt.NDArray[np.float32]
    held_out: npt.NDArray[np.float32]


class HybridEvidence:
    """Routing samples, from which the router learns, and held-out ones, by which everything is judged and tuned.

    ``views`` of each routing image: itself, then shifted and mirrored ones, in this order. Images are prepared for each
    network by its own job; both must list the same images.

    Raises:
        DataError: samples of one class only.
    """

    def __init__(
        self, networks: tuple[PathNetwork, PathNetwork], routing: tuple[Job, Job], held_out: tuple[Job, Job], views: int
    ) -> None:
        self.views = views
        self._known: dict[int, tuple[Tensor, Tensor]] = {}
        for network, routed, held in zip(networks, routing, held_out, strict=True):
            labels = routed.training.labels.astype(np.int64)
            images = (shown for view in range(views) for shown in _view(routed, view))
            held_labels: list[Labels] = []
            self._known[id(network)] = (
                network.features(images),
                network.features(_validated(held, held_labels)),
            )
            self.routing_labels: Labels = np.tile(labels, views)
            self.held_out_labels: Labels = np.concatenate(held_labels).astype(np.int64)
        for what, labels in (("routing", self.routing_labels), ("validation", self.held_out_labels)):
            if len(np.unique(labels)) < 2:
                raise DataError(f"the {what} samples are all of one class", hint="give samples of all classes")

    def answers(self, network: PathNetwork) -> Answered:
        """The logits of one of the two networks, as it is now."""
        routing, held_out = self._known[id(network)]
        return Answered(network.answers(routing), network.answers(held_out))


def _view(job: Job, number: int) -> Iterator[Tensor]:
    """All images in stored order: as they are, or one augmented edition of them."""
    source = BatchSource(job.training, job.model.preprocessing, batch=_BATCH, seed=job.recipe.seed)
    for start in range(0, len(job.training), _BATCH):
        images, _ = source.plain(start, _BATCH)
        yield images if not number else _moved(images, number, start, job)


def _moved(images: Tensor, number: int, start: int, job: Job) -> Tensor:
    """Each image shifted by up to ``crop`` of its side, every second one mirrored; borders repeat."""
    random = torch.Generator().manual_seed((job.recipe.seed * 1_000_003 + number) * 1_000_003 + start)
    side = min(images.shape[2:])
    most = round(job.recipe.crop * side)
    shifts = torch.randint(-most, most + 1, (len(images), 2), generator=random)
    mirrored = torch.rand(len(images), generator=random) < 0.5
    height, width = images.shape[2:]
    rows = (torch.arange(height)[None] + shifts[:, :1]).clamp(0, height - 1)
    columns = (torch.arange(width)[None] + shifts[:, 1:]).clamp(0, width - 1)
    moved = images[torch.arange(len(images))[:, None, None], :, rows[:, :, None], columns[:, None, :]]
    moved = moved.permute(0, 3, 1, 2)
    if job.recipe.flip:
        moved = torch.where(mirrored[:, None, None, None], moved.flip(3), moved)
    return moved.contiguous()


def _validated(job: Job, labels: list[Labels]) -> Iterator[Tensor]:
    for images, truth in job.validation_batches(batch=_BATCH):
        labels.append(truth)
        yield torch.from_numpy(images)
