"""Verdicts on a model, one line per capability: its support, its extent, or the reason against it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from device_sdk.supernet.blocks import MAP_AXES
from device_sdk.supernet.plan import size_text
from packager.doctor.npu import NpuFindings
from packager.errors import TraceError
from packager.inputs.loaded_model import LoadedModel
from packager.renditions import KINDS
from packager.renditions.xnnpack import NAME as XNNPACK
from packager.supernet.blocks.streams import several
from packager.supernet.blocks.trainable import AddedBlocks
from packager.tasks import LearningTask
from packager.tracing.traced_model import TracedModel, trace

_NAMED = 3  # reasons per line


@dataclass(frozen=True)
class Verdict:
    """Verdict on one capability of the model, and in one line its extent, or the reason against it."""

    capability: str
    possible: bool
    says: str


@dataclass(frozen=True)
class Position:
    """A cut point: ``shapes`` and ``nbytes`` of its live tensors per sample; ``packet_nbytes``: of a packet of them.

    ``packet_nbytes`` is None if the tensors cannot be sent. ``split``: a packet is smaller than the input's.
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

    size: tuple[int, ...]
    error: float | None


_OTHERS = {MAP_AXES: "a map or boxes: --task segmentation or detection", 2: "of words: --task token_classification"}


def answers(model: LoadedModel, traced: TracedModel, task: LearningTask) -> tuple[Verdict, ...]:
    """The reason why the model cannot be packaged for ``task``, if there is one."""
    answer = traced.tensors[-1].shape
    if task.kind == "classification" and len(answer) != 1:
        numbers = "×".join(map(str, answer))
        other = f"; {_OTHERS[len(answer)]}" if len(answer) in _OTHERS else ""
        return (Verdict("classify", False, f"it has {numbers} outputs, not one per class; exits need one{other}"),)
    complaint = task.complaint(answer, model.class_names) if model.class_names else None
    says = "classify" if task.kind == "classification" else f"be packaged for {task.kind}"
    return (Verdict(says, False, complaint.replace("the data has", "its list has")),) if complaint else ()


def cuts(traced: TracedModel) -> Verdict:
    """The number of blocks and cut points, with those of several tensors and mandatory ones."""
    blocks, streams = len(traced.blocks), len(several(traced.cuts))
    says = f"{blocks} blocks, {_counted(blocks - 1, 'cut point')} between them"
    says += f", {streams} of them with several tensors" if streams else ""
    says += f", {len(traced.taps)} of them mandatory, since the head reads there" if traced.taps else ""
    return Verdict("cut", True, says)


def listed(capability: str, added: AddedBlocks, what: str) -> Verdict:
    """The number of added blocks of a kind, or the reasons for none."""
    if added.blocks:
        return Verdict(capability, True, f"{len(added.blocks)} {what}{_left_out(added.notes)}")
    return Verdict(capability, False, _reasons(added.notes) or "no block between stem and head fits")


def _left_out(notes: Sequence[str]) -> str:
    return f" ({_counted(len(notes), 'note')} on what is left out)" if notes else ""


def _reasons(notes: Sequence[str]) -> str:
    more = f"; {len(notes) - _NAMED} more in the notes" if len(notes) > _NAMED else ""
    return "; ".join(notes[:_NAMED]) + more


def renditions(traced: TracedModel) -> tuple[str, ...]:
    """The forms besides fp32 that a model can have whose cut points have one tensor each."""
    return tuple(name for name in KINDS if not (traced.taps and name == XNNPACK))


def quantise(traced: TracedModel, model: LoadedModel, examples: torch.Tensor) -> Verdict:
    """Verdict on int8: impossible if the model can only be cut where several tensors are live."""
    kinds = "int8, also fp16 and htp (--rendition)" if traced.taps else "int8, also fp16, htp and xnnpack (--rendition)"
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


def npu(found: NpuFindings) -> Verdict:
    """The share of the MACs that each chip's NPU takes, or why that is not known."""
    if found.note:
        return Verdict("run on an NPU", False, found.note)
    shares = [f"{chip} takes {found.macs_share(chip):.0%}" for chip in found.chips]
    refused = sum(len(found.refusals(chip)) for chip in found.chips)
    more = f"; {_counted(refused, 'reason')} for the rest below" if refused else ""
    return Verdict("run on an NPU", True, f"{', '.join(shares)} of the MACs{more}")


def smaller(sizes: Sequence[TriedSize], notes: Sequence[str], *, real: bool) -> Verdict:
    """The smaller inputs that run; ``real``: errors were measured."""
    if not sizes:
        why = _reasons(notes) or "inputs below 96 pixels are not reduced further"
        return Verdict("run smaller", False, why)
    if not real:
        names = ", ".join(_short(tried.size) for tried in sizes)
        return Verdict("run smaller", True, f"{names}; their errors were not measured: needs --data")
    names = ", ".join(f"{_short(tried.size)} (error {tried.error:.3f})" for tried in sizes)
    return Verdict("run smaller", True, f"{names}{_left_out(notes)}")


def _short(size: tuple[int, ...]) -> str:
    return str(size[0]) if len(set(size)) == 1 else size_text(size)


def exits(positions: Sequence[int], *, classifies: bool) -> Verdict:
    """The cut points where exits can be attached."""
    if positions:
        return Verdict("exit", True, f"at cut point{'s' * (len(positions) > 1)} {', '.join(map(str, positions))}")
    reason = "no branch structure fits any inner cut point" if classifies else "the model is not a classifier"
    return Verdict("exit", False, reason)


def split(positions: Sequence[Position]) -> Verdict:
    """The cut points where sending activations to a server takes fewer bytes than sending the input."""
    smaller = [position for position in positions if position.split]
    if not smaller:
        return Verdict("split", False, "no cut point needs fewer bytes to send to a server than the input")
    first, least = smaller[0], min(smaller, key=lambda position: position.packet_nbytes or 0)
    share = (least.packet_nbytes or 0) / (positions[0].packet_nbytes or positions[0].nbytes)
    count = f"{_counted(len(smaller), 'cut point')} below the input's bytes, the first is {first.index}"
    return Verdict("split", True, f"{count}; {least.index} is the smallest, {share:.0%} of the input")


def packaging(
    estimate: Mapping[str, Any], with_int8: Mapping[str, Any] | None, budget_minutes: float | None
) -> Verdict:
    """Minutes, memory and size of the bundle, or which limit is too low."""
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


def conclusion(verdicts: Sequence[Verdict], count: int) -> str:
    """A one-sentence summary; ``count``: of architectures."""
    refused = [verdict.says for verdict in verdicts if verdict.capability == "classify" and not verdict.possible]
    if refused:
        return f"pathweave package refuses it as a classifier: {refused[0]}"
    can = {verdict.capability for verdict in verdicts if verdict.possible}
    if can & {"skip", "merge"}:
        return f"up to {_large(count)} architectures, before useless blocks are dropped"
    names = {"quantise": "int8", "run smaller": "smaller inputs", "exit": "exits", "shrink": "shrunk blocks"}
    others = [name for capability, name in names.items() if capability in can]
    if not others:
        return "every block has to stay as it is: it packages as one path in fp32"
    adaptations = " and ".join([*([", ".join(others[:-1])] if others[:-1] else []), others[-1]])
    start = "no block can be skipped or merged" if "shrink" in can else "every block has to stay"
    return f"{start}: it packages with {adaptations} alone"


def _large(count: int) -> str:
    return f"{count:,}" if count < 10**9 else f"10^{len(str(count)) - 1}"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
