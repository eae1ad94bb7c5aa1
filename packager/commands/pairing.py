"""``pathweave package --pair``: a base for devices and a global model for a server, trained together."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from device_sdk.commands.command_line import emit, progress
from device_sdk.extras import require

if TYPE_CHECKING:
    from packager.hybrid.pipeline import PackagedHybrid


def package_pair(
    path: Path,
    *,
    training: str,
    validation: str,
    classes: str | None,
    out: Path,
    version: int,
    steps: int | None,
    budget_minutes: float | None,
    memory_gb: float | None,
    seed: int | None,
    private_key: Path | None,
    restart: bool,
    save_branches: Path | None,
    threads: int | None,
    as_json: bool,
    started: float,
    **_: Any,
) -> None:
    """Package the pair of the file ``path``: its base to ``out/base``, its global model to ``out/global``."""
    for module in ("torch", "onnx", "onnxscript", "safetensors"):
        require(module, extra="packager")

    from packager.hybrid.job_loader import load_hybrid_job, read_pair
    from packager.hybrid.pipeline import package_hybrid
    from packager.pipeline import Limits
    from packager.planning.run_plan import memory_limit
    from packager.torch_device import use_threads

    limits = Limits(memory_bytes=memory_limit(memory_gb), started=started)
    use_threads(threads)
    pair = read_pair(path, steps=steps, budget_minutes=budget_minutes, seed=seed)
    shown = progress(as_json)
    job = load_hybrid_job(
        pair.base,
        pair.global_,
        training=training,
        routing=pair.routing or training,
        validation=validation,
        recipe=pair.recipe,
        recipe_folder=path.parent,
        classes=classes,
        version=version,
        progress=shown,
    )
    packaged = package_hybrid(
        job,
        out,
        private_key=private_key,
        restart=restart,
        save_weights=save_branches,
        progress=shown,
        limits=limits,
    )
    emit(_described(packaged), as_json=as_json, text=lambda: _print(packaged, job.recipe.coverage))


def _described(packaged: PackagedHybrid) -> dict[str, Any]:
    return {
        "base": str(packaged.base),
        "global": str(packaged.global_),
        "accuracy": packaged.accuracy,
        "minutes": round(packaged.seconds / 60, 2),
        "fresh": packaged.fresh,
        "pool": None if packaged.pool is None else packaged.pool.__dict__,
        "training_report": list(packaged.report),
    }


def _print(packaged: PackagedHybrid, coverage: float) -> None:
    for line in packaged.report:
        click.echo(line)
    click.echo(f"{packaged.base} for devices, {packaged.global_} for a server")
    if packaged.pool is not None:
        click.echo(
            f"both answers together: pool=LogarithmicPool({packaged.pool.device:.3g}, {packaged.pool.server:.3g})"
        )
    minutes = packaged.seconds / 60
    click.echo(f"hybrid accuracy {packaged.accuracy:.2%} at {coverage:.0%} coverage; {minutes:.1f} minutes")
