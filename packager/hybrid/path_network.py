"""One of a hybrid's networks as torch modules: its blocks, and the path of their copies, or of originals without."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from device_sdk.errors import DataError, UsageError
from device_sdk.supernet.plan import Edge, Subnet
from packager.errors import WeightsError
from packager.inputs.job import Job
from packager.inputs.weights import BranchWeights
from packager.supernet.blocks.trainable import TrainableBlock
from packager.supernet.expansion import Expansion, expand
from packager.tracing.cut_points import FUSED
from packager.tracing.traced_model import trace
from packager.training.keeping import recalibrate
from packager.training.losses import training_format

State = dict[str, dict[str, Tensor]]
_BATCH = 256
_EXAMPLES = 8


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
        copies = {block.start: block for block in expansion.added if block.id == f"c{block.start}"}
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


def _through(blocks: list[TrainableBlock] | tuple[TrainableBlock, ...], features: Tensor) -> Tensor:
    for block in blocks:
        features = block.module(features)
    return features


@dataclass(frozen=True)
class Part:
    """The originals and copies of one network, prepared examples [batch, *input], and the memory format it bears."""

    expansion: Expansion
    examples: torch.Tensor
    memory_format: torch.memory_format


def as_part(job: Job, copied: int | None, weights: BranchWeights | None, *, learns: bool) -> Part:
    """Cut the job's model; copy its last ``copied`` blocks, None for all, if it ``learns`` or has ``weights``.

    Raises:
        TraceError: the model cannot be cut.
        UsageError: its head reads several cut points, or it has cut points of several tensors.
        WeightsError: the weights are not those of these copies.
    """
    examples = torch.from_numpy(job.prepared(count=_EXAMPLES))
    recipe = job.recipe
    traced = trace(
        job.model.module, examples, gamma=recipe.gamma, fused=FUSED if recipe.fused is None else recipe.fused
    )
    if traced.taps or any(len(specs) > 1 for specs in traced.cuts):
        raise UsageError(f"{job.model.name} is cut where several tensors are live: it cannot be part of a hybrid")
    if weights is not None:
        copied = len({name.partition(".")[0] for name in weights})
    count = (copied or len(traced.blocks)) if learns or weights is not None else 0
    expansion = expand(traced, max_span=1, copied=count)
    if weights is not None:
        _load(expansion, weights)
    device = torch.device("cpu")
    return Part(expansion, examples, training_format(expansion, device))


def require_fitting(base: Job, global_: Job) -> None:
    """Check that two jobs have the same labelled images and classes.

    Raises:
        DataError: they have not; says what differs.
    """
    if base.task.kind != "classification" or global_.task.kind != "classification":
        raise DataError("only classifiers can be the parts of a hybrid")
    for one, other in ((base.training, global_.training), (base.validation, global_.validation)):
        if tuple(one.class_names) != tuple(other.class_names):
            raise DataError(
                "base and global have different classes",
                hint="give --classes, so that both number them alike, or models of the same classes",
            )
        if len(one) != len(other) or not np.array_equal(one.labels, other.labels):
            raise DataError("base and global have different images")
        if (one.labels.astype(np.int64) < 0).any():
            raise DataError("some images have no label: what the router learns is unknown without")


def _load(expansion: Expansion, weights: BranchWeights) -> None:
    copies = {block.id: block.module for block in expansion.added}
    expected = {
        f"{name}.{key}": one.shape for name, module in copies.items() for key, one in module.state_dict().items()
    }
    if expected != {name: one.shape for name, one in weights.items()}:
        raise WeightsError(
            "the weights are not those of copies of this model's last blocks",
            hint="gamma and fused must be as they were when the copies were trained",
        )
    if not all(math.isfinite(float(one.double().sum())) for one in weights.values()):
        raise WeightsError("the weights hold a value that is not finite")
    for name, module in copies.items():
        module.load_state_dict({key: weights[f"{name}.{key}"] for key in module.state_dict()})
