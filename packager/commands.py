"""The packager's commands ``pathweave package`` and ``pathweave key``.

Only ``package`` needs the extra ``packager``; ``key``, ``inspect`` and ``release`` work in the base installation.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from device_sdk.commands.command_line import emit, json_option, progress
from device_sdk.errors import PathweaveError, StorageError, UsageError
from device_sdk.extras import require
from device_sdk.progress import SilentProgress
from packager.inputs.model_options import existing_file, model_options
from packager.inputs.recipe import RenditionName
from packager.printed import described_exit, percent, print_estimate, print_minutes, rendition_bytes, shortened
from packager.releasing.commands import key_list

if TYPE_CHECKING:
    from packager.assembly.packaged import Packaged
    from packager.training.ranks import Ranks


@click.command()
@click.option(
    "--model",
    "specification",
    required=True,
    help="zoo:NAME, torchvision:NAME, timm:NAME or module:callable.",
)
@model_options
@click.option("--data", "training", required=True, help="Training images: FOLDER, FILE.zip or digits, or a #part.")
@click.option("--val", "validation", required=True, help="Images for the packager's own validation, same syntax.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder of the bundle.")
@click.option("--name", help="Name of the bundle [default: the model's].")
@click.option("--version", type=click.IntRange(min=1), default=1, show_default=True, help="Version of the bundle.")
@click.option("--recipe", "recipe_path", type=existing_file, help="TOML file with the choices below and more.")
@click.option("--steps", type=click.IntRange(min=0), help="Length of training in steps (deterministic).")
@click.option("--budget-minutes", type=click.FloatRange(min=0), help="Minutes from the start to the signed bundle.")
@click.option("--memory-gb", type=float, help="Memory that packaging may take [default: half of the machine's].")
@click.option("--dry-run", is_flag=True, help="Only estimate minutes, memory and size of the bundle.")
@click.option("--max-span", type=click.IntRange(min=1), help="Originals that one merged block may replace.")
@click.option("--exits", "exit_positions", type=click.IntRange(min=0), help="Cut points with early exits, at most.")
@click.option("--branches", type=click.Choice(["two", "zoo"]), help="Structures of the exits' branches to train.")
@click.option("--profile", type=existing_file, help="Measured latencies by which exits of the zoo survive.")
@click.option("--gamma", type=click.FloatRange(min=0), help="Join cells up to this share of the parameters.")
@click.option(
    "--rendition",
    "renditions",
    type=click.Choice(get_args(RenditionName)),
    multiple=True,
    callback=lambda _, __, names: names or None,
    help="Additional form of the blocks; may be repeated.",
)
@click.option("--seed", type=int, help="Seed of all random choices.")
@click.option("--key", "private_key", type=existing_file, help="Sign with this private key (see pathweave key new).")
@click.option("--restart", is_flag=True, help="Discard unfinished work and replace the bundle.")
@click.option("--save-branches", type=click.Path(path_type=Path), help="Also write the trained weights (.safetensors).")
@click.option("--threads", type=click.IntRange(min=1), help="Threads for training [default: at most the usable cores].")
@json_option
def package(
    specification: str,
    weights: Path | None,
    input_shape: tuple[int, int, int] | None,
    training: str,
    validation: str,
    classes: str | None,
    normalisation: Any,
    interpolation: Any,
    crop: Any,
    out: Path,
    name: str | None,
    version: int,
    recipe_path: Path | None,
    profile: Path | None,
    private_key: Path | None,
    restart: bool,
    save_branches: Path | None,
    threads: int | None,
    memory_gb: float | None,
    dry_run: bool,
    as_json: bool,
    **overrides: Any,
) -> None:
    """Turn a pretrained model into a bundle.

    The model's own weights stay unchanged. Merged blocks are trained to replace spans of its blocks, and exits to
    answer early. To resume an interrupted run, repeat the command.
    """
    started = time.monotonic()
    for module in ("torch", "onnx", "onnxscript", "safetensors"):
        require(module, extra="packager")

    from device_sdk.bundles.bundle import SIGNATURE
    from packager.inputs.job_loader import load_job
    from packager.inputs.pixels import Pixels
    from packager.pipeline import Limits, follow
    from packager.pipeline import dry_run as estimate
    from packager.pipeline import package as run
    from packager.planning.budget import memory_limit
    from packager.torch_threads import use_threads

    limits = Limits(memory_bytes=memory_limit(memory_gb), started=started)
    use_threads(threads)
    with _joined() as ranks:
        if overrides["steps"] is None and overrides["budget_minutes"] is None and recipe_path is None:
            raise UsageError("the length of the training is missing", hint="give --budget-minutes, --steps or --recipe")
        shown = progress(as_json) if ranks.leads else SilentProgress()
        job = load_job(
            specification,
            weights=weights,
            input_shape=input_shape,
            training=training,
            validation=validation,
            name=name,
            version=version,
            recipe_path=recipe_path,
            overrides=overrides,
            classes=classes,
            pixels=Pixels(normalisation, interpolation, crop),
            profile=profile,
            progress=shown,
        )
        for note in job.notes if ranks.leads else ():
            click.echo(f"note: {note}", err=True)
        if not ranks.leads:
            follow(job, out, ranks=ranks)
            return
        if dry_run:
            said = estimate(job, limits=limits, progress=shown)
            emit(said, as_json=as_json, text=lambda: print_estimate(said))
            return
        packaged = run(
            job,
            out,
            private_key=private_key,
            restart=restart,
            save_branches=save_branches,
            progress=shown,
            ranks=ranks,
            limits=limits,
        )
    signed = (packaged.folder / SIGNATURE).exists()
    summary = {"bundle": str(out), "signed": signed, "fresh": packaged.fresh}
    peak_mb = None if packaged.peak_rss_bytes is None else round(packaged.peak_rss_bytes / 1e6)
    summary |= {"minutes": round(packaged.seconds / 60, 2), "peak_rss_mb": peak_mb, **_described(packaged)}
    summary |= {"step_seconds": packaged.step_seconds, "training_report": packaged.training_report}
    emit(summary, as_json=as_json, text=lambda: _print_packaged(packaged, signed=signed))


@contextlib.contextmanager
def _joined() -> Iterator[Ranks]:
    """The process group started by torchrun, or a single process. Errors are reported by one process only."""
    from packager.training.process_group import joined

    with joined(os.environ) as ranks:
        try:
            yield ranks
        except (PathweaveError, KeyboardInterrupt) as error:
            if ranks.claim_error_report():
                raise
            raise click.exceptions.Exit(2 if isinstance(error, UsageError) else 1) from error


def _described(packaged: Packaged) -> dict[str, Any]:
    from device_sdk.bundles.bundle import Bundle
    from device_sdk.supernet.paths import architecture_count

    metrics = packaged.manifest.metrics
    return {
        "blocks": len(packaged.manifest.blocks),
        "architecture_count": str(architecture_count(packaged.manifest.supernet())),
        "original_accuracy": metrics.original_accuracy,
        "range_accuracy": [
            {"macs_ratio": [r.macs_ratio_low, r.macs_ratio_high], "accuracy": r.accuracy}
            for r in metrics.range_accuracy
        ],
        "exits": [described_exit(exit_) for exit_ in packaged.manifest.exits],
        "max_abs_diff": metrics.max_abs_diff,
        "steps": {"distil": metrics.distil_steps, "tune": metrics.tune_steps, "exits": metrics.exit_steps},
        "rendition_bytes": rendition_bytes(packaged.manifest, Bundle.open(packaged.folder).blob_sizes()),
        "notes": list(packaged.manifest.notes),
    }


def _print_packaged(packaged: Packaged, *, signed: bool) -> None:
    described = _described(packaged)
    click.echo(f"{packaged.folder}: {described['blocks']} blocks, {described['architecture_count']} architectures")
    metrics = packaged.manifest.metrics
    click.echo(f"validated on {metrics.data} ({metrics.samples} samples); full model {metrics.original_accuracy:.2%}")
    for found in metrics.range_accuracy:
        click.echo(
            f"  {found.macs_ratio_low:4.0%} to {found.macs_ratio_high:4.0%} of the MACs:"
            f" {found.accuracy:.2%} (mean of {found.subnets})"
        )
    for exit_ in packaged.manifest.exits:
        click.echo(f"  exit {exit_.id} at cut point {exit_.position}: {percent(exit_.accuracy)}")
    for note in packaged.manifest.notes:
        click.echo(f"note: {shortened(note)}")
    print_minutes(packaged)
    if not signed:
        click.echo("not signed: pathweave key new NAME makes a key, --key NAME.key signs with it")


@click.group()
def key() -> None:
    """Keys that sign bundles, and lists of them."""


key.add_command(key_list)


@key.command("new")
@click.argument("name", type=click.Path(path_type=Path))
@json_option
def new_key(name: Path, as_json: bool) -> None:
    """Make an Ed25519 pair: NAME.key (keep it secret) and NAME.pub (give it to devices)."""
    from device_sdk.files.atomic import write_atomically
    from device_sdk.signing.signatures import new_key_pair

    private_path, public_path = name.with_name(f"{name.name}.key"), name.with_name(f"{name.name}.pub")
    for path in (private_path, public_path):
        if path.exists():
            raise StorageError(f"{path} already exists", hint="choose another name; keys are never overwritten")
    private, public = new_key_pair()
    write_atomically(private_path, private, mode=0o600)
    write_atomically(public_path, public)
    emit(
        {"private_key": str(private_path), "public_key": str(public_path)},
        as_json=as_json,
        text=f"{private_path} (keep it secret), {public_path} (give it to devices)",
    )
