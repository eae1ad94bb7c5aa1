"""``package(…)``: a pretrained model becomes a signed bundle. Read it top to bottom; each step is a module.

trace → expand → train (distil, tune, exits) → export → verify → renditions → validate → write and sign
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from device_sdk.bundles.manifest import Manifest
from device_sdk.errors import UsageError
from device_sdk.progress import Progress, SilentProgress
from device_sdk.signing import signatures
from device_sdk.supernet.blocks import MAP_AXES
from packager.assembly.stored_manifest import stored_manifest
from packager.assembly.validation import SUBNETS_PER_RANGE, Validation, validate
from packager.assembly.verified import verify
from packager.branch_zoo.growing import block_seconds, grow_exits, with_stand_ins, without_exit_steps
from packager.branch_zoo.plain import without_untrained_exits
from packager.expanding import examples_of, expanded, write_branches
from packager.exporting.export import ExportedBlocks, export_blocks
from packager.fitting import applied, fit, fit_once
from packager.fitting.exit_heads import EXIT_BATCH, fit_exits, sample_count, with_exit_states
from packager.inputs.job import Job
from packager.output.bundle_folder import BundleWriter, Packaged, already_there, but_renditions, clear
from packager.output.checkpoints import Checkpoints, encode_description
from packager.output.output_claim import OutputClaim, work_folder
from packager.output.ownership import REPORT, require_work
from packager.planning.estimate import EXPORT, SIZES, VERIFY, WRITE
from packager.planning.run_plan import RunPlan, StepTimes, estimated, estimator_for, within_limits
from packager.renditions import make_renditions, require_kinds
from packager.renditions.any_size import AnySizeCheck, running_sizes
from packager.renditions.calibration import Calibration, held_back_last
from packager.supernet.blocks.streams import several
from packager.supernet.expansion import Expansion
from packager.supernet.input_sizes import UsableSize, candidate_sizes, require_sizes_of, usable_sizes
from packager.supernet.macs_ranges import MacsRanges
from packager.training.phases import EXITS
from packager.training.range_accuracy import RangeAccuracy, judge_skips
from packager.training.ranks import Alone, Ranks
from packager.training.trainer import Trainer

_WATCHED, _WATCHED_WITH_PATIENCE = 128, 512  # validation samples for evaluation during tuning

_SIZE_SAMPLES = 64  # training samples on which other input sizes are compared with the model's own
_FITTED, _FIT_JUDGED = 160, 48  # training samples for fitting blocks, and for choosing among the fits
_FITTED_SEQUENCES = 480  # samples of other kinds than images, which have fewer positions
_FIT_SHARE = 0.25  # of the budget, at most
_FIT = "fit.pt"


@dataclass(frozen=True)
class Limits:
    """Limits of a run. ``memory_bytes``: for packaging, by default half of the machine's memory.

    ``started``: the run's start on ``clock``, from which the recipe's minutes count; by default now.
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
    complete: Callable[[Manifest], Manifest] | None = None,
) -> Packaged:
    """Turn a job into a bundle in the folder ``out``.

    A run that was killed resumes from its last saved state when it is called again with the same job; its state is in
    ``<out>.work``. With ``recipe.steps`` the bundle is a function of the job, unless memory is too short for its batch;
    its last digits depend on the number of processes.

    Args:
        private_key: signs the bundle.
        restart: discard unfinished work and an existing bundle.
        save_branches: file for the weights of added blocks and exits.
        ranks: the process group in distributed training. This is rank 0; the other processes call ``follow``.
        complete: adds to the manifest what is known only once all blobs are, before it is written and signed.

    Raises:
        TraceError, TrainingError, VerificationError: the model cannot be packaged (kinds of PackagingError).
        DataError: the model does not have one output per class of the data.
        UsageError: the minutes or the memory are below the minimum; names it.
        ResumeError: ``out`` or its work folder belongs to another run.
        PackagingError: ``out`` or its work folder is something else, or holds files that packaging did not write.
        OutputBusyError: another process writes ``out``.
        SignatureError: the key cannot be used.
        StorageError: the disk is full.
        MissingExtraError: a rendition needs a library that is not installed.
    """
    ranks, limits = ranks or Alone(), limits or Limits()
    times = StepTimes(progress or SilentProgress(), clock=limits.clock)
    if not out.name:
        raise UsageError(f"{out} cannot be the folder of a bundle", hint="name a folder that packaging may create")
    if private_key is not None:
        signatures.sign(b"", private_key=private_key)  # an unusable key fails now, not after the training
    require_kinds(job.recipe.renditions)  # as is a missing library
    with OutputClaim(out) as claim:
        description = job.description()
        if restart:
            clear(out)
        elif out.exists():
            finished = already_there(out, description, private_key=private_key)
            ranks.from_lead(False)
            return finished
        require_work(work_folder(out))
        checkpoints = Checkpoints(
            work_folder(out), but_renditions(description), started=limits.started, clock=limits.clock
        )
        ranks.from_lead(True)
        with times.whole("trace and expand"):
            examples = examples_of(job)
            expansion = expanded(job, torch.from_numpy(examples))
            planned = with_stand_ins(job.recipe, expansion)
            plan = RunPlan(job, planned, torch.from_numpy(examples), limits.memory_bytes, checkpoints)
        plan.announce()
        checkpoints.begin()
        expansion = _fitted(job, expansion, checkpoints, times, ranks)
        expansion = _exits_fitted(job, expansion, checkpoints, times, ranks)
        plan.settle(with_stand_ins(job.recipe, expansion))
        trainer = _trained(job, expansion, checkpoints, times, ranks, plan)
        expansion = _with_exits(job, expansion, trainer, checkpoints, times, ranks, plan)
        expansion = expansion.noting(*trainer.notes, *plan.notes)
        if save_branches is not None:
            write_branches(expansion, save_branches)
        if job.branch_weights is None:
            expansion = without_untrained_exits(expansion, steps=trainer.steps_done[EXITS])
        expansion = judge_skips(
            expansion,
            job.held_out,
            task=job.task,
            points=job.recipe.identity_points,
            seed=job.recipe.seed,
            progress=times,
        )
        plan.settle(expansion)
        with plan.step(times, EXPORT):
            exported = export_blocks(expansion)
        batch = plan.now.batch
        verified = verify(exported, examples, seed=job.recipe.seed, batch=batch, progress=times)
        plan.learn(VERIFY, times.of(VERIFY))
        with times.whole(SIZES, expected_s=plan.now.seconds.get(SIZES)):
            sizes, size_notes = _input_sizes(job, exported)
        kinds = make_renditions(
            job.recipe.renditions,
            exported,
            verified.golden,
            Calibration(
                expansion,
                held_back_last(job.training_samples(plan.calibration_samples())),
                batch=batch,
                sizes=sizes,
            ),
            progress=times,
            cache=checkpoints.folder,
            chips=job.recipe.chips,
        )
        expansion = expansion.noting(*size_notes, *job.notes)
        check = AnySizeCheck(exported, sizes)
        kinds = tuple(check.checked(kind, times) for kind in kinds)
        validated = _validate(
            job, exported, batch=batch, seconds=plan.validation_seconds(), limits=limits, progress=times
        )
        with plan.step(times, WRITE), BundleWriter(claim) as writer:
            manifest = stored_manifest(
                job, expansion, kinds, check.described(), verified, validated, trainer.steps_done, writer
            )
            report = tuple(map(str, trainer.report))
            manifest = manifest if complete is None else complete(manifest)
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
    """Estimate the cost of packaging the job: the model is traced, expanded and run a few times.

    Raises:
        TraceError, DataError: as ``package``. Limits below the minimum are reported, not refused.
    """
    limits = limits or Limits()
    times = StepTimes(progress or SilentProgress(), clock=limits.clock)
    started = limits.clock() if limits.started is None else limits.started
    with times.whole("trace and expand"):
        examples = torch.from_numpy(examples_of(job))
        expansion = with_stand_ins(job.recipe, expanded(job, examples))
        estimator = estimator_for(job, expansion, examples)
    return estimated(estimator, limits.memory_bytes, spent=limits.clock() - started)


def _cost(checkpoints: Checkpoints, times: StepTimes, validated: Validation) -> dict[str, object]:
    """Cost of packaging and standard errors of the validation, for the report beside the manifest."""
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
    """The part of all ranks but the first: their share of the training, nothing else.

    Raises:
        TrainingError: as ``package``; another process has ended, or was started with another job.
    """
    if ranks.from_lead(True):
        expansion = expanded(job, torch.from_numpy(examples_of(job)))
        checkpoints = Checkpoints(work_folder(out), {}, leads=False)
        expansion = _fitted(job, expansion, checkpoints, SilentProgress(), ranks)
        expansion = _exits_fitted(job, expansion, checkpoints, SilentProgress(), ranks)
        trainer = _trained(job, expansion, checkpoints, SilentProgress(), ranks)
        _with_exits(job, expansion, trainer, checkpoints, SilentProgress(), ranks)


def _fitted(job: Job, expansion: Expansion, checkpoints: Checkpoints, progress: Progress, ranks: Ranks) -> Expansion:
    """Initialise added blocks by the closed-form fit and drop useless ones.

    Skipped with ``branch_weights``, and for models with cut points of several tensors.
    """
    if job.branch_weights is not None or not expansion.added or several(expansion.traced.cuts):
        return expansion
    found = None
    if ranks.leads:
        fitted = _FITTED if len(job.model.input_shape) == MAP_AXES else _FITTED_SEQUENCES
        samples = job.training_samples(fitted + _FIT_JUDGED)
        judged = max(1, len(samples) * _FIT_JUDGED // (fitted + _FIT_JUDGED))
        seconds = None if job.recipe.budget_minutes is None else _FIT_SHARE * 60 * job.recipe.budget_minutes
        found = fit_once(
            checkpoints.folder / _FIT,
            expansion,
            lambda: fit(
                expansion,
                samples[judged:],
                held_out=samples[:judged],
                progress=progress,
                seconds=seconds,
                trained=bool(job.recipe.steps or job.recipe.budget_minutes),
            ),
        )
    found = ranks.state_from_lead(found)
    assert found is not None
    return applied(expansion, found)


def _exits_fitted(
    job: Job, expansion: Expansion, checkpoints: Checkpoints, progress: Progress, ranks: Ranks
) -> Expansion:
    """Exits start from a fit of their last layer. Skipped with ``branch_weights``, and where they are not trained."""
    trained = job.recipe.steps or job.recipe.budget_minutes
    if job.branch_weights is not None or not expansion.exits or not trained:
        return expansion
    states = None
    if ranks.leads:
        count = sample_count(4 * math.prod(job.model.input_shape))
        batches = job.training_batches(count=count, batch=EXIT_BATCH)
        states = fit_exits(expansion, batches, progress=progress)
    states = ranks.state_from_lead(states)
    assert states is not None
    return with_exit_states(expansion, states)


def _trained(
    job: Job,
    expansion: Expansion,
    checkpoints: Checkpoints,
    progress: Progress,
    ranks: Ranks,
    plan: RunPlan | None = None,
) -> Trainer:
    """Train, data-parallel if ``ranks`` are several.

    ``plan``: of rank 0, which sets time and batch for all.
    """
    ranks.require_same(job.description)
    judge = _judge(job, expansion) if ranks.leads else None
    fitting = int(ranks.from_lead(plan.now.training_batch if plan else 0))
    recalibrate = int(ranks.from_lead(plan.recalibrate_batches if plan else 0))
    job = without_exit_steps(within_limits(job, recalibrate=recalibrate), expansion)
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
        seconds_left=block_seconds(job.recipe, expansion, plan.training_seconds if plan else lambda: 0.0),
    )
    trainer.train()
    return trainer


def _with_exits(
    job: Job,
    expansion: Expansion,
    trainer: Trainer,
    checkpoints: Checkpoints,
    progress: Progress,
    ranks: Ranks,
    plan: RunPlan | None = None,
) -> Expansion:
    """The expansion with exits of the zoo, if the recipe wants them; ``ranks`` but the first leave afterwards."""
    fitting = int(ranks.from_lead(plan.now.training_batch if plan else 0))
    grown = grow_exits(
        job,
        expansion,
        checkpoints,
        progress,
        ranks,
        seconds_left=plan.training_seconds if plan else lambda: 0.0,
        batch=fitting or None,
    )
    trainer.steps_done[EXITS] += grown.steps
    ranks.leave()
    return grown.expansion


def _judge(job: Job, expansion: Expansion) -> RangeAccuracy | None:
    """Evaluates tuning on one path of each range of MACs and a few validation samples."""
    if not expansion.trained:
        return None
    ranges = [paths for _, _, paths in MacsRanges(expansion).samples(1, seed=job.recipe.seed)]
    images, labels = job.held_out(_WATCHED_WITH_PATIENCE if job.recipe.patience else _WATCHED)
    return RangeAccuracy(expansion, images, labels, ranges=ranges, task=job.task)


def _input_sizes(job: Job, exported: ExportedBlocks) -> tuple[tuple[UsableSize, ...], tuple[str, ...]]:
    """Additional input sizes of the bundle. Only models of images and of series, such as texts, have them."""
    expansion = exported.expansion
    shape = expansion.traced.tensors[0].shape
    if len(shape) not in (2, 3):
        return (), ()
    wanted = job.recipe.input_sizes
    require_sizes_of(wanted, shape)
    sizes = candidate_sizes(shape[1:]) if wanted == "auto" else list(wanted)
    if not sizes:
        return (), ()
    samples = job.training_samples(_SIZE_SAMPLES)
    usable, notes = usable_sizes(expansion, samples, sizes, task=job.task, listed=wanted != "auto")
    running, more = running_sizes(exported, usable)
    return running, (*notes, *more)


def _validate(
    job: Job, exported: ExportedBlocks, *, batch: int, seconds: float, limits: Limits, progress: Progress
) -> Validation:
    return validate(
        exported,
        # small enough that every subnet of a range gets at least one batch
        lambda count: job.validation_batches(count=count, batch=min(batch, -(-count // SUBNETS_PER_RANGE))),
        len(job.validation),
        seed=job.recipe.seed,
        threads=torch.get_num_threads(),
        task=job.task,
        seconds=seconds,
        clock=limits.clock,
        progress=progress,
    )
