"""``package(…)``: a pretrained model becomes a signed bundle. Read it top to bottom; each step is a module.

trace → expand → train (distil, tune, exits) → export → verify → renditions → validate → write and sign
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from device_sdk import __version__
from device_sdk.atomic import write_atomically
from device_sdk.bundles import signing
from device_sdk.bundles.bundle import MANIFEST, SIGNATURE, Bundle
from device_sdk.bundles.manifest import FORMAT_VERSION, Manifest, Metrics, Onnx, Provenance, SelfTest, Task
from device_sdk.errors import DataError, PathweaveError, UsageError
from device_sdk.graph import CutPoint, Golden
from device_sdk.progress import Progress, SilentProgress
from packager.branch_weights import load_branches, write_branches
from packager.bundle_writer import BundleWriter
from packager.errors import PackagingError, ResumeError
from packager.exits import attach_exits, without_untrained_exits
from packager.expansion import Expansion, expand, shrink_rates_for
from packager.exporting.export import ExportedBlocks, export_blocks
from packager.exporting.onnx_exporter import IR_VERSION, OPSET
from packager.exporting.verification import SELF_TEST_BATCH, SELF_TEST_SEED, Verifier
from packager.fitting import applied, fit_once
from packager.job import Job
from packager.macs_ranges import MacsRanges
from packager.renditions import make_renditions
from packager.renditions.calibration import Calibration, sample_count
from packager.renditions.made import MadeKind
from packager.tracing.cut_points import FUSED
from packager.tracing.traced_model import TracedModel, trace
from packager.training.checkpoints import Checkpoints, encode_description, require_same_run
from packager.training.losses import distillation_errors
from packager.training.phases import DISTIL, EXITS, TUNE
from packager.training.range_accuracy import RangeAccuracy
from packager.training.ranks import Alone, Ranks
from packager.training.trainer import Trainer
from packager.training.usefulness import without_useless_skips
from packager.validation import Validation, validate

REPORT = "packaging.json"  # beside the manifest: how the bundle was made and how long it took; not part of it
_WATCHED, _WATCHED_WITH_PATIENCE = 128, 512  # validation samples that show how the tuning goes
_JUDGED = 512  # validation samples on which identities are judged
_FITTED, _FIT_JUDGED = 160, 48  # training samples that blocks are fitted to, and that choose among the fits
_FIT_SHARE = 0.25  # of the budget, at most
_FIT = "fit.pt"
_EXAMPLES = 64  # real samples that describe the cut points and check the original path


@dataclass(frozen=True)
class Packaged:
    """A finished bundle. ``seconds`` counts interrupted runs as well; ``fresh`` is False if it was there already.

    ``peak_rss_bytes``: the most memory that packaging took, None where the system does not tell.
    """

    folder: Path
    manifest: Manifest
    seconds: float
    peak_rss_bytes: int | None
    fresh: bool


def package(
    job: Job,
    out: Path,
    *,
    private_key: Path | None = None,
    restart: bool = False,
    save_branches: Path | None = None,
    progress: Progress | None = None,
    ranks: Ranks | None = None,
) -> Packaged:
    """Turn a job into a bundle in the folder ``out``; ``save_branches``: a file for the weights of what was added.

    A run that is killed at any point goes on from its last saved state when it is called again with the same job; its
    work lies in ``<out>.work``. With ``recipe.steps`` the bundle depends on nothing but the job, and in its last digits
    on how many processes train. ``ranks``: they, if there are several; this is the first, the others ``follow``.

    Raises:
        TraceError, TrainingError, VerificationError: the model cannot be packaged (kinds of PackagingError).
        DataError: the model does not answer with one number per class of the data.
        ResumeError: ``out`` or its work folder belongs to another run.
        SignatureError: the key cannot be used.
        StorageError: the disk is full.
    """
    progress, ranks = progress or SilentProgress(), ranks or Alone()
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
    checkpoints = Checkpoints(_work_folder(out), _but_renditions(description))
    ranks.from_lead(True)
    with _step(progress, "trace and expand"):
        examples = job.prepared(count=_EXAMPLES)
        expansion = _expanded(job, torch.from_numpy(examples))
    checkpoints.begin()
    expansion = _fitted(job, expansion, checkpoints, progress, ranks)
    trainer = _trained(job, expansion, checkpoints, progress, ranks)
    expansion = expansion.noting(*trainer.notes)
    if save_branches is not None:
        write_branches(expansion, save_branches)
    if job.branch_weights is None:
        expansion = without_untrained_exits(expansion, steps=trainer.steps_done[EXITS])
    if job.recipe.identity:
        with _step(progress, "judge identities"):
            expansion = _without_useless_skips(job, expansion)
    with _step(progress, "export"):
        exported = export_blocks(expansion)
    with _step(progress, "verify"):
        verified = _verify(exported, examples, seed=job.recipe.seed)
    kinds = make_renditions(
        job.recipe.renditions,
        exported,
        verified.golden,
        _calibration(job, expansion),
        progress=progress,
        cache=checkpoints.folder,
    )
    with _step(progress, "validate"):
        validated = _validate(job, exported)
    with _step(progress, "write"), BundleWriter(out) as writer:
        metrics = _metrics(job, trainer, verified, validated)
        manifest = _manifest(job, expansion, kinds, verified, validated, metrics, writer)
        cost: dict[str, Any] = {"seconds": checkpoints.seconds, "peak_rss_bytes": checkpoints.peak_rss_bytes}
        cost |= {"training": [asdict(one) for one in trainer.report]}
        writer.add_note(REPORT, encode_description(description | cost))
        writer.finish(manifest, private_key=private_key)
    checkpoints.remove()
    return Packaged(out, manifest, checkpoints.seconds, checkpoints.peak_rss_bytes, fresh=True)


def follow(job: Job, out: Path, *, ranks: Ranks) -> None:
    """What the other processes do while the first one packages: their share of the training, and nothing else.

    Raises:
        TrainingError: as ``package``; another process is gone, or was started with another job.
    """
    if ranks.from_lead(True):
        expansion = _expanded(job, torch.from_numpy(job.prepared(count=_EXAMPLES)))
        checkpoints = Checkpoints(_work_folder(out), {}, leads=False)
        expansion = _fitted(job, expansion, checkpoints, SilentProgress(), ranks)
        _trained(job, expansion, checkpoints, SilentProgress(), ranks)


def _fitted(job: Job, expansion: Expansion, checkpoints: Checkpoints, progress: Progress, ranks: Ranks) -> Expansion:
    """Added blocks start as well as they can without training; those from ``branch_weights`` stay as they are."""
    if job.branch_weights is not None or not expansion.added:
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


def _trained(job: Job, expansion: Expansion, checkpoints: Checkpoints, progress: Progress, ranks: Ranks) -> Trainer:
    """Train together with the other processes, if there are any; they are not needed any more then."""
    ranks.require_same(job.description)
    judge = _judge(job, expansion) if ranks.leads else None
    source = job.batches(ranks.share)
    trainer = Trainer(expansion, source, job.recipe, checkpoints, progress, judge=judge, ranks=ranks, task=job.task)
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
    return Packaged(out, bundle.manifest, report["seconds"], report.get("peak_rss_bytes"), fresh=False)


def _sign_again(out: Path, private_key: Path) -> None:
    signature = signing.sign((out / MANIFEST).read_bytes(), private_key=private_key)
    if not (out / SIGNATURE).exists() or (out / SIGNATURE).read_bytes() != signature:
        write_atomically(out / SIGNATURE, signature)


def _require_answers(job: Job, traced: TracedModel) -> None:
    """Refuse a model that does not answer what the task and the data's classes ask for."""
    complaint = job.task.complaint(traced.tensors[-1].shape, job.training.class_names)
    if complaint is not None:
        raise DataError(complaint, hint=f"docs/bundle_format.md says how a model for {job.task.kind} answers")
    if traced.taps and job.recipe.renditions != ("fp32",):
        raise UsageError("a model in two stages is packaged in fp32 only so far", hint="leave renditions out")


@contextmanager
def _step(progress: Progress, name: str) -> Iterator[None]:
    with progress.task(name, 1) as task:
        yield
        task.advance()


def _expanded(job: Job, examples: torch.Tensor) -> Expansion:
    """The supernet before its training: cut, with the blocks and exits that the recipe asks for, and their weights."""
    recipe = job.recipe
    fused = FUSED if recipe.fused is None else recipe.fused
    traced = trace(job.model.module, examples, gamma=recipe.gamma, fused=fused)
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
        load_branches(expansion, job.branch_weights)
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


@dataclass(frozen=True)
class _Verified:
    golden: Mapping[str, Golden]  # of blocks and exits, by their ids
    original_golden: Golden
    max_abs_diff: float
    distillation_errors: Mapping[str, float]


def _verify(exported: ExportedBlocks, examples: npt.NDArray[np.float32], *, seed: int) -> _Verified:
    verifier = Verifier(exported)
    golden = {block.id: verifier.block_golden(block.id) for block in exported.expansion.blocks}
    golden |= {exit_.id: verifier.exit_golden(exit_.id) for exit_ in exported.expansion.exits}
    verifier.sampled_subnets(seed=seed)
    samples = torch.from_numpy(examples)
    return _Verified(
        golden=golden,
        original_golden=verifier.original_golden(),
        max_abs_diff=verifier.original_difference(samples),
        distillation_errors=distillation_errors(exported.expansion, samples),
    )


def _calibration(job: Job, expansion: Expansion) -> Calibration:
    return Calibration(expansion, job.training_samples(sample_count(expansion.cut_points, len(job.training))))


def _validate(job: Job, exported: ExportedBlocks) -> Validation:
    labels, threads = job.validation.labels, torch.get_num_threads()
    return validate(exported, job.prepared(), labels, seed=job.recipe.seed, threads=threads, task=job.task)


def _metrics(job: Job, trainer: Trainer, verified: _Verified, validated: Validation) -> Metrics:
    return Metrics(
        data=job.validation_reference,
        samples=len(job.validation),
        original_accuracy=validated.original_accuracy,
        range_accuracy=validated.range_accuracy,
        max_abs_diff=verified.max_abs_diff,
        distil_steps=trainer.steps_done[DISTIL],
        tune_steps=trainer.steps_done[TUNE],
        exit_steps=trainer.steps_done[EXITS],
    )


def _manifest(
    job: Job,
    expansion: Expansion,
    kinds: Sequence[MadeKind],
    verified: _Verified,
    validated: Validation,
    metrics: Metrics,
    writer: BundleWriter,
) -> Manifest:
    """Store all blobs and describe the bundle."""
    stored = [kind.stored(writer) for kind in kinds]
    renditions = {part: [kind[part] for kind in stored if part in kind] for part in stored[0]}
    return Manifest(
        format_version=FORMAT_VERSION,
        name=job.name,
        version=job.version,
        task=Task(
            kind=job.task.kind,
            class_names=job.training.class_names,
            output="cells" if job.task.kind == "detection" else "logits",
        ),
        preprocessing=job.model.preprocessing,
        cut_points=tuple(_quantised(cut, kinds) for cut in expansion.cut_points),
        blocks=tuple(
            block.described(renditions[block.id], distillation_error=verified.distillation_errors.get(block.id))
            for block in expansion.blocks
        ),
        exits=tuple(
            exit_.described(renditions[exit_.id], accuracy=validated.exit_accuracy[exit_.id])
            for exit_ in expansion.exits
        ),
        onnx=Onnx(ir_version=IR_VERSION, opset=OPSET),
        self_test=SelfTest(seed=SELF_TEST_SEED, batch=SELF_TEST_BATCH, original=verified.original_golden),
        metrics=metrics,
        provenance=_provenance(job),
        notes=(*expansion.notes, *(note for kind in kinds for note in kind.notes)),
    )


def _quantised(cut: CutPoint, kinds: Sequence[MadeKind]) -> CutPoint:
    """The cut point with the scale that int8 renditions use there; it has one tensor."""
    found = [kind.quantization[cut.index] for kind in kinds if cut.index in kind.quantization]
    if not found:
        return cut
    return CutPoint(cut.index, (msgspec.structs.replace(cut.tensors[0], quantization=found[0]),), cut.mandatory)


def _provenance(job: Job) -> Provenance:
    return Provenance(
        model=job.model.name,
        source=job.model.source,
        licence=job.model.licence,
        weights_sha256=job.weights_sha256,
        training_data=job.training_reference,
        recipe=job.recipe.choices(),
        tools={"pathweave": __version__} | {name: metadata.version(name) for name in ("torch", "onnx", "onnxruntime")},
    )
