"""``package_hybrid(…)``: two pretrained models become a base bundle, a global bundle, and the router between them.

trace both → answer routing samples → train in turn → package the base; before its manifest is written, the global:
the base's blobs are known when the global's manifest is written, the global's digest when the base's is.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from device_sdk.bundles.bundle import Bundle
from device_sdk.bundles.hybrid_pairs import require_pair
from device_sdk.errors import PathweaveError, UsageError
from device_sdk.files.atomic import write_atomically
from device_sdk.offload.pooling import LogarithmicPool
from device_sdk.progress import Progress, SilentProgress
from packager.data.batches import BatchSource
from packager.errors import PackagingError, ResumeError
from packager.hybrid.alternating import AlternatingTrainer, tensors_of
from packager.hybrid.bundle_pair import BASE, GLOBAL, TrainedHybrid, write_pair
from packager.hybrid.evidence import HybridEvidence
from packager.hybrid.path_network import Part, PathNetwork, as_part, require_fitting
from packager.hybrid.recipe import HybridRecipe
from packager.hybrid.training_batches import HybridBatches
from packager.inputs.job import Job
from packager.inputs.weights import BranchWeights, tensors_digest
from packager.output.checkpoints import Checkpoints, encode_description, require_same_run
from packager.output.folder_exchange import discard
from packager.output.output_claim import OutputClaim, work_folder
from packager.output.ownership import is_description, is_work, require_bundle, require_work
from packager.pipeline import Limits
from packager.planning.run_plan import estimator_for, memory_limit
from packager.torch_device import on_device, resolve_device, resolve_precision

REPORT = "hybrid.json"  # beside the two bundles: how they were made; not part of either
_MARGIN = 1.1  # on the seconds that packaging takes after the training


@dataclass(frozen=True)
class HybridJob:
    """Jobs from which a hybrid is made: one per network with the same images, and one per network with routing images.

    ``base_routing``, ``global_routing``: their validation images are those that the router learns from.
    ``base_weights``, ``global_weights``: of the copies, to start from.
    """

    base: Job
    global_: Job
    base_routing: Job
    global_routing: Job
    recipe: HybridRecipe
    base_weights: BranchWeights | None = None
    global_weights: BranchWeights | None = None

    def description(self) -> dict[str, Any]:
        """Everything that the two bundles depend on."""
        jobs = {"base": self.base, "global": self.global_, "routing": self.base_routing}
        weights = {"base": self.base_weights, "global": self.global_weights}
        found = {f"{part} {key}": value for part, job in jobs.items() for key, value in job.description().items()}
        found |= {f"{part} weights to start from": _digest(one) for part, one in weights.items()}
        return {**found, "hybrid": self.recipe.choices()}


@dataclass(frozen=True)
class PackagedHybrid:
    """The two bundles. ``accuracy``: of the hybrid at the coverage on the validation images; ``fresh``: made now.

    ``pool``: how devices pool the global model's answers with the base's (``RemoteModel``); None: they gain nothing.
    """

    base: Path
    global_: Path
    accuracy: float
    report: tuple[str, ...]
    seconds: float
    fresh: bool
    pool: LogarithmicPool | None = None


def package_hybrid(
    job: HybridJob,
    out: Path,
    *,
    private_key: Path | None = None,
    restart: bool = False,
    save_weights: Path | None = None,
    progress: Progress | None = None,
    limits: Limits | None = None,
    batches: type[HybridBatches] = HybridBatches,
) -> PackagedHybrid:
    """Train a hybrid and write its bundles to ``out/base`` and ``out/global``.

    A run that was killed resumes from its last saved state when it is called again with the same job. With
    ``recipe.steps`` the bundles are functions of the job.

    Args:
        private_key: signs both bundles.
        restart: discard unfinished work and existing bundles.
        save_weights: folder for the copies' weights, ``base.safetensors`` and ``global.safetensors``.
        batches: maker of the training batches.

    Raises:
        DataError: classes or images of the two differ, labels are missing, or a router has nothing to learn from.
        UsageError: the minutes are below the minimum; names it.
        PackagingError: as ``package``.
    """
    progress, limits = progress or SilentProgress(), limits or Limits()
    require_fitting(job.base, job.global_)
    require_fitting(job.base_routing, job.global_routing)
    description = job.description()
    with OutputClaim(out):
        if restart:
            _clear(out)
        elif (out / REPORT).exists():
            return _already_there(out, description)
        require_work(work_folder(out))
        checkpoints = Checkpoints(work_folder(out), description, started=limits.started, clock=limits.clock)
        checkpoints.begin()
        trained = _trained(job, checkpoints, progress, limits, batches)
        if save_weights is not None:
            trained.save(save_weights)
        paths = write_pair(job.base, job.global_, job.recipe, trained, out, private_key, progress, limits)
        report = {
            "seconds": checkpoints.seconds,
            "accuracy": trained.accuracy,
            "pool": None if trained.pool is None else trained.pool.__dict__,
            "turns": [turn.__dict__ for turn in trained.turns],
            "report": list(map(str, trained.turns)),
        }
        write_atomically(out / REPORT, encode_description(description | report))
        seconds = checkpoints.seconds
        checkpoints.remove()
    return PackagedHybrid(*paths, trained.accuracy, tuple(map(str, trained.turns)), seconds, True, trained.pool)


def _trained(
    job: HybridJob, checkpoints: Checkpoints, progress: Progress, limits: Limits, batches_type: type[HybridBatches]
) -> TrainedHybrid:
    """1. cut both models; 2. time limit; 3. answer routing samples; 4. train in turn."""
    recipe = job.recipe
    device = resolve_device(recipe.device)
    parts = {  # 1
        BASE: as_part(job.base, recipe.base_blocks or None, job.base_weights, learns=recipe.base_learns),
        GLOBAL: as_part(job.global_, recipe.global_blocks, job.global_weights, learns=recipe.global_learns),
    }
    seconds = _training_seconds(job, parts, checkpoints)  # 2
    base, global_ = (PathNetwork(part.expansion, device, part.memory_format) for part in parts.values())
    with on_device([*base.modules, *global_.modules], device):
        with progress.task("answer routing samples", 1) as task:  # 3
            routing, held_out = (job.base_routing, job.global_routing), (job.base, job.global_)
            shapes = [
                part.expansion.traced.tensors[network.cut].shape
                for part, network in zip(parts.values(), (base, global_), strict=True)
            ]
            values = max(math.prod(shape) for shape in shapes)
            evidence = HybridEvidence((base, global_), routing, held_out, recipe, feature_values=values)
            task.advance()
        batches = batches_type(
            job.base.batches(),
            BatchSource(job.base.training, job.base.model.preprocessing, batch=recipe.batch, seed=recipe.seed),
            job.global_.batches(),
            (job.base.batches(distortion=recipe.distortion), job.global_.batches(distortion=recipe.distortion)),
            global_,
            checkpoints.folder,
            classes=len(job.base.training.class_names),
            features=parts[GLOBAL].expansion.traced.tensors[global_.cut].shape,
            cache_mb=recipe.cache_mb,
            run=_in_precision(recipe, device),
        )
        trainer = AlternatingTrainer(
            base,
            global_,
            batches,
            evidence,
            recipe,
            checkpoints,
            progress,
            device=device,
            seconds_left=None if seconds is None else lambda: max(0.0, seconds - checkpoints.seconds),
            clock=limits.clock,
        )
        try:
            trainer.train()  # 4
        finally:
            batches.close()
    return TrainedHybrid(
        trainer.router,
        trainer.accuracy,
        trainer.report,
        trainer.pool,
        _weights(base, kept=trainer.learned("base") or job.base_weights is not None),
        _weights(global_, kept=trainer.learned("global") or job.global_weights is not None),
    )


def _weights(network: PathNetwork, *, kept: bool) -> dict[str, torch.Tensor] | None:
    """None for a network that is as it was: its originals serve."""
    return tensors_of([network.state]) if kept and network.copies else None


def _in_precision(recipe: HybridRecipe, device: torch.device) -> Callable[..., torch.Tensor]:
    precision = resolve_precision(recipe.precision, device)

    def run(function: Callable[[torch.Tensor], torch.Tensor], images: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device.type, precision, enabled=precision != torch.float32):
            return function(images)

    return run


def _training_seconds(job: HybridJob, parts: dict[str, Part], checkpoints: Checkpoints) -> float | None:
    """Seconds that the recipe's minutes leave for training; None if it counts steps.

    Raises:
        UsageError: they are not enough for packaging alone; names the least.
    """
    if job.recipe.budget_minutes is None:
        return None
    after_s = 0.0
    for part, own in ((parts[BASE], job.base), (parts[GLOBAL], job.global_)):
        estimator = estimator_for(own, part.expansion, part.examples)
        after_s += (
            _MARGIN * estimator.estimate(memory_bytes=memory_limit(None), resident_bytes=0, spent=0.0).after_training
        )
    left_s = 60 * job.recipe.budget_minutes - after_s
    if left_s <= 0 and checkpoints.state is None:
        raise UsageError(
            f"{job.recipe.budget_minutes:g} minutes are too few for these models",
            hint=f"packaging them takes about {after_s / 60:.1f} minutes without any training; --steps 0 has no limit",
        )
    return max(0.0, left_s)


def _clear(out: Path) -> None:
    """Discard unfinished work and earlier bundles; anything else at ``out`` is an error."""
    if out.exists() and not (out / REPORT).exists() and any(out.iterdir()):
        known = {BASE, GLOBAL} | {f"{name}.work" for name in (BASE, GLOBAL)}
        if any(entry.name not in known and not entry.name.startswith(".") for entry in out.iterdir()):
            raise PackagingError(f"{out} exists and is not a hybrid", hint="choose another --out folder")
    if (out / REPORT).exists() and not is_description(out / REPORT):
        raise PackagingError(f"{out / REPORT} is not the report of a hybrid", hint="choose another --out folder")
    parts = [out / name for name in (BASE, GLOBAL) if (out / name).exists()]
    for part in parts:
        require_bundle(part)
    require_work(work_folder(out))
    for folder in (work_folder(out), *parts):
        discard(folder)
    (out / REPORT).unlink(missing_ok=True)


def _already_there(out: Path, description: dict[str, Any]) -> PackagedHybrid:
    """The hybrid that an earlier run of the same job has finished.

    Raises:
        ResumeError: it is that of another job, or damaged.
    """
    require_same_run(out / REPORT, description)
    try:
        base, global_ = Bundle.open(out / BASE), Bundle.open(out / GLOBAL)
        base.verify()
        global_.verify()
        require_pair(base, global_)
    except PathweaveError as error:
        raise ResumeError(f"{out} is damaged: {error}", hint="add --restart to package it again") from error
    if is_work(work_folder(out)):
        discard(work_folder(out))
    report = json.loads((out / REPORT).read_bytes())
    said = tuple(report["report"])
    pool = None if report.get("pool") is None else LogarithmicPool(**report["pool"])
    return PackagedHybrid(out / BASE, out / GLOBAL, report["accuracy"], said, report["seconds"], False, pool)


def _digest(weights: BranchWeights | None) -> str | None:
    return None if weights is None else tensors_digest(weights)
