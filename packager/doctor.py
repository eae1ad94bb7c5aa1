"""What of a model can be cut, skipped, merged, shrunk, quantised, run smaller, exited and split, before any training.

Nothing is written. The model is traced and expanded as ``package`` does it, with the recipe's default choices, and run
a few times; shrunk blocks, which the default leaves out, are tried as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from device_sdk.errors import MissingExtraError
from device_sdk.graph import CutPoint, size_text
from device_sdk.offload.packing import can_travel, packet_bytes
from device_sdk.paths import architecture_count
from packager.blocks.identity import identity_blocks
from packager.blocks.shrunk import shrunk_blocks
from packager.blocks.streams import several
from packager.blocks.trainable import Grown
from packager.errors import TraceError
from packager.estimate import Estimator, measured_machine
from packager.estimate import Size as SupernetSize
from packager.exits import attach_exits
from packager.expansion import Expansion, expand
from packager.input_sizes import candidate_sizes, usable_sizes
from packager.model_loader import LoadedModel
from packager.recipe import Recipe
from packager.run_plan import estimated
from packager.tasks import Classification
from packager.tracing.traced_model import TracedModel, trace

SAMPLES = 64  # images that tell what a smaller input costs
_EXAMPLES = 8  # of them that describe the cut points
_SHRINK_RATES = (0.5, 0.25)
_ENOUGH = 10_000  # images that are assumed where none are given
_NAMED = 3  # reasons in a verdict
_NOISE_SEED = 0


@dataclass(frozen=True)
class Verdict:
    """Whether the model has a capability, and in one line how far, or why not."""

    capability: str
    possible: bool
    says: str


@dataclass(frozen=True)
class Position:
    """A cut point: ``shapes`` and ``nbytes`` of what is live there for one sample; ``packet_nbytes``: of it packed.

    ``packet_nbytes`` is None where it cannot travel. ``split``: a server may take over here for less than the input.
    """

    index: int
    shapes: tuple[tuple[int, ...], ...]
    nbytes: int
    packet_nbytes: int | None
    mandatory: bool
    split: bool


@dataclass(frozen=True)
class TriedSize:
    """An input size at which the model runs; ``error`` as in ``UsableSize``, None without real images."""

    size: tuple[int, int]
    error: float | None


@dataclass(frozen=True)
class Examination:
    """What was found. ``notes``: all reasons in full; ``estimate``: see ``Estimate.described``.

    ``blocks``: the original ones with ``parameters`` and ``macs``; ``added``: ids of those that fit, by kind.
    ``estimate_int8`` is None where the same cut points do not allow int8.
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
    estimate: dict[str, Any]
    estimate_int8: dict[str, Any] | None
    verdicts: tuple[Verdict, ...]
    conclusion: str
    notes: tuple[str, ...]

    def described(self) -> dict[str, Any]:
        """As ``pathweave doctor --json`` prints it; the count of architectures as text, for it may be long."""
        return asdict(self) | {"architecture_count": str(self.architecture_count)}


def examine(
    model: LoadedModel,
    *,
    images: torch.Tensor | None = None,
    image_count: int | None = None,
    budget_minutes: float | None = None,
    memory_bytes: int | None = None,
    spent: float = 0.0,
) -> Examination:
    """Examine a model.

    ``images``: real ones as the model takes them [count, *input], of ``image_count`` that there are; without them noise
    stands in, and what smaller inputs cost stays unknown. ``budget_minutes`` and ``memory_bytes``: limits that the
    estimate is held against. ``spent``: seconds so far.

    Raises:
        TraceError: the model cannot be traced, or has no cut point.
    """
    examples = _noise(model.input_shape) if images is None else images[:_EXAMPLES]
    recipe = Recipe(budget_minutes=budget_minutes) if budget_minutes is not None else Recipe(steps=0)
    traced = trace(model.module, examples)
    merged, skips, shrunk = _grown(traced, recipe)
    classifies = len(traced.tensors[-1].shape) == 1
    supernet = replace(merged, blocks=merged.blocks + skips.blocks)
    supernet = attach_exits(supernet, count=recipe.exit_positions) if classifies else supernet
    sizes, size_notes = _sizes(supernet, images)
    quantise = _quantise(traced, model, examples)
    positions = _positions(supernet.cut_points)
    estimate, estimate_int8 = _estimates(
        recipe, supernet, examples, image_count or _ENOUGH, memory_bytes=memory_bytes, spent=spent
    )
    if traced.taps or several(traced.cuts):
        estimate_int8 = None
    exits = tuple(sorted({exit_.position for exit_ in supernet.exits}))
    verdicts = (
        *_answers(model, traced),
        _cut(traced),
        _listed("skip", skips, "spans that skips may leave out"),
        _listed("merge", Grown(merged.added, merged.notes), "merged blocks"),
        _listed("shrink", shrunk, f"shrunk blocks, if the recipe says shrink_rates = {list(_SHRINK_RATES)}"),
        quantise,
        _smaller(sizes, size_notes, real=images is not None),
        _exit(exits, classifies=classifies),
        _split(positions),
        _packaging(estimate, estimate_int8, budget_minutes),
    )
    count = architecture_count(supernet.supernet())
    return Examination(
        model=model.name,
        source=model.source,
        input_shape=tuple(model.input_shape),
        answer_shape=tuple(traced.tensors[-1].shape),
        blocks=tuple({"id": one.id, "parameters": one.parameters, "macs": one.macs} for one in supernet.originals),
        cut_points=positions,
        added={
            "identity": _ids(skips.blocks),
            "merged": _ids(merged.added),
            "shrunk": _ids(shrunk.blocks),
        },
        exit_positions=exits,
        input_sizes=sizes,
        renditions=("fp32", *(("int8", "fp16", "xnnpack") if quantise.possible else ())),
        architecture_count=count,
        estimate=estimate,
        estimate_int8=estimate_int8,
        verdicts=verdicts,
        conclusion=_conclusion(verdicts, count),
        notes=(*skips.notes, *merged.notes, *shrunk.notes, *size_notes),
    )


def _noise(input_shape: Sequence[int]) -> torch.Tensor:
    """Images [count, *input] of a fixed seed."""
    return torch.randn(_EXAMPLES, *input_shape, generator=torch.Generator().manual_seed(_NOISE_SEED))


def _grown(traced: TracedModel, recipe: Recipe) -> tuple[Expansion, Grown, Grown]:
    """The model with merged blocks, the skips, and the shrunk blocks."""
    merged = expand(traced, max_span=recipe.max_span)
    inner, streams = merged.originals[1:-1], several(traced.cuts)
    skips = identity_blocks(inner, traced.cuts, max_span=recipe.max_span, taps=traced.taps)
    single = [block for block in inner if not streams & {block.start, block.end}]
    try:
        shrunk = shrunk_blocks(single, traced.tensors, rates=_SHRINK_RATES)
    except MissingExtraError as error:
        shrunk = Grown((), (f"{error} ({error.hint})",))
    return merged, skips, shrunk


def _ids(blocks: Sequence[Any]) -> tuple[str, ...]:
    return tuple(block.id for block in blocks)


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


def _sizes(expansion: Expansion, images: torch.Tensor | None) -> tuple[tuple[TriedSize, ...], tuple[str, ...]]:
    """The smaller inputs that run, and notes on the others; without real images none is left out for its answers."""
    shape = expansion.traced.tensors[0].shape
    wanted = candidate_sizes((shape[1], shape[2])) if len(shape) == 3 else []
    if images is not None:
        found, notes = usable_sizes(expansion, images, wanted) if wanted else ((), ())
        return tuple(TriedSize(one.size, one.error) for one in found), notes
    complaints = {size: _complaint(expansion, size) for size in wanted}
    notes = tuple(f"no input of {size_text(size)}: {why}" for size, why in complaints.items() if why)
    return tuple(TriedSize(size, None) for size, why in complaints.items() if not why), notes


def _complaint(expansion: Expansion, size: tuple[int, int]) -> str | None:
    """Why the original path does not run at an input size; None where it does."""
    traced = expansion.traced
    sample = _noise((traced.tensors[0].shape[0], *size))[:1]
    try:
        with torch.no_grad():
            answer = traced.answer(sample)
    except Exception as error:  # operators raise many kinds on sizes that do not fit
        return (str(error).splitlines() or [type(error).__name__])[0][:120]
    if tuple(answer.shape[1:]) != tuple(traced.tensors[-1].shape):
        return f"the model answers {list(answer.shape[1:])} there"
    return None


def _estimates(
    recipe: Recipe,
    expansion: Expansion,
    examples: torch.Tensor,
    image_count: int,
    *,
    memory_bytes: int | None,
    spent: float,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """In fp32 alone, and with int8 beside it."""
    size, machine = SupernetSize.of(expansion), measured_machine(expansion, examples)
    alone = Estimator(recipe, size, machine, image_count, image_count, len(examples))
    both = replace(alone, recipe=_with_int8(recipe))
    said = [estimated(one, memory_bytes, spent=spent) for one in (alone, both)]
    return dict(said[0]), dict(said[1])


def _with_int8(recipe: Recipe) -> Recipe:
    kinds = ("fp32", "int8")
    if recipe.budget_minutes is None:
        return Recipe(steps=recipe.steps, renditions=kinds)
    return Recipe(budget_minutes=recipe.budget_minutes, renditions=kinds)


# Verdicts


def _answers(model: LoadedModel, traced: TracedModel) -> tuple[Verdict, ...]:
    """What keeps the model from being packaged as a classifier, if anything does."""
    answer = traced.tensors[-1].shape
    if len(answer) != 1:
        numbers = "×".join(map(str, answer))
        return (
            Verdict("classify", False, f"it answers {numbers} numbers, not one per class; exits need a classifier"),
        )
    complaint = Classification().complaint(answer, model.class_names) if model.class_names else None
    return (Verdict("classify", False, complaint.replace("the data has", "its list has")),) if complaint else ()


def _cut(traced: TracedModel) -> Verdict:
    blocks, streams = len(traced.blocks), len(several(traced.cuts))
    says = f"{blocks} blocks, {_counted(blocks - 1, 'cut point')} between them"
    says += f", {streams} of them with several tensors" if streams else ""
    says += f", {len(traced.taps)} of them mandatory, since the head reads there" if traced.taps else ""
    return Verdict("cut", True, says)


def _listed(capability: str, grown: Grown, what: str) -> Verdict:
    """How many ``blocks`` there are, or why none."""
    if grown.blocks:
        return Verdict(capability, True, f"{len(grown.blocks)} {what}{_left_out(grown.notes)}")
    return Verdict(capability, False, _reasons(grown.notes) or "no block between stem and head suits")


def _left_out(notes: Sequence[str]) -> str:
    return f" ({_counted(len(notes), 'note')} below on what is left out)" if notes else ""


def _reasons(notes: Sequence[str]) -> str:
    more = f"; {len(notes) - _NAMED} more below" if len(notes) > _NAMED else ""
    return "; ".join(notes[:_NAMED]) + more


def _quantise(traced: TracedModel, model: LoadedModel, examples: torch.Tensor) -> Verdict:
    """Cut points of several tensors and two stages are packaged in fp32 alone; perhaps the model is cut without."""
    kinds = "int8, also fp16 and xnnpack (--rendition)"
    if traced.taps:
        return Verdict("quantise", False, "a model in two stages is packaged in fp32 alone")
    if not several(traced.cuts):
        return Verdict("quantise", True, kinds)
    only = "cut points of several tensors are packaged in fp32 alone"
    try:
        other = trace(model.module, examples, streams=False)
    except TraceError as error:
        return Verdict("quantise", False, f"{only}, and without them {error}")
    if several(other.cuts):
        return Verdict("quantise", False, f"{only}, and the model cannot be cut elsewhere")
    return Verdict("quantise", True, f"{kinds}; the model is then cut into {len(other.blocks)} blocks: {only}")


def _smaller(sizes: Sequence[TriedSize], notes: Sequence[str], *, real: bool) -> Verdict:
    if not sizes:
        why = _reasons(notes) or "inputs below 96 pixels have no smaller one that is worth a try"
        return Verdict("run smaller", False, why)
    if not real:
        told = ", ".join(_short(one.size) for one in sizes)
        return Verdict("run smaller", True, f"{told}; what they cost was not tried: needs --data")
    told = ", ".join(f"{_short(one.size)} (error {one.error:.3f})" for one in sizes)
    return Verdict("run smaller", True, f"{told}{_left_out(notes)}")


def _short(size: tuple[int, int]) -> str:
    return str(size[0]) if size[0] == size[1] else size_text(size)


def _exit(positions: Sequence[int], *, classifies: bool) -> Verdict:
    if positions:
        return Verdict("exit", True, f"at cut point{'s' * (len(positions) > 1)} {', '.join(map(str, positions))}")
    return Verdict("exit", False, "no inner cut point suits" if classifies else "the model is not a classifier")


def _split(positions: Sequence[Position]) -> Verdict:
    smaller = [one for one in positions if one.split]
    if not smaller:
        return Verdict("split", False, "no cut point takes fewer bytes on the way to a server than the input")
    first, least = smaller[0], min(smaller, key=lambda one: one.packet_nbytes or 0)
    share = (least.packet_nbytes or 0) / (positions[0].packet_nbytes or positions[0].nbytes)
    told = f"{_counted(len(smaller), 'cut point')} below the input's bytes, from {first.index} on"
    return Verdict("split", True, f"{told}; {least.index} is the smallest, {share:.0%} of the input")


def _packaging(estimate: dict[str, Any], with_int8: dict[str, Any] | None, budget_minutes: float | None) -> Verdict:
    least, memory, limit = estimate["least_minutes"], estimate["least_memory_gb"], estimate["memory_limit_gb"]
    if budget_minutes is not None and least > budget_minutes:
        says = f"{budget_minutes:g} minutes are too few: it takes {least:.1f} at least, without any training"
        return Verdict("package", False, says)
    if memory > limit:
        return Verdict("package", False, f"{limit:g} GB of memory are too few: it takes {memory:.1f} at least")
    time = f"{least:.1f} minutes at least, without any training"
    if budget_minutes is not None:
        time = f"{estimate['seconds']['train'] / 60:.1f} of {budget_minutes:g} minutes are left for training"
    int8 = "" if with_int8 is None else f" ({with_int8['bundle_mb']:.1f} with int8)"
    says = f"{time}; {estimate['peak_gb']:.1f} GB of memory; a bundle of {estimate['bundle_mb']:.1f} MB{int8}"
    return Verdict("package", True, says)


def _conclusion(verdicts: Sequence[Verdict], count: int) -> str:
    can = {one.capability for one in verdicts if one.possible}
    if can & {"skip", "merge"}:
        return f"up to {_large(count)} architectures, before training says which skips are worth keeping"
    names = {"quantise": "int8", "run smaller": "smaller inputs", "exit": "exits", "shrink": "shrunk blocks"}
    others = [name for capability, name in names.items() if capability in can]
    if not others:
        return "every block has to stay as it is: it packages as one path in fp32"
    told = " and ".join([*([", ".join(others[:-1])] if others[:-1] else []), others[-1]])
    start = "no block can be skipped or merged" if "shrink" in can else "every block has to stay"
    return f"{start}: it packages with {told} alone"


def _large(count: int) -> str:
    return f"{count:,}" if count < 10**9 else f"10^{len(str(count)) - 1}"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
