"""``pathweave package-hybrid``: a base for devices and a global model for a server, trained together.

Imports torch only inside the function, so that help works without the extra.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import click

from device_sdk.commands.command_line import emit, json_option, progress
from device_sdk.errors import UsageError
from device_sdk.extras import require
from packager.hybrid.recipe import Trained, load_hybrid_recipe
from packager.inputs.model_options import existing_file, parse_shape, parse_statistics

if TYPE_CHECKING:
    from packager.hybrid.pipeline import PackagedHybrid

Command = TypeVar("Command", bound=Callable[..., object])


def _of_part(part: str) -> Callable[[Command], Command]:
    """The options that name one of the two models."""
    options = (
        click.option(f"--{part}", f"{part}_model", required=True, help=f"The {part} model, as package --model has it."),
        click.option(f"--{part}-weights", type=existing_file, help="Its pretrained weights (.safetensors, .pth)."),
        click.option(f"--{part}-input-shape", callback=parse_shape, help="Channels x height x width, if it has none."),
        click.option(f"--{part}-preprocessing", callback=parse_statistics, help="As package --preprocessing."),
        click.option(f"--{part}-name", help="Name of its bundle [default: the model's]."),
    )

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


@click.command("package-hybrid")
@_of_part("base")
@_of_part("global")
@click.option("--data", "training", required=True, help="Training images of both models, as package --data.")
@click.option("--routing-data", "routing", help="Images that the router learns from [default: those of --data].")
@click.option("--val", "validation", required=True, help="Images that tune the coverage and judge, none of the above.")
@click.option("--classes", help="The classes of both: imagenet-1k, or a FILE with one per line.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder of the two bundles.")
@click.option("--version", type=click.IntRange(min=1), default=1, show_default=True, help="Version of the bundles.")
@click.option("--recipe", "recipe_path", type=existing_file, help="TOML file with the choices below and more.")
@click.option("--train", type=click.Choice(get_args(Trained)), help="What learns: router, base, global [default: rbg].")
@click.option("--coverage", type=float, help="Share of samples that the base answers, 0 to 1 [default: 0.7].")
@click.option("--steps", type=click.IntRange(min=0), help="Length of the training in steps (deterministic).")
@click.option("--budget-minutes", type=click.FloatRange(min=0), help="Minutes from the start to both bundles.")
@click.option("--seed", type=int, help="Seed of all random choices.")
@click.option("--key", "private_key", type=existing_file, help="Sign both with this private key.")
@click.option("--restart", is_flag=True, help="Discard unfinished work and replace the bundles.")
@click.option("--save-weights", type=click.Path(path_type=Path), help="Folder for the weights of the copied blocks.")
@click.option("--threads", type=click.IntRange(min=1), help="Threads for training [default: at most the usable cores].")
@json_option
def package_hybrid(
    training: str,
    routing: str | None,
    validation: str,
    classes: str | None,
    out: Path,
    version: int,
    recipe_path: Path | None,
    private_key: Path | None,
    restart: bool,
    save_weights: Path | None,
    threads: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Train a base for devices, a global model for a server and the router between them.

    The models' own weights stay unchanged: what learns are copies of their blocks. To resume an interrupted run, repeat
    the command.
    """
    started = time.monotonic()
    for module in ("torch", "onnx", "onnxscript", "safetensors"):
        require(module, extra="packager")

    from packager.hybrid.job_loader import ModelChoice, load_hybrid_job
    from packager.hybrid.pipeline import package_hybrid as run
    from packager.pipeline import Limits
    from packager.torch_threads import use_threads

    overrides = {name: options[name] for name in ("train", "coverage", "steps", "budget_minutes", "seed")}
    if recipe_path is None and overrides["steps"] is None and overrides["budget_minutes"] is None:
        raise UsageError("the length of the training is missing", hint="give --budget-minutes, --steps or --recipe")
    use_threads(threads)
    base, global_ = (
        ModelChoice(
            options[f"{part}_model"],
            options[f"{part}_weights"],
            options[f"{part}_input_shape"],
            options[f"{part}_preprocessing"],
            options[f"{part}_name"],
        )
        for part in ("base", "global")
    )
    shown = progress(as_json)
    job = load_hybrid_job(
        base,
        global_,
        training=training,
        routing=routing or training,
        validation=validation,
        recipe=load_hybrid_recipe(recipe_path, **overrides),
        recipe_folder=Path() if recipe_path is None else recipe_path.parent,
        classes=classes,
        version=version,
        progress=shown,
    )
    packaged = run(
        job,
        out,
        private_key=private_key,
        restart=restart,
        save_weights=save_weights,
        progress=shown,
        limits=Limits(started=started),
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
