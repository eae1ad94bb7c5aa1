"""``package_with_bottlenecks(…)``: a packaged model gets narrow cut points, at which less is sent.

package the model → fit bottlenecks → place them → train them → insert them → write and sign
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import torch
from safetensors.torch import load, save
from torch import nn

from device_sdk.bundles.bundle import Bundle
from device_sdk.data.image_files import encode_jpeg
from device_sdk.errors import UsageError
from device_sdk.files.atomic import write_atomically
from device_sdk.progress import Progress, SilentProgress
from packager.bottlenecks.fitting import BottleneckFitter, FittedBottleneck
from packager.bottlenecks.inserting import Insertion, inserted
from packager.bottlenecks.placing import Floats, Table, most_gaining
from packager.errors import PackagingError
from packager.expanding import examples_of, expanded
from packager.inputs.job import Job
from packager.inputs.recipe import Recipe
from packager.inputs.weights import BranchWeights
from packager.joining.maps import extents
from packager.joining.networks import CutNetwork
from packager.joining.training import JointTraining, trained
from packager.output.bundle_folder import BundleWriter, Packaged, already_there, clear
from packager.output.checkpoints import Checkpoints, encode_description
from packager.output.output_claim import OutputClaim, work_folder
from packager.output.ownership import REPORT, require_work
from packager.pipeline import Limits, package
from packager.planning.run_plan import StepTimes
from packager.supernet.blocks.trainable import count_macs
from packager.training.ranks import Alone, Ranks

PREFIX = "bottleneck-"  # of their weights' names beside those of branches
_STATE, _MODEL = "bottlenecks.pt", "model"
_FITTED, _JUDGED = 96, 128  # training images for the fits, validation images for choosing
_JPEGS = 32  # training images whose size as JPEG is measured
_USABLE = 0.15  # loss, at most, of a bottleneck that is kept
_TRAINABLE = (_USABLE, 0.3, 0.5)  # of closed-form starts: training has brought more than half of such losses away
_SHARE = 0.3  # of the minutes, for fitting and training


def package_with_bottlenecks(
    job: Job,
    out: Path,
    *,
    private_key: Path | None = None,
    restart: bool = False,
    save_branches: Path | None = None,
    progress: Progress | None = None,
    ranks: Ranks | None = None,
    limits: Limits | None = None,
    table: Table | None = None,
) -> Packaged:
    """As ``package``, with up to ``job.recipe.bottlenecks`` bottlenecks in the bundle.

    The model is packaged in a folder of its own beside ``out`` until the whole is written. Bottlenecks train in this
    process alone. With ``branch_weights`` the bottlenecks in that file are inserted as they are.

    ``table``: the uplinks and devices for which they are placed.

    Raises:
        PackagingError, UsageError, DataError, SignatureError, StorageError: as ``package``; the model is no classifier.
    """
    limits, ranks = limits or Limits(), ranks or Alone()
    times = StepTimes(progress or SilentProgress(), clock=limits.clock)
    if job.task.kind != "classification":
        raise UsageError(
            f"bottlenecks are for classifiers; this is a model for {job.task.kind}", hint="leave bottlenecks out"
        )
    job.model.preprocessing.of_images()
    with OutputClaim(out) as claim:
        description = job.description()
        if restart:
            clear(out)
        elif out.exists():
            finished = already_there(out, description, private_key=private_key)
            ranks.from_lead(False)
            return finished
        require_work(work_folder(out))
        checkpoints = Checkpoints(work_folder(out), description, started=limits.started, clock=limits.clock)
        checkpoints.begin()
        own, given = _without_bottlenecks(job)
        made = package(
            own,
            checkpoints.folder / _MODEL,
            save_branches=save_branches,
            progress=times,
            ranks=ranks,
            limits=dataclasses.replace(limits, started=None),
        )
        checkpoints.save_time()
        found = _found(job, given, table or Table(), checkpoints.folder, times)
        if save_branches is not None:
            _save(found.bottlenecks, save_branches)
        with BundleWriter(claim) as writer:
            manifest = inserted(Bundle.open(made.folder), found.insertions, writer, progress=times)
            manifest = msgspec.structs.replace(
                manifest,
                notes=(*manifest.notes, *found.notes),
                provenance=msgspec.structs.replace(manifest.provenance, recipe=job.recipe.choices()),
            )
            cost = {"seconds": checkpoints.seconds, "peak_rss_bytes": checkpoints.peak_rss_bytes}
            report = {"step_seconds": times.seconds, "training_report": made.training_report}
            writer.add_note(REPORT, encode_description(description | cost | report))
            writer.finish(manifest, private_key=private_key)
        packaged = Packaged(
            out,
            manifest,
            checkpoints.seconds,
            checkpoints.peak_rss_bytes,
            True,
            times.seconds,
            training_report=made.training_report,
        )
        checkpoints.remove()
        return packaged


@dataclass(frozen=True)
class _Found:
    bottlenecks: tuple[FittedBottleneck, ...]
    insertions: tuple[Insertion, ...]
    notes: tuple[str, ...]


def _without_bottlenecks(job: Job) -> tuple[Job, BranchWeights | None]:
    """The job of the model alone, which leaves minutes for bottlenecks, and given weights of these."""
    recipe = msgspec.structs.replace(job.recipe, bottlenecks=0)
    if recipe.budget_minutes is not None:
        recipe = msgspec.structs.replace(recipe, budget_minutes=(1 - _SHARE) * recipe.budget_minutes)
    if job.branch_weights is None:
        return dataclasses.replace(job, recipe=recipe), None
    given = {name: value for name, value in job.branch_weights.items() if name.startswith(PREFIX)}
    rest = {name: value for name, value in job.branch_weights.items() if name not in given}
    return dataclasses.replace(job, recipe=recipe, branch_weights=rest), given or None


def _found(job: Job, given: BranchWeights | None, table: Table, folder: Path, progress: Progress) -> _Found:
    """Bottlenecks for the job's model: those whose weights are ``given``, or fitted, placed and trained ones."""
    network = _network(job)
    images, judges = job.training_samples(_FITTED), torch.from_numpy(job.prepared(count=_JUDGED))
    fitter = BottleneckFitter(network, images, judges, seed=job.recipe.seed, progress=progress)
    if given is not None:
        chosen = tuple(fitter.judged(_with_weights(fitter, given)))
    else:
        chosen = _chosen(job, network, fitter, table, folder, progress)
    notes = [
        f"bottleneck at cut point {one.cut}: {one.channels} of {extents(network.cuts[one.cut][0].shape)[1]} channels,"
        f" {one.crossing.size_bytes} bytes in 4 bits; behind it {one.changed:.1%} of the answers change"
        for one in chosen
    ]
    if not chosen:
        notes.append("no bottleneck: none that would save latency keeps the answers")
    return _Found(chosen, tuple(_insertion(one, network, judges) for one in chosen), tuple(notes))


def _chosen(
    job: Job, network: CutNetwork, fitter: BottleneckFitter, table: Table, folder: Path, progress: Progress
) -> tuple[FittedBottleneck, ...]:
    """The bottlenecks that together save most, of those that still answer as the model does after training."""
    recipe, macs, possible = job.recipe, network.macs_until[-1], fitter.possible
    than_ms = table.baseline_ms(fitter.plain, jpeg_bytes(job), macs)
    gains = {pair: table.gains(one, than_ms, macs) for pair, one in possible.items()}
    candidates = fitter.candidates(pair for pair, saved in gains.items() if saved.any())
    length = _length(recipe)
    promising: dict[tuple[int, int], FittedBottleneck] = {}
    for limit in (_USABLE,) if length.is_none else _TRAINABLE:
        few = _pick([one for one in candidates if one.loss <= limit], gains, count=recipe.bottlenecks)
        promising |= {(one.cut, one.channels): one for one in few}
    made = trained(
        tuple(promising.values()),
        [network],
        job.batches(),
        recipe,
        length,
        state=folder / _STATE,
        title="train bottlenecks",
        progress=progress,
    )
    pairs = zip(promising.values(), fitter.judged(made), strict=True)
    usable = [one for one in (min(pair, key=lambda one: one.loss) for pair in pairs) if one.loss <= _USABLE]
    return tuple(sorted(_pick(usable, gains, count=recipe.bottlenecks), key=lambda one: one.cut))


def _length(recipe: Recipe) -> JointTraining:
    minutes = recipe.budget_minutes
    return JointTraining(steps=recipe.steps or None, seconds=None if minutes is None else 60 * _SHARE * minutes)


def _pick(
    bottlenecks: Sequence[FittedBottleneck], gains: Mapping[tuple[int, int], Floats], *, count: int
) -> list[FittedBottleneck]:
    """The bottlenecks that together save most; a single one of each cut point."""
    places = most_gaining([gains[one.cut, one.channels] for one in bottlenecks], count=count)
    return list({bottlenecks[place].cut: bottlenecks[place] for place in reversed(places)}.values())


def _network(job: Job) -> CutNetwork:
    expansion = expanded(dataclasses.replace(job, branch_weights=None), torch.from_numpy(examples_of(job)))
    cuts = tuple(cut.tensors for cut in expansion.cut_points)
    if any(cut.mandatory for cut in expansion.cut_points):
        raise PackagingError("the head reads several cut points: such a model has no bottlenecks")
    return CutNetwork(expansion.originals, cuts)


def jpeg_bytes(job: Job) -> int:
    """Mean size of some training images as JPEGs, or of their pixels where they have not 1 or 3 channels."""
    pixels = job.training_pixels(_JPEGS)
    if pixels.shape[-1] not in (1, 3):
        return int(pixels[0].nbytes)
    return round(float(np.mean([len(encode_jpeg(image)) for image in pixels])))


class _Decoder(nn.Module):
    """Restores the features of a cut point and runs the original block behind it."""

    def __init__(self, restore: nn.Module, following: nn.Module) -> None:
        super().__init__()
        self.restore, self.following = restore, following

    def forward(self, sent: torch.Tensor) -> torch.Tensor:
        """[n, *bottleneck] → [n, *cut point behind]."""
        answer: torch.Tensor = self.following(self.restore(sent))
        return answer


@torch.no_grad()
def _insertion(one: FittedBottleneck, network: CutNetwork, images: torch.Tensor) -> Insertion:
    encoder, following = one.module.encoder, network.blocks[one.cut]
    decoder = _Decoder(one.module.decoder, following.module).eval()
    features = network.features_at(one.cut, images[:_JPEGS])
    sent, expected = encoder(features), following.module(features)
    low, high = (float(f"{value:.4g}") for value in (sent.min(), sent.max()))
    error = float((decoder(sent) - expected).square().mean() / expected.var().clamp_min(1e-12))
    shape = network.cuts[one.cut][0].shape
    macs = count_macs(encoder, shape), count_macs(decoder, tuple(sent.shape[1:]))
    return Insertion(one.cut, one.channels, encoder, decoder, low, high, *macs, error)


def _save(bottlenecks: Sequence[FittedBottleneck], path: Path) -> None:
    """Add the weights of ``bottlenecks`` to the branches in ``path``, atomically."""
    tensors = load(path.read_bytes()) | {
        f"{PREFIX}{one.cut}-{one.channels}.{key}": value.detach().contiguous()
        for one in bottlenecks
        for key, value in one.module.state_dict().items()
    }
    write_atomically(path, save(tensors))


def _with_weights(fitter: BottleneckFitter, given: BranchWeights) -> list[FittedBottleneck]:
    """The bottlenecks of a file, with their weights."""
    states: dict[tuple[int, int], dict[str, torch.Tensor]] = {}
    for name, value in given.items():
        owner, _, key = name.removeprefix(PREFIX).partition(".")
        cut, _, channels = owner.partition("-")
        if not (cut.isdigit() and channels.isdigit()):
            raise UsageError(f"the branch weights name no bottleneck: {name[:80]}")
        states.setdefault((int(cut), int(channels)), {})[key] = value
    missing = sorted({cut for cut, _ in states} - set(fitter.usable_cuts))
    if missing:
        raise UsageError(f"the branch weights have a bottleneck at cut point {missing[0]}, where the model allows none")
    found = fitter.candidates(sorted(states))
    for one in found:
        try:
            one.module.load_state_dict(states[one.cut, one.channels])
        except RuntimeError as error:
            raise UsageError(f"the branch weights of bottleneck {one.cut}-{one.channels} do not fit it") from error
    return found
