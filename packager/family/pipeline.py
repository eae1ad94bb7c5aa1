"""``package_family(…)``: several pretrained networks become one signed bundle. Read it top to bottom.

package each member → fit stitches between them → number all cut points together → join → write and sign
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from device_sdk import __version__
from device_sdk.bundles.bundle import Bundle
from device_sdk.bundles.manifest import Manifest, Metrics
from device_sdk.errors import UsageError
from device_sdk.progress import Progress, SilentProgress
from device_sdk.signing import signatures
from packager.errors import PackagingError
from packager.expanding import examples_of, expanded
from packager.family.front import ReportedRung
from packager.family.joining import common_sizes, depths_of, joined, joined_graph
from packager.family.members import FamilyMember
from packager.family.numbering import acyclic, numbered
from packager.family.stitch_blocks import stored_stitches
from packager.family.stitches import FittedStitch, Rung, StitchFitter
from packager.inputs.job import Job
from packager.joining.block_store import StoredBlock
from packager.joining.networks import CutNetwork
from packager.joining.training import JointTraining, trained
from packager.output.bundle_folder import BundleWriter, Packaged, already_there, clear
from packager.output.checkpoints import Checkpoints, encode_description
from packager.output.output_claim import OutputClaim, work_folder
from packager.output.ownership import REPORT, require_work
from packager.pipeline import Limits, package
from packager.planning.run_plan import StepTimes, memory_in_use, memory_limit
from packager.supernet.input_sizes import candidate_sizes

_STATE = "stitches.pt"
_FITTED, _JUDGED = 256, 64  # training images for the stitches' fits, validation images for choosing among them


@dataclass(frozen=True)
class PackagedFamily:
    """A finished family. ``stitches``: for each its id and what it does; ``part_bytes``: of each member alone."""

    packaged: Packaged
    stitches: tuple[Mapping[str, Any], ...]
    part_bytes: Mapping[str, int]


def package_family(
    members: Sequence[FamilyMember],
    out: Path,
    *,
    name: str | None = None,
    private_key: Path | None = None,
    restart: bool = False,
    progress: Progress | None = None,
    limits: Limits | None = None,
) -> PackagedFamily:
    """Turn several networks, the largest first, into one bundle in the folder ``out``.

    Each member is packaged as ``package`` does it, in a folder of its own beside ``out`` until the family is written; a
    run that was killed goes on with the member at which it stopped. A member that takes less work than all others and
    is surely more accurate is written alone.

    Raises:
        PackagingError, UsageError, DataError, SignatureError, StorageError: as ``package``; a member cannot be part of
            a family: it reads several cut points at once, or has renditions for another runtime; the memory is too
            little for all members together, which fitting stitches needs.
    """
    limits = limits or Limits()
    name = name or f"{members[0].job.name}-family"[:128]
    _require_memory(members, memory_limit(None) if limits.memory_bytes is None else limits.memory_bytes)
    members = _prepared(members)
    description = {"family": [one.name for one in members], "name": name}
    description |= {one.name: _digest(one.job) for one in members} | {"pathweave": __version__}
    return package_together(
        lambda _, __: members,
        description,
        out,
        name=name,
        private_key=private_key,
        restart=restart,
        progress=progress,
        limits=limits,
    )


def package_together(
    make: Callable[[Checkpoints, Progress], Sequence[FamilyMember]],
    description: Mapping[str, Any],
    out: Path,
    *,
    name: str,
    stitched: bool = True,
    private_key: Path | None = None,
    restart: bool = False,
    save_branches: Path | None = None,
    progress: Progress | None = None,
    limits: Limits | None = None,
) -> PackagedFamily:
    """One bundle of members that ``make`` gets ready once ``out`` is claimed; it may keep files beside the checkpoints.

    ``description``: everything that the bundle depends on. ``stitched``: blocks between members are fitted.
    ``save_branches``: file for the weights of the first member's blocks and exits.

    Raises: as ``package_family``, and as ``make``.
    """
    limits = limits or Limits()
    times = StepTimes(progress or SilentProgress(), clock=limits.clock)
    if private_key is not None:
        signatures.sign(b"", private_key=private_key)  # an unusable key fails now
    with OutputClaim(out) as claim:
        if restart:
            clear(out)
        elif out.exists():
            finished = already_there(out, description, private_key=private_key)
            return PackagedFamily(finished, _stitches_in(finished), _part_bytes(finished))
        work = work_folder(out)
        require_work(work)
        checkpoints = Checkpoints(work, description, started=limits.started, clock=limits.clock)
        checkpoints.begin()
        bundles, members = [], make(checkpoints, times)
        for place, member in enumerate(members):
            own = dataclasses.replace(limits, started=None)
            kept = None if place else save_branches
            made = package(member.job, work / member.name, save_branches=kept, progress=times, limits=own)
            checkpoints.save_time()
            bundles.append(Bundle.open(made.folder))
        _require_joinable(bundles, members)
        with BundleWriter(claim) as writer:
            best = dominant([member.macs for member in members], [bundle.manifest.metrics for bundle in bundles])
            if best is None:
                written = _joined(members, bundles, writer, name=name, work=work, stitched=stitched, progress=times)
            else:
                written = _alone(best, members, bundles, writer, name=name)
            report = {
                "seconds": checkpoints.seconds,
                "peak_rss_bytes": checkpoints.peak_rss_bytes,
                "step_seconds": times.seconds,
                **written.report,
            }
            writer.add_note(REPORT, encode_description({**description, **report}))
            writer.finish(written.manifest, private_key=private_key)
        packaged = Packaged(out, written.manifest, checkpoints.seconds, checkpoints.peak_rss_bytes, True, times.seconds)
        checkpoints.remove()
        return PackagedFamily(packaged, tuple(written.report["stitches"]), _part_bytes(packaged))


@dataclass(frozen=True)
class _Written:
    """The manifest of a family whose blobs are written, and what its report says about rungs and stitches."""

    manifest: Manifest
    report: Mapping[str, Any]


def _joined(
    members: Sequence[FamilyMember],
    bundles: Sequence[Bundle],
    writer: BundleWriter,
    *,
    name: str,
    work: Path,
    stitched: bool,
    progress: Progress,
) -> _Written:
    """Fit stitches between the members, choose among them, and join everything in one graph."""
    names, largest = [member.name for member in members], members[0].job
    sizes = common_sizes(bundles)
    networks = [_network(member.job, bundle, sizes) for member, bundle in zip(members, bundles, strict=True)]
    images = largest.training_samples(_FITTED)
    fitter = StitchFitter(
        networks,
        images,
        torch.from_numpy(largest.prepared(count=_JUDGED)),  # members may know their training images by heart
        smaller=sizes[len(sizes) // 2] if sizes else None,
        seed=largest.recipe.seed,
        progress=progress,
    )
    fitted = fitter.promising() if stitched else ()
    length = JointTraining(steps=largest.recipe.steps or None, seconds=_seconds(members))
    trained_ones: tuple[FittedStitch, ...] = ()
    if not length.is_none:
        trained_ones = trained(
            fitted,
            networks,
            largest.batches(),
            largest.recipe,
            length,
            state=work / _STATE,
            title="train stitches",
            progress=progress,
        )
    stitches = fitter.chosen(fitted, trained_ones)
    depths = list(depths_of(bundles))
    allowed = acyclic(depths, [(one.start, one.end) for one in stitches])
    stitches = tuple(one for one in stitches if (one.start, one.end) in allowed)
    graph = joined_graph(bundles, numbered(depths, allowed))
    renditions = largest.recipe.renditions
    blocks = stored_stitches(stitches, networks, names, graph, images, renditions=renditions, progress=progress)
    notes = [*graph.notes, *([] if stitches or not stitched else [_ladder_note(names)])]
    alone = fitter.members_alone()
    notes += _useless_alone(names, alone, bundles)
    manifest = joined(
        bundles,
        names,
        dataclasses.replace(graph, notes=tuple(notes)),
        blocks,
        writer,
        losses=[float(f"{one.loss * one.loss:.3g}") for one in alone],
        name=name,
        progress=progress,
    )
    shown = [_shown(block, one) for block, one in zip(blocks, stitches, strict=True)]
    return _Written(
        manifest, {"stitches": shown, "rungs": msgspec.to_builtins([_rung(one, names) for one in fitter.rungs])}
    )


def dominant(macs: Sequence[int], metrics: Sequence[Metrics]) -> int | None:
    """The place of a member that takes less work than all others and is surely more accurate; None if there is none.

    Surely: by more than the standard error of the difference of two accuracies.
    """
    place = min(range(len(macs)), key=macs.__getitem__)
    own = metrics[place]
    for other, its_macs in zip(metrics, macs, strict=True):
        if other is own:
            continue
        spreads = [one.original_accuracy * (1 - one.original_accuracy) / max(one.samples, 1) for one in (own, other)]
        if its_macs <= macs[place] or own.original_accuracy - other.original_accuracy <= math.sqrt(sum(spreads)):
            return None
    return place


def _alone(
    place: int, members: Sequence[FamilyMember], bundles: Sequence[Bundle], writer: BundleWriter, *, name: str
) -> _Written:
    """The bundle of one member under the family's name, with a note that says why it is alone."""
    bundle, others = bundles[place], [one.name for number, one in enumerate(members) if number != place]
    for blob in bundle.blob_sizes():
        writer.add_blob(bundle.read_blob(blob))
    note = (
        f"{members[place].name} takes less work than {' and '.join(others)} and is more accurate"
        f" ({bundle.manifest.metrics.original_accuracy:.2%}): it was packaged alone"
    )
    manifest = msgspec.structs.replace(bundle.manifest, name=name, notes=(*bundle.manifest.notes, note))
    return _Written(manifest, {"stitches": [], "rungs": []})


def _require_memory(members: Sequence[FamilyMember], limit_bytes: int) -> None:
    """Refuse a family whose weights and images alone need more memory, before anything is packaged."""
    weights = [tensor for member in members for tensor in member.job.model.module.state_dict().values()]
    image_bytes = 4 * math.prod(members[0].job.model.input_shape)
    least_bytes = memory_in_use() + sum(tensor.nbytes for tensor in weights) + (_FITTED + _JUDGED) * image_bytes
    if least_bytes > limit_bytes:
        raise UsageError(
            f"{limit_bytes / 1e9:.2g} GB of memory are too few for a family of {len(members)} members",
            hint=f"it takes at least {math.ceil(least_bytes / 1e8) / 10:g} GB: give --memory-gb, or fewer members",
        )


def _prepared(members: Sequence[FamilyMember]) -> list[FamilyMember]:
    """The members' jobs for a family: bundles of their own names, one list of input sizes, their share of the minutes.

    Where the recipe leaves the sizes open, they are those that each member would have alone.
    """
    recipe = members[0].job.recipe
    recipe = msgspec.structs.replace(recipe, input_sizes=sizes_of_all(members))
    if recipe.budget_minutes is not None:
        recipe = msgspec.structs.replace(recipe, budget_minutes=recipe.budget_minutes / (len(members) + 1))
    return [dataclasses.replace(one, job=dataclasses.replace(one.job, recipe=recipe, name=one.name)) for one in members]


def sizes_of_all(members: Sequence[FamilyMember]) -> tuple[tuple[int, ...], ...]:
    """The recipe's input sizes, or where it leaves them open those that each member would have alone, largest first."""
    job = members[0].job
    if job.recipe.input_sizes != "auto":
        return job.recipe.input_sizes
    own = job.model.input_shape[1:]
    sizes = {size for member in members for size in (member.own_size, *candidate_sizes(member.own_size))} - {own}
    return tuple(sorted(sizes, reverse=True))


def _seconds(members: Sequence[FamilyMember]) -> float | None:
    """The stitches' share of the recipe's minutes: that of one member."""
    minutes = members[0].job.recipe.budget_minutes  # a member's share
    return None if minutes is None else 60 * minutes


def _network(job: Job, bundle: Bundle, sizes: Sequence[tuple[int, ...]]) -> CutNetwork:
    """The member's original blocks as torch modules, cut as in its bundle, with its shapes at further input sizes."""
    expansion = expanded(job, torch.from_numpy(examples_of(job)))
    cuts = tuple(cut.tensors for cut in bundle.supernet.cut_points)
    if len(cuts) != len(expansion.cut_points):
        raise PackagingError(f"{job.model.name} was cut into other blocks than before", hint="repeat with --restart")
    shapes = {one.size: tuple(tensors[0] for tensors in one.shapes) for one in bundle.manifest.input_sizes}
    return CutNetwork(expansion.originals, cuts, tuple(shapes[size] for size in sizes))


def _require_joinable(bundles: Sequence[Bundle], members: Sequence[FamilyMember]) -> None:
    for bundle, member in zip(bundles, members, strict=True):
        if any(cut.mandatory for cut in bundle.supernet.cut_points):
            raise UsageError(f"the head of {member.name} reads several cut points: it cannot be part of a family")


def _useless_alone(names: Sequence[str], alone: Sequence[Rung], bundles: Sequence[Bundle]) -> tuple[str, ...]:
    """A note for each member that costs more work than another and is less accurate: it is of no use alone."""
    accuracy = [bundle.manifest.metrics.original_accuracy for bundle in bundles]
    notes = []
    for place, rung in enumerate(alone):
        better = [one.member for one in alone if one.macs < rung.macs and accuracy[one.member] >= accuracy[place]]
        if better:
            notes.append(
                f"{names[place]} takes more work than {names[better[0]]} and is no more accurate"
                f" ({accuracy[place]:.2%}, {accuracy[better[0]]:.2%}): leave it out unless its stitches pay"
            )
    return tuple(notes)


def _rung(rung: Rung, names: Sequence[str]) -> ReportedRung:
    return ReportedRung(names[rung.member], rung.size, rung.macs, round(rung.loss, 4))


def _ladder_note(names: Sequence[str]) -> str:
    return f"no stitch between {', '.join(names)} loses less than the members themselves: the family is a ladder"


def _shown(stored: StoredBlock, stitch: FittedStitch) -> dict[str, Any]:
    return {
        "id": stored.block.id,
        "path_macs": stitch.path_macs,
        "error": round(stitch.error, 4),
        "loss": round(stitch.loss, 4),
        "gain": round(stitch.gain, 4),
    }


def _digest(job: Job) -> str:
    return hashlib.sha256(encode_description(job.description())).hexdigest()


def _stitches_in(packaged: Packaged) -> tuple[Mapping[str, Any], ...]:
    return tuple(json.loads((packaged.folder / REPORT).read_bytes()).get("stitches", ()))


def _part_bytes(packaged: Packaged) -> dict[str, int]:
    """The bytes that a device fetches to run each member alone, in its first rendition; empty without members."""
    bundle = Bundle.open(packaged.folder)
    if not bundle.supernet.members:
        return {}
    return {
        member.name: sum(map(bundle.blob_size, bundle.blob_names(path.edges)))
        for member, path in zip(bundle.supernet.members, bundle.supernet.originals, strict=True)
    }
