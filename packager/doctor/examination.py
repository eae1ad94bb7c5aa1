"""Examines whether a model can be cut, skipped, merged, shrunk, quantised, run smaller, exited and split.

Nothing is trained or written. The model is traced and expanded as by ``package`` with the default recipe, and run a few
times. Shrunk blocks, which are off by default, are tried as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import msgspec
import torch

from device_sdk.errors import MissingExtraError
from device_sdk.offload.packing import can_travel, packet_bytes
from device_sdk.supernet.blocks import MAP_AXES, CutPoint
from device_sdk.supernet.paths import architecture_count
from packager.branch_zoo.plain import attach_exits
from packager.doctor import verdicts
from packager.doctor.npu import NpuFindings, npu_findings
from packager.doctor.verdicts import Position, TriedSize, Verdict
from packager.inputs.loaded_model import LoadedModel
from packager.inputs.recipe import Recipe
from packager.npu.chips import Chip
from packager.planning.estimate import Estimator, measured_machine
from packager.planning.estimate import Size as SupernetSize
from packager.planning.run_plan import estimated
from packager.supernet.blocks import BUILDERS
from packager.supernet.blocks.originals import Originals
from packager.supernet.blocks.streams import several
from packager.supernet.blocks.trainable import AddedBlocks
from packager.supernet.expansion import Expansion, expand, shrink_rates_for
from packager.supernet.input_sizes import candidate_sizes, usable_sizes
from packager.tasks import Classification, LearningTask, Segmentation
from packager.tracing.traced_model import TracedModel, trace

SAMPLES = 64  # images for measuring the error of smaller inputs
_EXAMPLES = 8  # of them for value ranges at the cut points
_SHRINK_RATES = (0.5, 0.25)
_ENOUGH = 10_000  # image count assumed without data
_NOISE_SEED = 0


@dataclass(frozen=True)
class Examination:
    """The result of an examination. ``notes``: all reasons in full; ``estimate``: see ``Estimate.described``.

    ``blocks``: originals with ``parameters`` and ``macs``; ``added``: ids of possible added blocks, by kind.
    ``estimate_int8`` is None if the cut points do not allow int8. ``npu``: None if no chips were given.
    """

    model: str
    source: str
    input_shape: tuple[int, ...]
    answer_shape: tuple[int, ...]
    blocks: tuple[dict[str, Any], ...]
    cut_points: tuple[Position, ...]
    added: dict[str, tuple[str, ...]]
    exit_positions: tuple[int, ...]
    input_sizes: tuple[TriedSize, ...]
    renditions: tuple[str, ...]
    architecture_count: int
    estimate: dict[str, object]
    estimate_int8: dict[str, object] | None
    notes: tuple[str, ...]
    npu: NpuFindings | None = None
    verdicts: tuple[Verdict, ...] = ()
    conclusion: str = ""

    def described(self) -> dict[str, Any]:
        """The output of ``pathweave package --check --json``; ``architecture_count`` is text: it may exceed 2^53."""
        npu = None if self.npu is None else self.npu.described()
        return asdict(replace(self, npu=None)) | {"architecture_count": str(self.architecture_count), "npu": npu}


def examine(
    model: LoadedModel,
    *,
    images: torch.Tensor | None = None,
    image_count: int | None = None,
    budget_minutes: float | None = None,
    memory_bytes: int | None = None,
    spent: float = 0.0,
    chips: Sequence[Chip] = (),
    task: LearningTask | None = None,
) -> Examination:
    """Examine a model for ``task``, by default classification.

    Args:
        images: real images, prepared [count, *input]. Without them noise is used, and the error of smaller inputs is
            not measured.
        image_count: size of the whole data set.
        budget_minutes: limit for the estimate, as is ``memory_bytes``.
        spent: seconds so far.
        chips: whose NPUs the blocks are compiled for, with the compiler of the extra qnn.

    Raises:
        TraceError: the model cannot be traced, or has no cut point.
    """
    examples = model.noise(_EXAMPLES, seed=_NOISE_SEED) if images is None else images[:_EXAMPLES]
    recipe = Recipe(budget_minutes=budget_minutes) if budget_minutes is not None else Recipe(steps=0)
    traced = trace(model.module, examples)
    task = task or Classification()
    grown = _grown(traced, recipe, task)
    real = images is not None
    sizes, size_notes = _sizes(grown.supernet, examples if images is None else images, task, real=real)
    quantised = verdicts.quantise(traced, model, examples)
    npu = _npu(traced, model, examples, chips, quantised) if chips else None
    estimate, estimate_int8 = _estimates(
        recipe, grown.supernet, examples, image_count or _ENOUGH, memory_bytes=memory_bytes, spent=spent
    )
    found = Examination(
        model=model.name,
        source=model.source,
        input_shape=tuple(model.input_shape),
        answer_shape=tuple(traced.tensors[-1].shape),
        blocks=tuple(
            {"id": block.id, "parameters": block.parameters, "macs": block.macs} for block in grown.supernet.originals
        ),
        cut_points=_positions(grown.supernet.cut_points),
        added={kind: tuple(block.id for block in made.blocks) for kind, made in grown.kinds.items()},
        exit_positions=tuple(sorted({exit_.position for exit_ in grown.supernet.exits})),
        input_sizes=sizes,
        renditions=("fp32", *(verdicts.renditions(traced) if quantised.possible else ())),
        architecture_count=architecture_count(grown.supernet.supernet()),
        estimate=estimate,
        estimate_int8=estimate_int8,
        notes=(*model.notes, *(note for made in grown.kinds.values() for note in made.notes), *size_notes),
        npu=npu,
    )
    return _judged(
        found,
        *verdicts.answers(model, traced, task),
        verdicts.cuts(traced),
        verdicts.listed("skip", grown.kinds["identity"], "spans that skips may leave out"),
        verdicts.listed("merge", grown.kinds["merged"], "merged blocks"),
        verdicts.listed("shrink", grown.kinds["shrunk"], _shrunk(traced, recipe)),
        quantised,
        *([] if npu is None else [verdicts.npu(npu)]),
        verdicts.smaller(sizes, size_notes, real=images is not None),
        verdicts.exits(found.exit_positions, classifies=task.kind == "classification" and len(found.answer_shape) == 1),
        verdicts.split(found.cut_points),
        verdicts.packaging(estimate, estimate_int8, budget_minutes),
    )


def _npu(
    traced: TracedModel, model: LoadedModel, examples: torch.Tensor, chips: Sequence[Chip], quantised: Verdict
) -> NpuFindings:
    """Verdicts of ``chips`` on the blocks; as int8, of the model cut where one tensor is live."""
    if not quantised.possible:
        return NpuFindings(tuple(chip.name for chip in chips), note=quantised.says)
    single = trace(model.module, examples, streams=False) if several(traced.cuts) else traced
    return npu_findings(single, examples, chips)


def _shrunk(traced: TracedModel, recipe: Recipe) -> str:
    """Shrunk blocks in words, with the setting that adds them where they are not added anyway."""
    if shrink_rates_for(traced, recipe.shrink_rates):
        return "shrunk blocks"
    return f"shrunk blocks, if the recipe says shrink_rates = {list(_SHRINK_RATES)}"


def _judged(found: Examination, *judged: Verdict) -> Examination:
    return replace(found, verdicts=judged, conclusion=verdicts.conclusion(judged, found.architecture_count))


@dataclass(frozen=True)
class _Supernet:
    """The expansion by the default recipe, and the added blocks and notes of each kind, shrunk blocks included."""

    supernet: Expansion
    kinds: dict[str, AddedBlocks]


def _grown(traced: TracedModel, recipe: Recipe, task: LearningTask) -> _Supernet:
    merged = expand(traced, max_span=recipe.max_span)
    originals = Originals(traced, recipe.max_span, shrink_rates=_SHRINK_RATES, identity=True)
    skips = BUILDERS["identity"](originals)
    try:
        shrunk = BUILDERS["shrunk"](originals)
    except MissingExtraError as error:
        shrunk = AddedBlocks((), (f"{error} ({error.hint})",))
    supernet = replace(merged, blocks=merged.blocks + skips.blocks)
    if task.kind == "classification" and len(traced.tensors[-1].shape) == 1:
        supernet = attach_exits(supernet, count=recipe.exit_positions)
    return _Supernet(supernet, {"identity": skips, "merged": AddedBlocks(merged.added, merged.notes), "shrunk": shrunk})


def _positions(cuts: Sequence[CutPoint]) -> tuple[Position, ...]:
    sizes = [packet_bytes(cut, (), batch=1) if can_travel(cut) else None for cut in cuts]
    whole = sizes[0] if sizes[0] is not None else cuts[0].nbytes
    return tuple(
        Position(
            index=cut.index,
            shapes=tuple(tensor.shape for tensor in cut.tensors),
            nbytes=cut.nbytes,
            packet_nbytes=size,
            mandatory=cut.mandatory,
            split=0 < cut.index < len(cuts) - 1 and size is not None and size < whole,
        )
        for cut, size in zip(cuts, sizes, strict=True)
    )


def _sizes(
    expansion: Expansion, examples: torch.Tensor, task: LearningTask, *, real: bool
) -> tuple[tuple[TriedSize, ...], tuple[str, ...]]:
    """The smaller inputs that run, and notes on the others; without real images their errors are not checked."""
    shape = expansion.traced.tensors[0].shape
    wanted = candidate_sizes(shape[1:]) if len(shape) in (2, 3) else []
    samples = examples if real else examples[:1]
    if len(expansion.traced.tensors[-1].shape) == MAP_AXES and task.kind == "classification":
        task = Segmentation()  # of maps, whatever they are
    found, notes = usable_sizes(expansion, samples, wanted, task=task, judged=real) if wanted else ((), ())
    tried = tuple(TriedSize(size.size, size.error if real else None) for size in found)
    return tried, notes if real else notes[::-1]  # the largest first


def _estimates(
    recipe: Recipe,
    expansion: Expansion,
    examples: torch.Tensor,
    image_count: int,
    *,
    memory_bytes: int | None,
    spent: float,
) -> tuple[dict[str, object], dict[str, object] | None]:
    """Estimates for fp32 only, and with int8; None for the latter if the cut points do not allow it."""
    size, machine = SupernetSize.of(expansion), measured_machine(expansion, examples)
    alone = Estimator(recipe, size, machine, image_count, image_count, len(examples))
    said = estimated(alone, memory_bytes, spent=spent)
    if several(expansion.traced.cuts):
        return said, None
    both = replace(alone, recipe=msgspec.structs.replace(recipe, renditions=("fp32", "int8")))
    return said, estimated(both, memory_bytes, spent=spent)
