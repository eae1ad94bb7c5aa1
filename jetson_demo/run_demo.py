"""Profile a bundle on this device, adapt it, and run it over a folder of images, a video or a camera.

    python jetson_demo/run_demo.py --source folder:PATH --bundle FOLDER_OR_URL

Works on a Jetson and, unchanged, on a laptop; docs/guide/run_on_a_jetson.md explains the figures.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a clone works without being installed

import click

from device_sdk.commands.command_line import emit, json_option, log_to_stderr, progress
from device_sdk.commands.command_options import existing, token_option, trust_options
from device_sdk.energy import find_meter
from device_sdk.supernet.cost import MB
from jetson_demo.demonstration import DEFAULT_RATIO, Fitting, Options, Run, tell
from jetson_demo.events import RunEvents
from jetson_demo.frames import FrameSource
from jetson_demo.image_folder import ImageFolder, find_images
from jetson_demo.providers import available_providers, open_on_first, to_try
from jetson_demo.terminal_view import energy_text
from jetson_demo.video import VideoFrames, camera_source, video_file
from pathweave import AdaptiveModel
from pathweave.cli import main
from pathweave.errors import UsageError

DEFAULT_BUNDLE = Path("demo/bundles/digits")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--source",
    required=True,
    metavar="KIND:NAME",
    help="folder:PATH (images of any size, subfolders included), video:FILE, or camera:NUMBER, camera:csi,"
    " camera:PIPELINE of GStreamer.",
)
@click.option("--bundle", help=f"Folder or URL of the bundle [default: {DEFAULT_BUNDLE}, if it exists].")
@trust_options
@token_option
@click.option("--data", help="Labelled images to adapt on: FOLDER or FILE.zip [default: some of the source].")
@click.option(
    "--latency-ratio",
    type=click.FloatRange(min=0, min_open=True),
    help=f"Latency budget as a share of the full model's [default: {DEFAULT_RATIO}].",
)
@click.option("--latency-ms", type=click.FloatRange(min=0, min_open=True), help="Latency budget in milliseconds.")
@click.option(
    "--memory-mb",
    type=click.FloatRange(min=0, min_open=True),
    help="Memory for loaded blocks; more of them are paged.",
)
@click.option(
    "--accuracy",
    type=click.FloatRange(0, 1, min_open=True),
    help="Have the planner choose the fastest plan of any kind with at least this accuracy, 0 to 1.",
)
@click.option(
    "--deadline-ms",
    type=click.FloatRange(min=0, min_open=True),
    help="Answer every image by this time, by the last exit that is sure to be in time.",
)
@click.option("--live", is_flag=True, help="Keep the budget while the device becomes slower and faster.")
@click.option("--provider", help="Execution provider: cpu, cuda, tensorrt or its full name [default: cuda, else cpu].")
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, help="Inference threads.")
@click.option("--again", is_flag=True, help="Profile even if this device was profiled before.")
@click.option("--max-frames", type=click.IntRange(min=1), help="Answer at most this many images.")
@click.option("--loop", is_flag=True, help="Restart after the last image, until Ctrl-C or --max-frames.")
@click.option(
    "--power-watts",
    type=click.FloatRange(min=0, min_open=True),
    default=10.0,
    show_default=True,
    help="Power of the busy device, for devices without a sensor.",
)
@click.option("--state", type=existing, help="Folder for fetched bundles, profiles, the plan and the log.")
@json_option
def run_demo(**arguments: Any) -> None:
    """Profile a bundle on this device, adapt it, and run it over a folder of images, a video or a camera."""
    log_to_stderr(verbose=False)
    summary = demonstrate(Options(**arguments))
    emit(summary, as_json=arguments["as_json"], text=lambda: _print_summary(summary))


def demonstrate(options: Options) -> dict[str, Any]:
    """1. open the bundle and the source; 2. profile and adapt; 3. run; 4. summarise.

    Raises:
        PathweaveError: the images, the bundle or the budget cannot be used.
    """
    if options.latency_ratio is not None and options.latency_ms is not None:
        raise UsageError("give --latency-ratio or --latency-ms, not both")
    if options.accuracy is not None and options.live:
        raise UsageError("give --accuracy or --live, not both", hint="live update keeps a latency, not an accuracy")
    meter = find_meter(stated_w=options.power_watts)
    kind, name = _source_kind(options.source)
    images = find_images(Path(name)) if kind == "folder" else ()
    model, provider = _open(options)
    with model, contextlib.ExitStack() as closing:
        source = _source(model, kind, name, images)
        closing.callback(source.close)
        if options.memory_mb is not None:
            model.memory_cap_bytes = round(options.memory_mb * MB)
        events = RunEvents(model.log.path)
        fitting = Fitting.of(model, source, options)
        fitting.fit_again(profile_again=options.again)
        run = Run(model, provider, source, fitting, meter, events)
        run.answer_all(options)
        return run.summary(options)


def _source_kind(source: str) -> tuple[str, str]:
    kind, _, name = source.partition(":")
    if kind not in ("folder", "video", "camera") or not name:
        raise UsageError(f"there is no source {source}", hint="known: folder:PATH, video:FILE, camera:NUMBER")
    return kind, name


def _source(model: AdaptiveModel, kind: str, name: str, images: tuple[Path, ...]) -> FrameSource:
    """The source of frames; ``images`` are those of a folder."""
    match kind:
        case "video":
            return VideoFrames(model, video_file(Path(name)), name=name, live=False)
        case "camera":
            return VideoFrames(model, camera_source(name), name=f"camera {name}", live=True)
        case _:
            return ImageFolder(model, images)


def _open(options: Options) -> tuple[AdaptiveModel, str]:
    """The model, and the execution provider that runs it."""
    bundle = options.bundle or (str(DEFAULT_BUNDLE) if DEFAULT_BUNDLE.is_dir() else None)
    if bundle is None:
        raise UsageError(
            "no bundle is given", hint=f"give --bundle, or make {DEFAULT_BUNDLE}: pathweave demo --work demo"
        )
    available = available_providers()

    def open_on(provider: str) -> AdaptiveModel:
        return AdaptiveModel.open(
            bundle,
            trust=options.trust,
            token=options.token,
            threads=options.threads,
            provider=provider,
            state_folder=options.state,
            progress=progress(options.as_json),
        )

    model, provider = open_on_first(
        open_on,
        to_try(options.provider, available),
        on_failed=lambda name, reason: tell(f"{name} does not work here: {reason}"),
    )
    tell(f"ONNX Runtime has {', '.join(available)}; {provider} runs this bundle")
    return model, provider


def _print_summary(summary: dict[str, Any]) -> None:
    energy = summary["energy"]
    click.echo(f"plan: {summary['plan']}, exits: {' '.join(summary['exits']) or 'none'}")
    click.echo(
        f"subnet: {summary['measured_ms']:.3g} ms for a budget of {summary['budget_ms']:.3g} ms"
        f" (full model {summary['full_measured_ms']:.3g} ms) on {summary['provider']}"
    )
    for kind, best in (summary["planned"] or {"kinds": {}})["kinds"].items():
        misses = f"; misses {', '.join(best['misses'])}" if best["misses"] else ""
        click.echo(f"planner: {kind}: accuracy {best['accuracy']:.1%}, {best['latency_ms']:.3g} ms{misses}")
    missed = f", {summary['missed']} without an answer in time" if summary["deadline_ms"] is not None else ""
    click.echo(f"{summary['frames']} images answered, {summary['skipped']} files skipped{missed}")
    for change in summary["replanned"]:
        click.echo(f"planned again: {change}")
    click.echo(
        f"latency: median {summary['median_ms']:.3g} ms, p95 {summary['p95_ms']:.3g} ms,"
        f" mean {summary['mean_ms']:.3g} ms; {summary['share_early']:.0%} left early"
    )
    click.echo(f"energy: {energy_text(energy['mj_per_frame'], energy['mean_w'])} ({energy['source']})")


if __name__ == "__main__":
    sys.exit(main(group=run_demo, prog_name="run_demo.py"))
