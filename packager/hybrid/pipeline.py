"""``package_hybrid(…)``: two pretrained models become a base bundle, a global bundle, and the router between them.

trace both → answer routing samples → train in turn → package the base; before its manifest is written, the global:
the base's blobs are known when the global's manifest is written, the global's digest when the base's is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch

from device_sdk.bundles.bundle import Bundle
from device_sdk.bundles.hybrid import HYBRID_PATH, path_digest
from device_sdk.bundles.hybrid_pairs import require_pair
from device_sdk.bundles.manifest import Hybrid, Manifest
from device_sdk.errors import UsageError
from device_sdk.files.atomic import write_atomically
from device_sdk.offload.remote_model import IMAGES, LogarithmicPool
from device_sdk.progress import Progress, SilentProgress
from device_sdk.supernet.plan import Ask, Logistic, Plan, RemoteRef, Subnet, encode_plan
from packager.data.batches import BatchSource
from packager.errors import PackagingError
from packager.hybrid.alternating import AlternatingTrainer, Turn, tensors_of, told
from packager.hybrid.job import HybridJob, HybridRecipe
from packager.hybrid.path_network import Part, PathNetwork, as_part, require_fitting
from packager.hybrid.samples import HybridBatches, HybridEvidence
from packager.inputs.job import Job
from packager.output.bundle_folder import finished
from packager.output.checkpoints import Checkpoints, encode_description
from packager.output.folder_exchange import discard
from packager.output.output_claim import OutputClaim, work_folder
from packager.output.ownership import is_description, require_bundle, require_work
from packager.pipeline import Limits, package
from packager.planning.run_plan import estimator_for, memory_limit
from packager.torch_device import on_device, resolve_device, resolve_precision

REPORT = "hybrid.json"  # beside the two bundles: how they were made; not part of either
_MARGIN = 1.1  # on the seconds that packaging takes after the training
BASE: Literal["base"] = "base"
GLOBAL: Literal["global"] = "global"
Weights = dict[str, torch.Tensor]


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
            "report": list(told(trained.turns)),
        }
        write_atomically(out / REPORT, encode_description(description | report))
        seconds = checkpoints.seconds
        checkpoints.remove()
    return PackagedHybrid(*paths, trained.accuracy, told(trained.turns), seconds, True, trained.pool)


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
    seconds = _training_seconds(job, parts, checkpoints, limits)  # 2
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


def _training_seconds(job: HybridJob, parts: dict[str, Part], checkpoints: Checkpoints, limits: Limits) -> float | None:
    """Seconds that the recipe's minutes leave for training; None if it counts steps.

    Raises:
        UsageError: they are not enough for packaging alone; names the least.
    """
    if job.recipe.budget_minutes is None:
        return None
    after_s, memory_bytes = 0.0, limits.memory_bytes or memory_limit(None)
    for part, own in ((parts[BASE], job.base), (parts[GLOBAL], job.global_)):
        estimator = estimator_for(own, part.expansion, part.examples)
        estimate = estimator.estimate(memory_bytes=memory_bytes, resident_bytes=0, spent=0.0)
        after_s += _MARGIN * estimate.after_training
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
    _, report = finished(out, REPORT, description, [out / BASE, out / GLOBAL], require_pair)
    said = tuple(report["report"])
    pool = None if report.get("pool") is None else LogarithmicPool(**report["pool"])
    return PackagedHybrid(out / BASE, out / GLOBAL, report["accuracy"], said, report["seconds"], False, pool)


@dataclass(frozen=True)
class TrainedHybrid:
    """Result of the training: the router, and of each network the weights of its copies, None without any.

    ``pool``: of both networks' answers, None where the base's add nothing.
    """

    router: Logistic
    accuracy: float
    turns: tuple[Turn, ...]
    pool: LogarithmicPool | None
    base: Weights | None
    global_: Weights | None

    def save(self, folder: Path) -> None:
        """Write the weights of the copies, atomically."""
        from safetensors.torch import save

        for name, tensors in ((BASE, self.base), (GLOBAL, self.global_)):
            if tensors is not None:
                write_atomically(folder / f"{name}.safetensors", save(tensors))


def write_pair(
    base: Job,
    global_: Job,
    recipe: HybridRecipe,
    trained: TrainedHybrid,
    out: Path,
    private_key: Path | None,
    progress: Progress,
    limits: Limits,
) -> tuple[Path, Path]:
    """Package both parts to ``out/base`` and ``out/global``, each with the data that it needs of the other.

    Raises:
        PackagingError: as ``package``.
    """
    limits = replace(limits, started=None)

    def written(job: Job, role: str, complete: Callable[[Manifest], Manifest]) -> Manifest:
        packaged = package(
            job, out / role, private_key=private_key, progress=progress, complete=complete, restart=True, limits=limits
        )
        return packaged.manifest

    def with_global(manifest: Manifest) -> Manifest:
        own = _path(manifest, trained.base)

        def with_base(other: Manifest) -> Manifest:
            path = _path(other, trained.global_)
            hybrid = Hybrid(GLOBAL, _text(path), manifest.name, path_digest(manifest, own))
            return _completed(other, hybrid, recipe, trained)

        other = written(_with_copies(global_, trained.global_), GLOBAL, with_base)
        server = RemoteRef(f"{other.name}@{HYBRID_PATH}{IMAGES}", Bundle.open(out / GLOBAL).digest)
        plan = encode_plan(Plan(own, hard=Ask(trained.router, server))).decode()
        digest = path_digest(other, _path(other, trained.global_))
        return _completed(manifest, Hybrid(BASE, _text(own), other.name, digest, plan), recipe, trained)

    written(_with_copies(base, trained.base), BASE, with_global)
    require_pair(Bundle.open(out / BASE), Bundle.open(out / GLOBAL))
    return out / BASE, out / GLOBAL


def _completed(manifest: Manifest, hybrid: Hybrid, recipe: HybridRecipe, trained: TrainedHybrid) -> Manifest:
    """The manifest with its part in the hybrid, the settings of the training, and its result."""
    settings = {f"hybrid.{name}": value for name, value in recipe.choices().items()}
    provenance = msgspec.structs.replace(manifest.provenance, recipe=manifest.provenance.recipe | settings)
    said = f"{hybrid.role} of a hybrid: {'; '.join(told(trained.turns)) or 'only the router was trained'}"
    return msgspec.structs.replace(manifest, hybrid=hybrid, provenance=provenance, notes=(*manifest.notes, said))


def _with_copies(job: Job, weights: Weights | None) -> Job:
    """The job that packages the trained copies, or none."""
    recipe = msgspec.structs.replace(job.recipe, copied=len(_copies(weights)), steps=0, budget_minutes=None)
    return replace(job, recipe=recipe, branch_weights=weights)


def _path(manifest: Manifest, weights: Weights | None) -> Subnet:
    """The path of originals and copies."""
    copies = _copies(weights)
    original = manifest.supernet().original.edges
    edges = (msgspec.structs.replace(edge, block=f"c{edge.block[1:]}") for edge in original)
    return Subnet(tuple(copy if copy.block in copies else own for own, copy in zip(original, edges, strict=True)))


def _copies(weights: Weights | None) -> frozenset[str]:
    return frozenset(name.partition(".")[0] for name in weights or ())


def _text(path: Subnet) -> tuple[str, ...]:
    return tuple(map(str, path.edges))
