"""A packaging job: model, data and recipe, and everything derived from them."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from device_sdk import __version__
from device_sdk.data.datasets import ImageDataset
from device_sdk.data.preprocessing import prepare
from device_sdk.profiling.profile import Profile
from packager.data.batches import WHOLE, BatchSource, Share
from packager.data.decoding import BatchDecoder, worker_count
from packager.data.image_set import ImageSet
from packager.data.target_data import TargetDataset
from packager.inputs.model_loader import LoadedModel
from packager.inputs.recipe import Recipe
from packager.inputs.weights import BranchWeights, tensors_digest
from packager.tasks import Classification, LearningTask
from packager.torch_device import resolve_device

Samples = ImageDataset | TargetDataset | ImageSet


@dataclass(frozen=True)
class Job:
    """Inputs to packaging: the model, its data, the recipe and the bundle's name.

    ``training`` and ``validation`` include the caller's reference. Negative training labels mean unlabelled: the full
    model's predictions are used instead. ``notes``: sentences on data left out by loading. ``device_profile``: measured
    latencies of an earlier bundle of the model, by which branches of exits survive.
    """

    model: LoadedModel
    training: Samples
    training_reference: str
    validation: Samples
    validation_reference: str
    recipe: Recipe
    name: str
    version: int = 1
    weights_sha256: str | None = None
    branch_weights: BranchWeights | None = None
    task: LearningTask = field(default_factory=Classification)
    notes: tuple[str, ...] = ()
    device_profile: Profile | None = None

    def description(self) -> dict[str, Any]:
        """Everything that the bundle depends on: jobs with equal descriptions make equal bundles."""
        return {
            "name": self.name,
            "version": self.version,
            "task": self.task.kind,
            "model": self.model.name,
            "module": _module_digest(self.model.module),
            "weights": self.weights_sha256,
            "training data": _digest(self.training),
            "validation data": _digest(self.validation),
            "recipe": self.recipe.choices(),
            "device profile": _profile_digest(self.device_profile),
            "branch weights": tensors_digest(self.branch_weights or {}),
            "pathweave": __version__,
        }

    def batches(self, share: Share = WHOLE, *, most: int | None = None, distortion: float = 0.0) -> BatchSource:
        """The training data as endless batches of at most ``most`` samples, of each the ``share`` of one process.

        ``distortion``: of the images of a classifier, from 0 to 1 (``training/distortion``).
        """
        recipe = self.recipe
        return BatchSource(
            self.training,
            self.model.preprocessing,
            batch=min(recipe.largest_batch, most or recipe.largest_batch),
            seed=recipe.seed,
            flip=recipe.flip,
            crop=recipe.crop,
            variants=recipe.variants,
            distortion=distortion,
            share=share,
            task=self.task,
            labeller=None if self._labelled() else _Labeller(self.model.module, resolve_device(recipe.device)),
        )

    def prepared(self, *, count: int | None = None) -> npt.NDArray[np.float32]:
        """Validation images, preprocessed [count, *input]; all, or ``count`` spread evenly."""
        return self._prepared(self.validation, _spread(len(self.validation), count))

    def validation_batches(
        self, *, count: int | None = None, batch: int = 64
    ) -> Iterator[tuple[npt.NDArray[np.float32], npt.NDArray[Any]]]:
        """Validation samples in batches: preprocessed images, labels [n, …]; without corrupt ones.

        All in stored order, or ``count`` spread evenly.
        """
        samples, chosen = self.validation, _spread(len(self.validation), count)
        parts = [chosen[first : first + batch] for first in range(0, len(chosen), batch)]
        if not isinstance(samples, ImageSet):
            for part in parts:
                yield self._as_input(samples.images[part]), samples.labels[part]
            return
        decoder = BatchDecoder(samples, dict(enumerate(parts)).get, fill=False, workers=worker_count())
        for step in range(len(parts)):
            decoded = decoder.batch(step)
            if len(decoded.positions):
                yield self._as_input(decoded.pixels), samples.labels[decoded.positions]

    def training_samples(self, count: int) -> torch.Tensor:
        """Up to ``count`` training images, preprocessed [count, *input], spread evenly, not augmented."""
        return torch.from_numpy(self._prepared(self.training, _spread(len(self.training), count)))

    def held_out(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Up to ``count`` validation samples, spread evenly: preprocessed images, labels [count, …]."""
        images, labels = zip(*self.validation_batches(count=count), strict=True)
        return torch.from_numpy(np.concatenate(images)), torch.from_numpy(np.concatenate(labels))

    def _labelled(self) -> bool:
        if self.task.kind != "classification":
            return True
        return bool((self.training.labels.astype(np.int64) >= 0).all())

    def _prepared(self, samples: Samples, chosen: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """The samples at ``chosen``, preprocessed; a corrupt one is replaced by the next readable one."""
        if not isinstance(samples, ImageSet):
            return self._as_input(samples.images[chosen])
        decoded = samples.read_filled(chosen)
        samples.note(decoded.corrupt)
        return self._as_input(decoded.pixels)

    def _as_input(self, pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        return prepare(pixels, self.model.preprocessing, input_shape=self.model.input_shape)


class _Labeller:
    """Labels prepared images with the full model's predictions, for unlabelled data."""

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        self._module = copy.deepcopy(module).to(device).eval()  # a copy, since the job's own may move to another device
        self._device = device

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return self._module(images.to(self._device)).argmax(1).cpu()


def _spread(total: int, count: int | None) -> npt.NDArray[np.int64]:
    return np.linspace(0, total - 1, total if count is None else min(count, total), dtype=np.int64)


def _module_digest(module: nn.Module) -> str:
    """A digest of layers and weights, to detect a model that changed under the same name."""
    layers = [(name, type(layer).__qualname__) for name, layer in module.named_modules()]
    return hashlib.sha256(f"{layers}{tensors_digest(module.state_dict())}".encode()).hexdigest()


def _profile_digest(profile: Profile | None) -> str | None:
    return None if profile is None else hashlib.sha256(msgspec.json.encode(profile)).hexdigest()


def _digest(dataset: Samples) -> str:
    if isinstance(dataset, ImageSet):
        return dataset.digest()
    digest = hashlib.sha256(repr((dataset.images.shape, dataset.class_names)).encode())
    digest.update(np.ascontiguousarray(dataset.images).data)
    digest.update(dataset.labels.tobytes())
    return digest.hexdigest()
