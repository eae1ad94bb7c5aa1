"""``pathweave package --pair``: a base for devices and a global model for a server, trained together."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from device_sdk.commands.command_line import emit, progress

if TYPE_CHECKING:
    from packager.hybrid.pipeline import PackagedHybrid
    from packager.pipeline import Limits


def package_pair(path: Path, options: Mapping[str, Any], limits: Limits) -> None:
    """Package the pair of the file ``path``: its base to ``out/base``, its global model to ``out/global``."""
    from packager.hybrid.job import load_hybrid_job, read_pair
    from packager.hybrid.pipeline import package_hybrid

    as_json = options["as_json"]
    shown = progress(as_json)
    job = load_hybrid_job(
        read_pair(path, **{name: options[name] for name in ("steps", "budget_minutes", "seed")}),
        **{name: options[name] for name in ("training", "validation", "classes", "version")},
        recipe_folder=path.parent,
        progress=shown,
    )
    packaged = package_hybrid(
        job,
        options["out"],
        private_key=options["private_key"],
        restart=options["restart"],
        save_weights=options["save_branches"],
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
