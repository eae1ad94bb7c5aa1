"""A model as packaging takes it: a torch module, with what it takes and answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

from device_sdk.data.preprocessing import AnyPreprocessing
from packager.inputs.noise import noise

Shape = tuple[int, ...]  # channels, then height and width, or a length


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model to be packaged.

    ``module`` is in evaluation mode, float32, on the CPU; [batch, *input_shape] -> logits [batch, classes].
    ``input_shape`` is [channels, height, width]; of texts [rows, tokens], of sounds [1, samples]. ``class_names`` and
    ``licence`` are None if unknown; ``source``: the
    origin of module and weights. ``class_ids``: additional names of each class, or empty. ``notes``: sentences on what
    is unusual about the model. ``blobs``: what its preprocessing needs beside the manifest, by digest.
    ``weights_inside``: it came with its weights, from a file or a folder.
    """

    module: nn.Module
    input_shape: Shape
    preprocessing: AnyPreprocessing
    class_names: tuple[str, ...] | None
    name: str
    licence: str | None
    source: str
    class_ids: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()
    blobs: Mapping[str, bytes] = field(default_factory=dict)
    weights_inside: bool = False

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width (UsageError where the model takes no images)."""
        self.preprocessing.of_images()
        channels, height, width = self.input_shape
        return channels, height, width

    def noise(self, count: int, *, seed: int = 0) -> torch.Tensor:
        """Random samples [count, *input_shape] of the model's kind."""
        return noise(self.preprocessing, self.input_shape, self.blobs, count=count, seed=seed)
