"""What a packaging run starts from: model, data and recipe, and all that follows from them alone."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from device_sdk import __version__
from device_sdk.data.datasets import ImageDataset
from device_sdk.data.preprocessing import prepare
from packager.branch_weights import BranchWeights
from packager.digests import tensors_digest
from packager.model_loader import LoadedModel
from packager.recipe import Recipe
from packager.target_data import TargetDataset
from packager.tasks import Classification, LearningTask
from packager.training.batches import WHOLE, BatchSource, Share


@dataclass(frozen=True)
class Job:
    """What to package: the model, its data, the recipe and how the bundle is called.

    ``training`` and ``validation`` carry the reference that the caller used for them.
    """

    model: LoadedModel
    training: ImageDataset | TargetDataset
    training_reference: str
    validation: ImageDataset | TargetDataset
    validation_reference: str
    recipe: Recipe
    name: str
    version: int = 1
    weights_sha256: str | None = None
    branch_weights: BranchWeights | None = None
    task: LearningTask = field(default_factory=Classification)

    def description(self) -> dict[str, Any]:
        """Everything that the bundle depends on: two jobs with equal descriptions make the same bundle."""
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
            "branch weights": tensors_digest(self.branch_weights or {}),
            "pathweave": __version__,
        }

    def batches(self, share: Share = WHOLE) -> BatchSource:
        """The training data as endless batches; of each the ``share`` of one process."""
        recipe = self.recipe
        return BatchSource(
            self.training,
            self.model.preprocessing,
            batch=recipe.largest_batch,
            seed=recipe.seed,
            flip=recipe.flip,
            crop=recipe.crop,
            variants=recipe.variants,
            share=share,
            task=self.task,
        )

    def prepared(self, *, count: int | None = None) -> npt.NDArray[np.float32]:
        """Validation images as the model takes them, [count, *input]; spread evenly when only some are wanted."""
        images = self.validation.images
        if count is not None:
            images = images[_spread(len(images), count)]
        return prepare(images, self.model.preprocessing, input_shape=self.model.input_shape)

    def training_samples(self, count: int) -> torch.Tensor:
        """Up to ``count`` training images as the model takes them, [count, *input]; spread evenly, not augmented."""
        images = self.training.images[_spread(len(self.training), count)]
        return torch.from_numpy(prepare(images, self.model.preprocessing, input_shape=self.model.input_shape))

    def held_out(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Up to ``count`` validation samples, spread evenly: images as ``prepared``, labels [count, …]."""
        labels = self.validation.labels[_spread(len(self.validation), count)]
        return torch.from_numpy(self.prepared(count=count)), torch.from_numpy(labels)


def _spread(total: int, count: int) -> npt.NDArray[np.int64]:
    return np.linspace(0, total - 1, min(count, total), dtype=np.int64)


def _module_digest(module: nn.Module) -> str:
    """Layers and weights, so that a model that changes under its name is another one."""
    layers = [(name, type(layer).__qualname__) for name, layer in module.named_modules()]
    return hashlib.sha256(f"{layers}{tensors_digest(module.state_dict())}".encode()).hexdigest()


def _digest(dataset: ImageDataset | TargetDataset) -> str:
    digest = hashlib.sha256(repr((dataset.images.shape, dataset.class_names)).encode())
    digest.update(dataset.images.data)
    digest.update(dataset.labels.tobytes())
    return digest.hexdigest()
