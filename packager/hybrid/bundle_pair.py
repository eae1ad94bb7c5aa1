"""Writes the two bundles of a trained hybrid, bound to each other.

The base is packaged up to its manifest, then the global bundle, then the base's manifest is written: the base's blobs
are known when the global's manifest is written, the global's digest when the base's is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import msgspec
import torch

from device_sdk.bundles.bundle import Bundle
from device_sdk.bundles.hybrid import HYBRID_PATH, path_digest
from device_sdk.bundles.hybrid_pairs import require_pair
from device_sdk.bundles.manifest import Hybrid, Manifest
from device_sdk.files.atomic import write_atomically
from device_sdk.offload.named_path import IMAGES
from device_sdk.offload.pooling import LogarithmicPool
from device_sdk.progress import Progress
from device_sdk.supernet.plan import Ask, Plan, RemoteRef, Router, Subnet
from device_sdk.supernet.plan_json import encode_plan
from packager.hybrid.alternating import Turn
from packager.hybrid.recipe import HybridRecipe
from packager.inputs.job import Job
from packager.pipeline import Limits, package

BASE: Literal["base"] = "base"
GLOBAL: Literal["global"] = "global"

Weights = dict[str, torch.Tensor]


@dataclass(frozen=True)
class TrainedHybrid:
    """Result of the training: the router, and of each network the weights of its copies, None without any.

    ``pool``: of both networks' answers, None where the base's add nothing.
    """

    router: Router
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
    said = f"{hybrid.role} of a hybrid: {'; '.join(map(str, trained.turns)) or 'only the router was trained'}"
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
