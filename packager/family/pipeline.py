"""``package_family(…)``: several pretrained networks become one signed bundle. Read it top to bottom.

package each member → fit stitches between them → number all cut points together → join → write and sign
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from device_sdk import __version__
from device_sdk.bundles.bundle import Bundle
from device_sdk.errors import UsageError
from device_sdk.progress import Progress, SilentProgress
from device_sdk.signing import signatures
from packager.errors import PackagingError
from packager.expanding import examples_of, expanded
from packager.family.joining import StoredBlock, common_sizes, depths_of, joined, joined_graph
from packager.family.members import FamilyMember
from packager.family.numbering import acyclic, numbered
from packager.family.stitch_blocks import stored_stitches
from packager.family.stitches import FittedStitch, MemberNetwork, StitchFitter
from packager.family.training import StitchTraining, trained
from packager.inputs.job import Job
from packager.output.bundle_folder import BundleWriter, Packaged, already_there, clear
from packager.output.checkpoints import Checkpoints, encode_description
from packager.output.output_claim import OutputClaim, work_folder
from packager.output.ownership import REPORT, require_work
from packager.pipeline import Limits, package
from packager.planning.run_plan import StepTimes
from packager.supernet.input_sizes import candidate_sizes

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
    run that was killed goes on with the member at which it stopped.

    Raises:
        PackagingError, UsageError, DataError, SignatureError, StorageError: as ``package``; a member cannot be part of
            a family: it reads several cut points at once, or has renditions for another runtime.
    """
    limits = limits or Limits()
    times = StepTimes(progress or SilentProgress(), clock=limits.clock)
    if private_key is not None:
        signatures.sign(b"", private_key=private_key)  # an unusable key fails now
    default = f"{members[0].job.name}-family"[:128]
    members = _prepared(members)
    description = {"family": [one.name for one in members], "name": name or default}
    description |= {one.name: _digest(one.job) for one in members} | {"pathweave": __version__}
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
        bundles = []
        for member in members:
            own = dataclasses.replace(limits, started=None)
            made = package(member.job, work / member.name, progress=times, limits=own)
            checkpoints.save_time()
            bundles.append(Bundle.open(made.folder))
        _require_joinable(bundles, members)
        largest = members[0].job
        images = largest.training_samples(_FITTED)
        sizes = common_sizes(bundles)
        networks = [_network(member.job, bundle, sizes) for member, bundle in zip(members, bundles, strict=True)]
        fitter = StitchFitter(
            networks,
            images,
            torch.from_numpy(largest.prepared(count=_JUDGED)),  # members may know their training images by heart
            smaller=sizes[len(sizes) // 2] if sizes else None,
            seed=largest.recipe.seed,
            progress=times,
        )
        fitted = fitter.promising()
        length = StitchTraining(steps=largest.recipe.steps or None, seconds=_seconds(members))
        if length.is_none:
            stitches = fitter.chosen(fitted)
        else:
            source, recipe = largest.batches(), largest.recipe
            stitches = fitter.chosen(
                fitted, trained(fitted, networks, source, recipe, length, folder=work, progress=times)
            )
        depths = list(depths_of(bundles))
        allowed = acyclic(depths, [(one.start, one.end) for one in stitches])
        stitches = tuple(one for one in stitches if (one.start, one.end) in allowed)
        graph = joined_graph(bundles, numbered(depths, allowed))
        names = [member.name for member in members]
        blocks = stored_stitches(
            stitches,
            networks,
            names,
            graph,
            images,
            renditions=largest.recipe.renditions,
            progress=times,
        )
        points = fitter.member_points()
        if not stitches:
            graph = dataclasses.replace(graph, notes=(*graph.notes, _ladder_note(names)))
        dominated = _dominating(names, points, bundles)
        with BundleWriter(claim) as writer:
            manifest = joined(
                bundles,
                names,
                dataclasses.replace(graph, notes=(*graph.notes, *dominated)),
                blocks,
                writer,
                losses=[float(f"{loss * loss:.3g}") for _, loss in points],
                name=name or default,
                progress=times,
            )
            shown = tuple(_shown(block, one) for block, one in zip(blocks, stitches, strict=True))
            cost = {
                "seconds": checkpoints.seconds,
                "peak_rss_bytes": checkpoints.peak_rss_bytes,
                "step_seconds": times.seconds,
                "stitches": list(shown),
            }
            writer.add_note(REPORT, encode_description(description | cost))
            writer.finish(manifest, private_key=private_key)
        packaged = Packaged(out, manifest, checkpoints.seconds, checkpoints.peak_rss_bytes, True, times.seconds)
        checkpoints.remove()
        return PackagedFamily(packaged, shown, _part_bytes(packaged))


def _prepared(members: Sequence[FamilyMember]) -> list[FamilyMember]:
    """The members' jobs for a family: bundles of their own names, one list of input sizes, their share of the minutes.

    Where the recipe leaves the sizes open, they are those that each member would have alone.
    """
    job, recipe = members[0].job, members[0].job.recipe
    own = (job.model.input_shape[1], job.model.input_shape[2])
    if recipe.input_sizes == "auto":
        sizes = {size for member in members for size in (member.own_size, *candidate_sizes(member.own_size))} - {own}
        recipe = msgspec.structs.replace(recipe, input_sizes=tuple(sorted(sizes, reverse=True)))
    if recipe.budget_minutes is not None:
        recipe = msgspec.structs.replace(recipe, budget_minutes=recipe.budget_minutes / (len(members) + 1))
    return [dataclasses.replace(one, job=dataclasses.replace(one.job, recipe=recipe, name=one.name)) for one in members]


def _seconds(members: Sequence[FamilyMember]) -> float | None:
    """The stitches' share of the recipe's minutes: that of one member."""
    minutes = members[0].job.recipe.budget_minutes  # a member's share
    return None if minutes is None else 60 * minutes


def _network(job: Job, bundle: Bundle, sizes: Sequence[tuple[int, int]]) -> MemberNetwork:
    """The member's original blocks as torch modules, cut as in its bundle, with its shapes at further input sizes."""
    expansion = expanded(job, torch.from_numpy(examples_of(job)))
    cuts = tuple(cut.tensors for cut in bundle.supernet.cut_points)
    if len(cuts) != len(expansion.cut_points):
        raise PackagingError(f"{job.model.name} was cut into other blocks than before", hint="repeat with --restart")
    shapes = {one.size: tuple(tensors[0] for tensors in one.shapes) for one in bundle.manifest.input_sizes}
    return MemberNetwork(expansion.originals, cuts, tuple(shapes[size] for size in sizes))


def _require_joinable(bundles: Sequence[Bundle], members: Sequence[FamilyMember]) -> None:
    for bundle, member in zip(bundles, members, strict=True):
        if any(cut.mandatory for cut in bundle.supernet.cut_points):
            raise UsageError(f"the head of {member.name} reads several cut points: it cannot be part of a family")


def _dominating(
    names: Sequence[str], points: Sequence[tuple[int, float]], bundles: Sequence[Bundle]
) -> tuple[str, ...]:
    """A note for each member that costs more work than another and is less accurate: it is of no use alone."""
    accuracy = [bundle.manifest.metrics.original_accuracy for bundle in bundles]
    notes = []
    for place, (macs, _) in enumerate(points):
        better = [other for other, (less, _) in enumerate(points) if less < macs and accuracy[other] >= accuracy[place]]
        if better:
            notes.append(
                f"{names[place]} takes more work than {names[better[0]]} and is no more accurate"
                f" ({accuracy[place]:.2%}, {accuracy[better[0]]:.2%}): leave it out unless its stitches pay"
            )
    return tuple(notes)


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
    """The bytes that a device fetches to run each member alone, in its first rendition."""
    bundle = Bundle.open(packaged.folder)
    return {
        member.name: sum(map(bundle.blob_size, bundle.blob_names(path.edges)))
        for member, path in zip(bundle.supernet.members, bundle.supernet.originals, strict=True)
    }
