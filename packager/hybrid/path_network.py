"""One of a hybrid's networks as torch modules: the path of its copied blocks, or of originals where none is copied."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from device_sdk.supernet.plan import Edge, Subnet
from packager.supernet.blocks.trainable import TrainableBlock
from packager.supernet.expansion import Expansion
from packager.training.recalibration import recalibrate

State = dict[str, dict[str, Tensor]]
_BATCH = 256


class PathNetwork:
    """The path through all copies of ``expansion``: its answers, and its trained parameters.

    Originals are frozen in evaluation mode; ``tail`` is all that follows the first copy. ``device``: where the modules
    are; ``memory_format``: of the images.
    """

    def __init__(
        self,
        expansion: Expansion,
        device: torch.device,
        memory_format: torch.memory_format = torch.contiguous_format,
    ) -> None:
        copies = {block.start: block for block in expansion.added if _is_copy(block)}
        self._expansion, self._originals = expansion, expansion.originals
        self._blocks = [copies.get(block.start, block) for block in expansion.originals]
        self._device, self._format = device, memory_format
        self.cut = min(copies, default=len(self._blocks))
        self.copies = {block.id: block.module for block in copies.values()}

    @property
    def path(self) -> Subnet:
        """The path of copies and originals."""
        return Subnet(tuple(Edge(block.id) for block in self._blocks))

    @property
    def modules(self) -> list[nn.Module]:
        """All modules, the originals' too."""
        return [block.module for block in (*self._originals, *self._blocks)]

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Of the copies."""
        return [parameter for module in self.copies.values() for parameter in module.parameters()]

    def head(self, images: Tensor) -> Tensor:
        """The frozen features at ``cut``, without gradients: [batch, *input] -> [batch, *features]."""
        with torch.no_grad():
            return _through(self._blocks[: self.cut], self._placed(images))

    def tail(self, features: Tensor) -> Tensor:
        """Features at ``cut`` -> logits [batch, classes]."""
        return _through(self._blocks[self.cut :], features.to(self._device))

    def original(self, images: Tensor) -> Tensor:
        """The logits of the original model, without gradients."""
        with torch.no_grad():
            return _through(self._originals, self._placed(images))

    def answers(self, features: Tensor) -> npt.NDArray[np.float32]:
        """The logits [count, classes] in evaluation mode for features [count, …] at ``cut``."""
        self.train(False)
        with torch.no_grad():
            found = [self.tail(part).float().cpu() for part in features.split(_BATCH)]
        return np.asarray(torch.cat(found).numpy())

    def _placed(self, images: Tensor) -> Tensor:
        return images.to(self._device).contiguous(memory_format=self._format)

    def train(self, training: bool) -> None:
        """Put the copies in training or evaluation mode."""
        for module in self.copies.values():
            module.train(training).requires_grad_(True)

    @property
    def has_statistics(self) -> bool:
        """True if a copy has batch norms that keep statistics."""
        layers = (layer for module in self.copies.values() for layer in module.modules())
        return any(isinstance(layer, _BatchNorm) and layer.track_running_stats for layer in layers)

    def recalibrate(self, batches: Iterable[Tensor]) -> None:
        """Replace the copies' batch-norm statistics by their means over ``batches`` of images."""
        recalibrate(self._expansion, ((self.path, self._placed(images)) for images in batches))

    @property
    def state(self) -> State:
        """A copy of the copies' weights and statistics, on the CPU."""
        return {
            name: {key: value.detach().to("cpu", copy=True) for key, value in module.state_dict().items()}
            for name, module in self.copies.items()
        }

    def restore(self, state: State) -> None:
        """Set the copies to an earlier ``state``."""
        for name, module in self.copies.items():
            module.load_state_dict(state[name])


def _is_copy(block: TrainableBlock) -> bool:
    return block.copied_from == f"o{block.start}" and block.id == f"c{block.start}"


def _through(blocks: list[TrainableBlock] | tuple[TrainableBlock, ...], features: Tensor) -> Tensor:
    for block in blocks:
        features = block.module(features)
    return features
