"""A hybrid's network before training: the model cut into blocks, with copies of those that learn."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from device_sdk.errors import DataError, UsageError
from packager.errors import WeightsError
from packager.inputs.job import Job
from packager.supernet.branch_weights import BranchWeights
from packager.supernet.expansion import Expansion, expand
from packager.tracing.cut_points import FUSED
from packager.tracing.traced_model import trace
from packager.training.memory_format import training_format

_EXAMPLES = 8


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
