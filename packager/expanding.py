"""The supernet before any training: the model cut into blocks, with the blocks and exits that the recipe adds."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch

from device_sdk.errors import DataError, UsageError
from packager.inputs.job import Job
from packager.supernet.blocks.streams import several
from packager.supernet.branch_weights import load_branches
from packager.supernet.exits import attach_exits
from packager.supernet.expansion import Expansion, expand, shrink_rates_for
from packager.tracing.cut_points import FUSED
from packager.tracing.traced_model import TracedModel, trace

_EXAMPLES = 64  # real samples, at most, for value ranges at the cut points and for checking the original path
_LEAST_EXAMPLES = 8
_EXAMPLE_BYTES = 8_000_000


def examples_of(job: Job) -> npt.NDArray[np.float32]:
    """Prepared validation images [count, *input]; fewer if large, since all their features are in memory together."""
    fitting = _EXAMPLE_BYTES // (4 * math.prod(job.model.input_shape))
    return job.prepared(count=max(_LEAST_EXAMPLES, min(_EXAMPLES, fitting)))


def expanded(job: Job, examples: torch.Tensor) -> Expansion:
    """The supernet before training: the cut model with the recipe's blocks and exits, and ``branch_weights`` loaded.

    ``examples``: prepared images [count, *input], as ``examples_of``.

    Raises:
        TraceError: the model cannot be cut. DataError: it does not answer for the data's classes.
    """
    recipe = job.recipe
    fused = FUSED if recipe.fused is None else recipe.fused
    # only fp32 supports cut points of several tensors; with other renditions long stretches stay uncut
    only_fp32 = recipe.renditions == ("fp32",)
    traced = trace(job.model.module, examples, gamma=recipe.gamma, fused=fused, streams=only_fp32)
    _require_answers(job, traced)
    rates = recipe.shrink_rates
    if rates == "auto":
        rates = shrink_rates_for(sum(traced.parameters))
    expansion = expand(
        traced,
        max_span=recipe.max_span,
        tiled=recipe.tiled,
        shrink_rates=rates,
        identity=recipe.identity,
        copied=recipe.copied,
    )
    if job.task.kind == "classification":
        expansion = attach_exits(expansion, count=recipe.exit_positions if recipe.branches == "two" else 0)
    if job.branch_weights is not None:
        expansion = load_branches(expansion, job.branch_weights)
    return expansion


def _require_answers(job: Job, traced: TracedModel) -> None:
    """Refuse a model whose output does not fit the task and the data's classes."""
    complaint = job.task.complaint(traced.tensors[-1].shape, job.training.class_names)
    if complaint is not None:
        raise DataError(complaint, hint=f"docs/bundle_format.md says how a model for {job.task.kind} answers")
    if job.recipe.renditions != ("fp32",) and (traced.taps or several(traced.cuts)):
        kind = "a model in two stages" if traced.taps else "a model that is cut where several tensors are live"
        raise UsageError(f"{kind} can only be packaged in fp32", hint="leave renditions out")
