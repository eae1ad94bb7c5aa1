"""``package(…)``: a pretrained model becomes a signed bundle. Read it top to bottom; each step is a module.

trace → expand → train (distil, tune, exits) → export → verify → renditions → validate → write and sign
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from device_sdk.bundles import signing
from device_sdk.bundles.bundle import MANIFEST, SIGNATURE, Bundle
from device_sdk.bundles.manifest import Manifest
from device_sdk.errors import DataError, PathweaveError, UsageError
from device_sdk.files.atomic import write_atomically
from device_sdk.progress import Progress, SilentProgress
from packager.assembly.bundle_writer import BundleWriter
from packager.assembly.stored_manifest import stored_manifest
from packager.assembly.validation import SUBNETS_PER_RANGE, Validation, validate
from packager.assembly.verified import verify
from packager.errors import PackagingError, ResumeError
from packager.exporting.export import ExportedBlocks, export_blocks
from packager.fitting import applied, fit_once
from packager.inputs.job import Job
from packager.planning.estimate import EXPORT, SIZES, VERIFY, WRITE
from packager.planning.run_plan import Plan, estimated, estimator_for, within_limits
from packager.planning.step_times import StepTimes
from packager.renditions import make_renditions
from packager.renditions.any_size import AnySizeCheck
from packager.renditions.calibration import Calibration, held_back_last
from packager.supernet.blocks.streams import several
from packager.supernet.branch_weights import load_branches, write_branches
from packager.supernet.exits import attach_exits, without_untrained_exits
from packager.supernet.expansion import Expansion, expand, shrink_rates_for
from packager.supernet.input_sizes import UsableSize, candidate_sizes, usable_sizes
from packager.supernet.macs_ranges import MacsRanges
from packager.tracing.cut_points import FUSED
from packager.tracing.traced_model import TracedModel, trace
from packager.training.checkpoints import Checkpoints, encode_description, require_same_run
from packager.training.phases import EXITS
from packager.training.range_accuracy import RangeAccuracy
from packager.training.ranks import Alone, Ranks
from packager.training.trainer import Trainer
from packager.training.usefulness import without_useless_skips

REPORT = "packaging.json"  # beside the manifest: how the bundle was made and how long it took; not part of it
_WATCHED, _WATCHED_WITH_PATIENCE = 128, 512  # validation samples that show how the tuning goes
_JUDGED = 512  # validation samples on which identities are judged
_SIZE_SAMPLES = 64  # training samples on which other input sizes are compared with the model's own
_EXAMPLES = 64  # real samples at most that describe the cut points and check the original path
_LEAST_EXAMPLES = 8
_EXAMPLE_BYTES = 8_000_000
_FITTED, _FIT_JUDGED = 160, 48  # training samples that blocks are fitted to, and that choose among the fits
_FIT_SHARE = 0.25  # of the budget, at most
_FIT = "fit.pt"


@dataclass(frozen=True)
class Packaged:
    """A finished bundle. ``seconds`` counts interrupted runs as well; ``fresh`` is False if it was there already.

    ``peak_rss_bytes``: the most memory that packaging took, None where the system does not tell. ``step_seconds``: of
    the steps of the run that finished it. ``training_report``: what the trainer says became of its phases.
    """

    folder: Path
    manifest: Manifest
    seconds: float
    peak_rss_bytes: int | None
    fresh: bool
    step_seconds: Mapping[str, float] = field(default_factory=dict)
    training_report: tuple[str, ...] = ()


@dataclass(frozen=True)
class Limits:
    """``memory_bytes``: the most that packaging may hold; half of the machine's unless it is said.

    ``started`` on ``clock``: when the run began, from which the recipe's minutes count; now unless it is said.
    """

    memory_bytes: int | None = None
    started: float | None = None
    clock: Callable[[], float] = time.monotonic


def package(
    job: Job,
    out: Path,
    *,
    private_key: Path | None = None,
    restart: bool = False,
    save_branches: Path | None = None,
    progress: Progress | None = None,
    ranks: Ranks | None = None,
    limits: Limits | None = None,
) -> Packaged:
    """Turn a job into a bundle in the folder ``out``; ``save_branches``: a file for the weights of what was added.

    A run that is killed at any point goes on from its last saved state when it is called again with the same job; its
    work lies in ``<out>.work``. With ``recipe.steps`` the bundle depends on nothing but the job, unless memory is too
    short for its batch, and in its last digits on how many processes train. ``ranks``: they, if there are several; this
    is the first, the others ``follow``.

    Raises:
        TraceError, TrainingError, VerificationError: the model cannot be packaged (kinds of PackagingError).
        DataError: the model does not answer with one number per class of the data.
        UsageError: the minutes or the memory are below the least; names it.
        ResumeError: ``out`` or its work folder belongs to another run.
        SignatureError: the key cannot be used.
        StorageError: the disk is full.
    """
    ranks, limits = ranks or Alone(), limits or Limits()
    times = StepTimes(progress or SilentProgress(), clock=limits.clock)
    if not out.name:
        raise UsageError(f"{out} cannot be the folder of a bundle", hint="name a folder that packaging may make")
    if private_key is not None:
        signing.sign(b"", private_key=private_key)  # a key that cannot sign is told now, not after the training
    description = job.description()
    if restart:
        _clear(out)
    elif out.exists():
        finished = _already_there(out, description, private_key=private_key)
        ranks.from_lead(False)
        return finished
    checkpoints = Checkpoints(
        _work_folder(out), _but_renditions(description), started=limits.started, clock=limits.clock
    )
    ranks.from_lead(True)
    with times.whole("trace and expand"):
        examples = _examples(job)
        expansion = _expanded(job, torch.from_numpy(examples))
        plan = Plan(job, expansion, torch.from_numpy(examples), limits.memory_bytes, checkpoints)
    plan.announce()
    checkpoints.begin()
    expansion = _fitted(job, expansion, checkpoints, times, ranks)
    plan.settle(expansion)
    trainer = _trained(job, expansion, checkpoints, times, ranks, plan)
    expansion = expansion.noting(*trainer.notes, *plan.notes)
    if save_branches is not None:
        write_branches(expansion, save_branches)
    if job.branch_weights is None:
        expansion = without_untrained_exits(expansion, steps=trainer.steps_done[EXITS])
    if job.recipe.identity and several(expansion.traced.cuts):  # elsewhere the fit has judged them
        with times.whole("judge identities"):
            expansion = _without_useless_skips(job, expansion)
    plan.settle(expansion)
    with plan.step(times, EXPORT):
        exported = export_blocks(expansion)
    batch = plan.now.batch
    verified = verify(exported, examples, seed=job.recipe.seed, batch=batch, progress=times)
    plan.learn(VERIFY, times.of(VERIFY))
    with times.whole(SIZES, expected_s=plan.now.seconds.get(SIZES)):
        sizes, size_notes = _input_sizes(job, expansion)
    kinds = make_renditions(
        job.recipe.renditions,
        exported,
        verified.golden,
        _calibration(job, expansion, sizes, count=plan.calibration_samples(), batch=batch),
        progress=times,
        cache=checkpoints.folder,
    )
    expansion = expansion.noting(*size_notes, *job.notes)
    check = AnySizeCheck(exported, sizes)
    kinds = tuple(check.checked(kind, times) for kind in kinds)
    validated = _validate(job, exported, batch=batch, seconds=plan.validation_seconds(), limits=limits, progress=times)
    with plan.step(times, WRITE), BundleWriter(out) as writer:
        manifest = stored_manifest(
            job, expansion, kinds, check.described(), verified, validated, trainer.steps_done, writer
        )
        report = tuple(map(str, trainer.report))
        cost = _cost(checkpoints, times, validated) | {
            "training": [asdict(phase) for phase in trainer.report],
            "training_report": report,
        }
        writer.add_note(REPORT, encode_description(description | cost))
        writer.finish(manifest, private_key=private_key)
    checkpoints.remove()
    return Packaged(
        out, manifest, checkpoints.seconds, checkpoints.peak_rss_bytes, True, times.seconds, training_report=report
    )


def dry_run(job: Job, *, limits: Limits | None = None, progress: Progress | None = None) -> dict[str, object]:
    """What packaging the job would take, without doing it: the model is traced, expanded and run a few times.

    Raises:
        TraceError, DataError: as ``package``. Limits below the least are reported, not refused.
    """
    limits = limits or Limits()
    times = StepTimes(progress or SilentProgress(), clock=limits.clock)
    started = limits.clock() if limits.started is None else limits.started
    with times.whole("trace and expand"):
        examples = torch.from_numpy(_examples(job))
        expansion = _expanded(job, examples)
        estimator = estimator_for(job, expansion, examples)
    return estimated(estimator, limits.memory_bytes, spent=limits.clock() - started)


def _cost(checkpoints: Checkpoints, times: StepTimes, validated: Validation) -> dict[str, object]:
    """What packaging took, and how sure the validation is: for the report beside the manifest."""
    return {
        "seconds": checkpoints.seconds,
        "peak_rss_bytes": checkpoints.peak_rss_bytes,
        "step_seconds": times.seconds,
        "validation": {
            "samples": validated.samples,
            "standard_error": round(validated.standard_error, 5),
            "range_samples": validated.range_samples,
            "range_errors": [round(error, 5) for error in validated.range_errors],
        },
    }


def follow(job: Job, out: Path, *, ranks: Ranks) -> None:
    """What the other processes do while the first one packages: their share of the training, and nothing else.

    Raises:
        TrainingError: as ``package``; another process is gone, or was started with another job.
    """
    if ranks.from_lead(True):
        expansion = _expanded(job, torch.from_numpy(_examples(job)))
        checkpoints = Checkpoints(_work_folder(out), {}, leads=False)
        expansion = _fitted(job, expansion, checkpoints, SilentProgress(), ranks)
        _trained(job, expansion, checkpoints, SilentProgress(), ranks)


def _fitted(job: Job, expansion: Expansion, checkpoints: Checkpoints, progress: Progress, ranks: Ranks) -> Expansion:
    """Added blocks start as well as they can without training; those from ``branch_weights`` stay as they are.

    Copies between cut points of several tensors are not fitted.
    """
    if job.branch_weights is not None or not expansion.added or several(expansion.traced.cuts):
        return expansion
    found = None
    if ranks.leads:
        samples = job.training_samples(_FITTED + _FIT_JUDGED)
        judged = max(1, len(samples) * _FIT_JUDGED // (_FITTED + _FIT_JUDGED))
        seconds = None if job.recipe.budget_minutes is None else _FIT_SHARE * 60 * job.recipe.budget_minutes
        found = fit_once(
            checkpoints.folder / _FIT,
            expansion,
            samples[judged:],
            held_out=samples[:judged],
            progress=progress,
            seconds=seconds,
            trained=bool(job.recipe.steps or job.recipe.budget_minutes),
        )
    found = ranks.state_from_lead(found)
    assert found is not None
    return applied(expansion, found)


def _trained(
    job: Job,
    expansion: Expansion,
    checkpoints: Checkpoints,
    progress: Progress,
    ranks: Ranks,
    plan: Plan | None = None,
) -> Trainer:
    """Train together with the other processes, if there are any; they are not needed any more then.

    ``plan``: that of the first process, which says for all how long and in what batches.
    """
    ranks.require_same(job.description)
    judge = _judge(job, expansion) if ranks.leads else None
    fitting = int(ranks.from_lead(plan.now.training_batch if plan else 0))
    recalibrate = int(ranks.from_lead(plan.recalibrate_batches if plan else 0))
    job = within_limits(job, recalibrate=recalibrate)
    source = job.batches(ranks.share, most=fitting or None)
    trainer = Trainer(
        expansion,
        source,
        job.recipe,
        checkpoints,
        progress,
        judge=judge,
        ranks=ranks,
        task=job.task,
        seconds_left=plan.training_seconds if plan else lambda: 0.0,
    )
    trainer.train()
    ranks.leave()
    return trainer


def _work_folder(out: Path) -> Path:
    return out.with_name(f"{out.name}.work")


def _but_renditions(description: Mapping[str, Any]) -> dict[str, Any]:
    """What a run's training depends on: one whose renditions cannot be made goes on with others."""
    return {**description, "recipe": {key: one for key, one in description["recipe"].items() if key != "renditions"}}


def _clear(out: Path) -> None:
    """Forget unfinished work, and a finished bundle if that is what ``out`` is."""
    if out.exists() and not (out / MANIFEST).exists():
        raise PackagingError(f"{out} exists and is not a bundle", hint="choose another --out folder")
    shutil.rmtree(_work_folder(out), ignore_errors=True)


def _already_there(out: Path, description: Mapping[str, Any], *, private_key: Path | None) -> Packaged:
    """The bundle that an earlier run of the same job has finished, or an error: nothing is overwritten unasked.

    A key that was not given then signs it now.
    """
    if not (out / REPORT).exists():
        raise PackagingError(
            f"{out} already exists", hint="choose another --out folder, or add --restart to replace it"
        )
    require_same_run(out / REPORT, description)
    try:
        bundle = Bundle.open(out)
        bundle.verify()
    except PathweaveError as error:
        raise ResumeError(f"{out} is damaged: {error}", hint="add --restart to package it again") from error
    if private_key is not None:
        _sign_again(out, private_key)
    shutil.rmtree(_work_folder(out), ignore_errors=True)  # left by a run that was killed just before its end
    report = json.loads((out / REPORT).read_bytes())
    steps, told = report.get("step_seconds", {}), tuple(report.get("training_report", ()))
    return Packaged(out, bundle.manifest, report["seconds"], report.get("peak_rss_bytes"), False, steps, told)


def _sign_again(out: Path, private_key: Path) -> None:
    signature = signing.sign((out / MANIFEST).read_bytes(), private_key=private_key)
    if not (out / SIGNATURE).exists() or (out / SIGNATURE).read_bytes() != signature:
        write_atomically(out / SIGNATURE, signature)


def _require_answers(job: Job, traced: TracedModel) -> None:
    """Refuse a model that does not answer what the task and the data's classes ask for."""
    complaint = job.task.complaint(traced.tensors[-1].shape, job.training.class_names)
    if complaint is not None:
        raise DataError(complaint, hint=f"docs/bundle_format.md says how a model for {job.task.kind} answers")
    if job.recipe.renditions != ("fp32",) and (traced.taps or several(traced.cuts)):
        kind = "a model in two stages" if traced.taps else "a model that is cut where several tensors are live"
        raise UsageError(f"{kind} is packaged in fp32 only so far", hint="leave renditions out")


def _examples(job: Job) -> npt.NDArray[np.float32]:
    """Prepared validation images [count, *input]: fewer of large ones, whose features are all held at once."""
    fitting = _EXAMPLE_BYTES // (4 * math.prod(job.model.input_shape))
    return job.prepared(count=max(_LEAST_EXAMPLES, min(_EXAMPLES, fitting)))


def _expanded(job: Job, examples: torch.Tensor) -> Expansion:
    """The supernet before its training: cut, with the blocks and exits that the recipe asks for, and their weights."""
    recipe = job.recipe
    fused = FUSED if recipe.fused is None else recipe.fused
    # only fp32 knows cut points of several tensors: with other renditions long stretches stay uncut
    only_fp32 = recipe.renditions == ("fp32",)
    traced = trace(job.model.module, examples, gamma=recipe.gamma, fused=fused, streams=only_fp32)
    _require_answers(job, traced)
    rates = recipe.shrink_rates
    if rates == "auto":
        rates = shrink_rates_for(sum(traced.parameters))
    expansion = expand(
        traced, max_span=recipe.max_span, tiled=recipe.tiled, shrink_rates=rates, identity=recipe.identity
    )
    if job.task.kind == "classification":
        expansion = attach_exits(expansion, count=recipe.exit_positions)
    if job.branch_weights is not None:
        expansion = load_branches(expansion, job.branch_weights)
    return expansion


def _judge(job: Job, expansion: Expansion) -> RangeAccuracy | None:
    """What shows the progress of tuning: one path of each range of MACs, on a few validation samples."""
    if not expansion.trained:
        return None
    ranges = [paths for _, _, paths in MacsRanges(expansion).samples(1, seed=job.recipe.seed)]
    images, labels = job.held_out(_WATCHED_WITH_PATIENCE if job.recipe.patience else _WATCHED)
    return RangeAccuracy(expansion, images, labels, ranges=ranges, task=job.task)


def _without_useless_skips(job: Job, expansion: Expansion) -> Expansion:
    images, labels = job.held_out(_JUDGED)
    recipe = job.recipe
    judge = RangeAccuracy(expansion, images, labels, task=job.task)
    return without_useless_skips(expansion, judge, points=recipe.identity_points, seed=recipe.seed)


def _input_sizes(job: Job, expansion: Expansion) -> tuple[tuple[UsableSize, ...], tuple[str, ...]]:
    """The further input sizes of the bundle. Detectors, segmenters and models that take no images have none."""
    shape = expansion.traced.tensors[0].shape
    if job.task.kind != "classification" or len(shape) != 3:
        return (), ()
    wanted = job.recipe.input_sizes
    sizes = candidate_sizes((shape[1], shape[2])) if wanted == "auto" else list(wanted)
    return usable_sizes(expansion, job.training_samples(_SIZE_SAMPLES), sizes) if sizes else ((), ())


def _calibration(
    job: Job, expansion: Expansion, sizes: tuple[UsableSize, ...], *, count: int, batch: int
) -> Calibration:
    return Calibration(expansion, held_back_last(job.training_samples(count)), batch=batch, sizes=sizes)


def _validate(
    job: Job, exported: ExportedBlocks, *, batch: int, seconds: float, limits: Limits, progress: Progress
) -> Validation:
    return validate(
        exported,
        # small enough for each subnet of a range to have its turn
        lambda count: job.validation_batches(count=count, batch=min(batch, -(-count // SUBNETS_PER_RANGE))),
        len(job.validation),
        seed=job.recipe.seed,
        threads=torch.get_num_threads(),
        task=job.task,
        seconds=seconds,
        clock=limits.clock,
        progress=progress,
    )
