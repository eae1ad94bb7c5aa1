"""The supernet before any training: the model cut into blocks, with the blocks and exits that the recipe adds.

Their weights, never those of originals, may come from a safetensors file: without training steps such a recipe
rebuilds a bundle in minutes; with steps, training starts from them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import save
from torch import nn

from device_sdk.errors import DataError, UsageError
from device_sdk.files.atomic import write_atomically
from packager.branch_zoo.plain import attach_exits
from packager.branch_zoo.self_merge import exit_of
from packager.branch_zoo.specs import parse
from packager.errors import WeightsError
from packager.fitting.candidates import sources
from packager.inputs.job import Job
from packager.inputs.weights import BranchWeights
from packager.renditions.xnnpack import NAME as XNNPACK
from packager.supernet.blocks.streams import several
from packager.supernet.blocks.trainable import TrainableBlock
from packager.supernet.expansion import Expansion, expand, shrink_rates_for
from packager.tracing.cut_points import FUSED
from packager.tracing.traced_model import TracedModel, trace

_EXAMPLES = 64  # real samples, at most, for value ranges at the cut points and for checking the original path
_LEAST_EXAMPLES = 8
_EXAMPLE_BYTES = 8_000_000
_EXIT = re.compile(r"x(\d{1,6})-(.+)")


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
    recipe, traced = job.recipe, cut_model(job, examples)
    _require_answers(job, traced)
    expansion = expand(
        traced,
        max_span=recipe.max_span,
        tiled=recipe.tiled,
        shrink_rates=shrink_rates_for(traced, recipe.shrink_rates),
        identity=recipe.identity,
        copied=recipe.copied,
    )
    if job.task.kind == "classification":
        expansion = attach_exits(expansion, count=recipe.exit_positions if recipe.branches == "two" else 0)
    if job.branch_weights is not None:
        expansion = load_branches(expansion, job.branch_weights)
    return expansion


def cut_model(job: Job, examples: torch.Tensor) -> TracedModel:
    """A copy of the job's model, cut as its recipe says; ``examples``: as of ``expanded`` (TraceError)."""
    recipe = job.recipe
    fused = FUSED if recipe.fused is None else recipe.fused
    # only fp32 supports cut points of several tensors; with other renditions long stretches stay uncut
    only_fp32 = recipe.renditions == ("fp32",)
    return trace(job.model.module, examples, gamma=recipe.gamma, fused=fused, streams=only_fp32)


def _require_answers(job: Job, traced: TracedModel) -> None:
    """Refuse a model whose output does not fit the task and the data's classes."""
    complaint = job.task.complaint(traced.tensors[-1].shape, job.training.class_names)
    if complaint is not None:
        raise DataError(complaint, hint=f"docs/bundle_format.md says how a model for {job.task.kind} answers")
    others = [kind for kind in job.recipe.renditions if kind != "fp32"]
    if others and several(traced.cuts):
        kind = "a model that is cut where several tensors are live"
        raise UsageError(f"{kind} can only be packaged in fp32", hint="leave renditions out")
    if traced.taps and XNNPACK in others:
        raise UsageError("a model in two stages has no xnnpack rendition", hint="int8, fp16 and htp can be made of it")


def load_branches(expansion: Expansion, weights: BranchWeights) -> Expansion:
    """Load ``weights`` into the added blocks and exits of ``expansion``, all or none.

    Blocks without weights in the file had been dropped before training and are dropped again. If a block was trained
    as a copy of another of its replaced blocks, it becomes such a copy.

    Raises:
        WeightsError: they belong to another supernet; names missing or unexpected tensors and wrong shapes.
    """
    shapes: dict[str, set[tuple[str, torch.Size]]] = {}
    for name, value in weights.items():
        owner, _, key = name.partition(".")
        shapes.setdefault(owner, set()).add((key, value.shape))
    expansion = _with_zoo_exits(expansion, weights)
    learned = [block for block in expansion.trained if _shapes(block.module)]
    expansion = expansion.without(block.id for block in learned if block.id not in shapes)
    expansion = expansion.replacing(
        {block.id: _as_trained(block, expansion, shapes[block.id]) for block in learned if block.id in shapes}
    )
    modules = _modules(expansion)
    expected = {(f"{name}.{key}", value.shape) for name, module in modules.items() for key, value in _state(module)}
    given = {(name, value.shape) for name, value in weights.items()}
    wrong = sorted({name.partition(".")[0] for name, _ in expected ^ given})
    if wrong:
        shown = ", ".join(wrong[:3]) + (", …" if len(wrong) > 3 else "")
        raise WeightsError(
            f"the branch weights belong to another supernet: {shown}",
            hint="max_span, tiled, shrink_rates, gamma, fused, exit_positions, branches must be as they were trained",
        )
    for name, module in modules.items():
        module.load_state_dict({key: weights[f"{name}.{key}"] for key, _ in _state(module)})
    return expansion


def _with_zoo_exits(expansion: Expansion, weights: BranchWeights) -> Expansion:
    """The expansion with the zoo's exits that the file has; their ids say what they are."""
    states: dict[tuple[int, str], dict[str, torch.Tensor]] = {}
    for name, value in weights.items():
        owner, _, key = name.partition(".")
        found = _EXIT.fullmatch(owner)
        if found is not None and parse(found[2]) is not None:
            states.setdefault((int(found[1]), found[2]), {})[key] = value
    tensors = expansion.traced.tensors
    exits = []
    for (position, branch), state in sorted(states.items(), key=lambda item: item[0]):
        if not 0 < position < len(tensors) - 1 or len(expansion.traced.cuts[position]) != 1:
            place = f"x{position}-{branch[:80]}"
            raise WeightsError(f"the branch weights belong to another supernet: there is no place for {place}")
        exits.append(exit_of(position, branch, state, tensors[position].shape))
    return replace(expansion, exits=expansion.exits + tuple(exits))


def _as_trained(
    block: TrainableBlock, expansion: Expansion, shapes: Collection[tuple[str, torch.Size]]
) -> TrainableBlock:
    """The copy of a replaced block whose weights have these ``shapes``; ``block`` itself if none has."""
    if _shapes(block.module) == shapes:
        return block
    copies = sources(block, expansion.originals, expansion.traced.tensors)
    return next((candidate for candidate in copies if _shapes(candidate.module) == shapes), block)


def _shapes(module: nn.Module) -> set[tuple[str, torch.Size]]:
    return {(key, value.shape) for key, value in _state(module)}


def write_branches(expansion: Expansion, path: Path) -> None:
    """Write the weights of the added blocks and exits to ``path``, atomically.

    Raises:
        StorageError: the file cannot be written.
    """
    tensors = {
        f"{name}.{key}": value.detach().contiguous()
        for name, module in _modules(expansion).items()
        for key, value in _state(module)
    }
    write_atomically(path, save(tensors))


def _modules(expansion: Expansion) -> dict[str, nn.Module]:
    blocks: dict[str, nn.Module] = {block.id: block.module for block in expansion.added}
    return blocks | {exit_.id: exit_.module for exit_ in expansion.exits}


def _state(module: nn.Module) -> Iterable[tuple[str, torch.Tensor]]:
    return module.state_dict().items()
