"""``pathweave package``: a model becomes a bundle, several a family's, two a hybrid's pair, or one is only checked.

Imports torch only inside functions, so that help works without the extra.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click
from click.core import ParameterSource

from device_sdk.bundles.manifest import TaskKind
from device_sdk.commands.command_line import emit, json_option, progress
from device_sdk.errors import PathweaveError, UsageError
from device_sdk.extras import require
from device_sdk.progress import SilentProgress
from packager.commands.checking import check_model
from packager.commands.families import check_members, package_members, print_family
from packager.commands.inspecting import (
    described_exit,
    existing_file,
    percent,
    print_estimate,
    print_minutes,
    rendition_bytes,
    shortened,
)
from packager.commands.pairing import package_pair
from packager.inputs.recipe import RenditionName
from packager.npu.chips import CHIPS

if TYPE_CHECKING:
    from device_sdk.progress import Progress
    from packager.inputs.job import Job
    from packager.output.bundle_folder import Packaged
    from packager.pipeline import Limits
    from packager.training.ranks import Ranks

_OF_JOBS = (
    *("weights", "input_shape", "training", "validation", "name", "version", "recipe_path", "classes", "profile"),
    "task",
)
_OF_RECIPES = (
    "steps",
    "budget_minutes",
    "max_span",
    "exit_positions",
    "branches",
    "gamma",
    "renditions",
    "chips",
    "seed",
    "bottlenecks",
    "joint_exits",
    "input_sizes",
)
_OF_PAIRS = (
    *("pair", "training", "validation", "classes", "out", "version", "steps", "budget_minutes", "memory_gb", "seed"),
    *("private_key", "restart", "save_branches", "threads", "as_json"),
)
_NOT_OF_FAMILIES = ("pair", "task", "dry_run", "profile", "save_branches", "bottlenecks", "joint_exits")


def _extents(value: str, *, most: int) -> tuple[int, ...]:
    """Up to ``most`` numbers above 0 in a text such as 3x224x224; none if it is no such text."""
    parts = value.lower().replace(",", "x").split("x")
    fits = len(parts) <= most and all(part.isdecimal() and int(part) for part in parts)
    return tuple(map(int, parts)) if fits else ()


def _shape(_: click.Context, __: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    if value is None:
        return None
    if not (found := _extents(value, most=4)):
        raise click.BadParameter("give channels x height x width, for example 3x224x224, or the tokens of a text")
    return found


def _sizes(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> tuple[tuple[int, ...], ...] | None:
    found = tuple(_extents(value, most=2) for value in values)
    if not all(found):
        raise click.BadParameter("give height x width, for example 160x160, or a length, for example 64")
    return found or None


def _statistics(_: click.Context, __: click.Parameter, value: str | None) -> Any:
    from packager.inputs.pixels import parse_normalisation

    try:
        return None if value is None else parse_normalisation(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def _crop(_: click.Context, __: click.Parameter, value: str | None) -> Any:
    if value in (None, "whole"):
        return value
    try:
        share = float(value)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise click.BadParameter("give whole, or a share above 0 and up to 1")
    return share


@click.command()
@click.option(
    "--model",
    "specification",
    help="zoo:NAME, torchvision:NAME, timm:NAME, hf:FOLDER, bert:FOLDER, module:callable, FILE.pt2 or FILE.onnx.",
)
@click.option(
    "--member",
    "members",
    multiple=True,
    help="A further network of the same classes, SPEC or SPEC=WEIGHTS; may be repeated.",
)
@click.option(
    "--task",
    type=click.Choice(get_args(TaskKind)),
    default="classification",
    show_default=True,
    help="What the model answers, and so what --data holds: one of these for each sample (guide).",
)
@click.option("--check", is_flag=True, help="Only report what of the model can be adapted, or why not.")
@click.option("--pair", type=existing_file, help="TOML file with two models to train as a hybrid, and how.")
@click.option("--weights", type=existing_file, help="The model's pretrained weights (.safetensors, .pth).")
@click.option(
    "--input-shape", callback=_shape, help="Channels x height x width, or tokens, if the model has no default."
)
@click.option("--classes", help="The model's classes: imagenet-1k, or a FILE with one per line, ids after tabs.")
@click.option(
    "--preprocessing",
    "normalisation",
    callback=_statistics,
    help="imagenet, inception, unit, or MEAN/STD of pixels from 0 to 1 [default: the model's].",
)
@click.option(
    "--interpolation", type=click.Choice(["bilinear", "bicubic"]), help="How images are resized [default: the model's]."
)
@click.option("--crop", callback=_crop, help="Centre crop as a share of the image, or whole [default: the model's].")
@click.option(
    "--data", "training", help="Training images (FOLDER, FILE.zip, digits), texts, sounds or values; or a #part."
)
@click.option("--val", "validation", help="Samples for the packager's own validation, same syntax.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the bundle, or of both.")
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
@click.option(
    "--chip",
    "chips",
    type=click.Choice(tuple(CHIPS)),
    multiple=True,
    callback=lambda _, __, names: names or None,
    help="Chip whose NPU --rendition htp is compiled for; may be repeated [default: v73].",
)
@click.option(
    "--bottlenecks",
    type=click.IntRange(min=0),
    help="Narrow cut points, at most, at which a split with a server sends fewer bytes.",
)
@click.option(
    "--joint-exits",
    type=click.IntRange(min=0),
    help="Cut points, at most, with exits that learn together with a copy of the model, a second member of the bundle.",
)
@click.option(
    "--input-size",
    "input_sizes",
    multiple=True,
    callback=_sizes,
    help="Smaller input, height x width or tokens, at which paths can run; may be repeated [default: several].",
)
@click.option("--seed", type=int, help="Seed of all random choices.")
@click.option(
    "--key", "private_key", type=existing_file, help="Sign with this private key (see pathweave sign key new)."
)
@click.option("--restart", is_flag=True, help="Discard unfinished work and replace the bundle.")
@click.option(
    "--save-branches",
    type=click.Path(path_type=Path),
    help="Also write the trained weights (.safetensors; a folder with --pair).",
)
@click.option("--card", is_flag=True, help="Also write a model card, README.md, into the bundle's folder.")
@click.option("--threads", type=click.IntRange(min=1), help="Threads for training [default: at most the usable cores].")
@json_option
@click.pass_context
def package(context: click.Context, check: bool, pair: Path | None, members: tuple[str, ...], **options: Any) -> None:
    """Turn a pretrained model into a bundle.

    The model's own weights stay unchanged. Merged blocks are trained to replace spans of its blocks, and exits to
    answer early. To resume an interrupted run, repeat the command.

    --check trains and writes nothing; it takes --data (for the error of smaller inputs), --budget-minutes, --memory-gb.
    With --member it lists which networks can be stitched.

    --member packages several networks as a family: devices choose among them, and among paths that run the first
    blocks of one and the last of another.

    --pair trains a base for devices, a global model for a server and the router between them, and writes two bundles.
    """
    started = time.monotonic()
    needed = ("specification",) if check else ("training", "validation", "out")
    _require(context, needed if check or pair is not None else ("specification", *needed))
    if pair is not None:
        _refuse_what_a_pair_file_has(context)
    if members:
        _refuse(context, _NOT_OF_FAMILIES, "--member")
    limits = _limits(options, started, ("torch",) if check else ("torch", "onnx", "onnxscript", "safetensors"))
    if check and members:
        check_members(options, members)
    elif check:
        check_model(options, limits)
    elif pair is not None:
        package_pair(pair, options, limits)
    elif members:
        _require_length(options)
        package_members(options, members, {name: options[name] for name in _OF_RECIPES}, limits)
    else:
        _package(options, limits)


def _require(context: click.Context, names: tuple[str, ...]) -> None:
    for parameter in context.command.params:
        if parameter.name in names and context.params[parameter.name] is None:
            raise click.MissingParameter(ctx=context, param=parameter)


def _refuse(context: click.Context, names: tuple[str, ...], beside: str) -> None:
    for parameter in context.command.params:
        name = parameter.name or ""
        if name in names and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise UsageError(f"{parameter.opts[0]} does not go with {beside}")


def _require_length(options: Mapping[str, Any]) -> None:
    if all(options[name] is None for name in ("steps", "budget_minutes", "recipe_path")):
        raise UsageError("the length of the training is missing", hint="give --budget-minutes, --steps or --recipe")


def _refuse_what_a_pair_file_has(context: click.Context) -> None:
    for parameter in context.command.params:
        name = parameter.name or ""
        if name not in _OF_PAIRS and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise UsageError(
                f"{parameter.opts[0]} does not go with --pair", hint="the file says it, in [base] or [global]"
            )


def _limits(options: Mapping[str, Any], started: float, modules: tuple[str, ...]) -> Limits:
    for module in modules:
        require(module, extra="packager")

    from packager.pipeline import Limits
    from packager.planning.run_plan import memory_limit
    from packager.torch_device import use_threads

    use_threads(options["threads"])
    return Limits(memory_bytes=memory_limit(options["memory_gb"]), started=started)


def _package(options: Mapping[str, Any], limits: Limits) -> None:
    from device_sdk.bundles.bundle import SIGNATURE
    from packager.bottlenecks.pipeline import package_with_bottlenecks
    from packager.inputs.job import load_job
    from packager.inputs.pixels import Pixels
    from packager.output.model_card import write_card
    from packager.pipeline import dry_run, follow
    from packager.pipeline import package as package_alone

    out, as_json = options["out"], options["as_json"]
    with _joined() as ranks:
        _require_length(options)
        shown = progress(as_json) if ranks.leads else SilentProgress()
        job = load_job(
            options["specification"],
            **{name: options[name] for name in _OF_JOBS},
            overrides={name: options[name] for name in _OF_RECIPES},
            pixels=Pixels(options["normalisation"], options["interpolation"], options["crop"]),
            progress=shown,
        )
        for note in job.notes if ranks.leads else ():
            click.echo(f"note: {note}", err=True)
        if job.recipe.joint_exits:
            _package_jointly(job, options, limits, ranks, shown)
            return
        if not ranks.leads:
            follow(job, out, ranks=ranks)
            return
        if options["dry_run"]:
            said = dry_run(job, limits=limits, progress=shown)
            emit(said, as_json=as_json, text=lambda: print_estimate(said))
            return
        run = package_with_bottlenecks if job.recipe.bottlenecks else package_alone
        packaged = run(
            job,
            out,
            private_key=options["private_key"],
            restart=options["restart"],
            save_branches=options["save_branches"],
            progress=shown,
            ranks=ranks,
            limits=limits,
        )
    if options["card"]:
        write_card(packaged.folder, packaged.manifest)
    signed = (packaged.folder / SIGNATURE).exists()
    summary = {"bundle": str(out), "signed": signed, "fresh": packaged.fresh}
    peak_mb = None if packaged.peak_rss_bytes is None else round(packaged.peak_rss_bytes / 1e6)
    summary |= {"minutes": round(packaged.seconds / 60, 2), "peak_rss_mb": peak_mb, **_described(packaged)}
    summary |= {"step_seconds": packaged.step_seconds, "training_report": packaged.training_report}
    emit(summary, as_json=as_json, text=lambda: _print_packaged(packaged, signed=signed))


def _package_jointly(job: Job, options: Mapping[str, Any], limits: Limits, ranks: Ranks, shown: Progress) -> None:
    from packager.joint_exits.pipeline import package_with_joint_exits

    if ranks.share.count > 1:
        raise UsageError("joint exits train in one process", hint="start pathweave package without torchrun")
    if options["dry_run"]:
        raise UsageError("the time of joint exits is not estimated", hint="leave out --dry-run, or joint exits")
    packaged = package_with_joint_exits(
        job,
        options["out"],
        private_key=options["private_key"],
        restart=options["restart"],
        save_branches=options["save_branches"],
        progress=shown,
        limits=limits,
    )
    print_family(packaged, options["out"], card=options["card"], as_json=options["as_json"])


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
        click.echo("not signed: pathweave sign key new NAME makes a key, --key NAME.key signs with it")
