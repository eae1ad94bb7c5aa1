"""Profile a bundle on this device, adapt it, and run it over a folder of images.

    python jetson_demo/run_demo.py --source folder:PATH --bundle FOLDER_OR_URL

Works on a Jetson and, unchanged, on a laptop; docs/guide/run_on_a_jetson.md explains the figures.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a clone works without being installed

import click

from device_sdk.commands.command_line import emit, json_option, log_to_stderr, progress
from device_sdk.commands.command_options import ChosenTrust, existing, token_option, trust_options
from device_sdk.energy import EnergyMeter, find_meter
from jetson_demo.adapting import Fitted, fit, labelled_samples, unlabelled_samples
from jetson_demo.events import RunEvents
from jetson_demo.figures import Figures
from jetson_demo.image_folder import Frame, ImageReader, find_images
from jetson_demo.plan_drawing import PlanOutline
from jetson_demo.providers import available_providers, open_on_first, to_try
from jetson_demo.running import run_frames, stop_on_interrupt
from jetson_demo.terminal_view import Snapshot, energy_text, make_view
from pathweave import AdaptiveModel, Answer, Budget, UsageError
from pathweave.cli import main

DEFAULT_BUNDLE = Path("demo/bundles/digits")
DEFAULT_RATIO = 0.6


@dataclass(frozen=True, kw_only=True)
class Options:
    """The command line."""

    source: str
    bundle: str | None
    trust: ChosenTrust
    token: str | None
    data: str | None
    latency_ratio: float | None
    latency_ms: float | None
    provider: str | None
    threads: int
    again: bool
    max_frames: int | None
    loop: bool
    power_watts: float
    state: Path | None
    as_json: bool


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--source", required=True, metavar="folder:PATH", help="Folder of images, of any size; subfolders included."
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
    """Profile a bundle on this device, adapt it, and run it over a folder of images."""
    log_to_stderr(verbose=False)
    summary = demonstrate(Options(**arguments))
    emit(summary, as_json=arguments["as_json"], text=lambda: _print_summary(summary))


def demonstrate(options: Options) -> dict[str, Any]:
    """1. find the images; 2. open the bundle; 3. profile, adapt and calibrate; 4. run; 5. summarise.

    Raises:
        PathweaveError: the images, the bundle or the budget cannot be used.
    """
    if options.latency_ratio is not None and options.latency_ms is not None:
        raise UsageError("give --latency-ratio or --latency-ms, not both")
    meter = find_meter(stated_w=options.power_watts)
    images = find_images(_folder(options.source))
    model, provider = _open(options)
    with model:
        events = RunEvents(model.log_path)
        reader = ImageReader(model)
        full_ms = model.profile(again=options.again, progress=progress(options.as_json)).original_ms
        fitted = _fit(model, reader, images, options, full_ms=full_ms)
        run = Run(model, provider, fitted, meter, events)
        run.answer_all(reader, images, options)
        return run.summary(reader, options)


def _folder(source: str) -> Path:
    kind, _, path = source.partition(":")
    if kind != "folder" or not path:
        raise UsageError(f"there is no source {source}", hint="known: folder:PATH")
    return Path(path)


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
        on_failed=lambda name, reason: _tell(f"{name} does not work here: {reason}"),
    )
    _tell(f"ONNX Runtime has {', '.join(available)}; {provider} runs this bundle")
    return model, provider


def _fit(
    model: AdaptiveModel, reader: ImageReader, images: tuple[Path, ...], options: Options, *, full_ms: float
) -> Fitted:
    shown = progress(options.as_json)
    if options.data is not None:
        to_adapt, to_calibrate = labelled_samples(model, options.data, progress=shown)
    else:
        to_adapt, to_calibrate = unlabelled_samples(reader, images, note=_tell)
    latency_ms = options.latency_ms
    if latency_ms is None:
        ratio = DEFAULT_RATIO if options.latency_ratio is None else options.latency_ratio
        latency_ms = ratio * full_ms
    kind = "unlabelled" if to_adapt.labels is None else "labelled"
    _tell(f"adapting on {len(to_adapt.images)} {kind} images, calibrating on {len(to_calibrate.images)} others")
    return fit(model, to_adapt, to_calibrate, Budget(latency_ms=latency_ms), progress=shown)


@dataclass(frozen=True, eq=False)
class Run:
    """A run of a fitted model over images, with an energy meter."""

    model: AdaptiveModel
    provider: str
    fitted: Fitted
    meter: EnergyMeter
    events: RunEvents
    figures: Figures = field(default_factory=Figures)

    def answer_all(self, reader: ImageReader, images: tuple[Path, ...], options: Options) -> None:
        """Answer and show the images, until they end, ``--max-frames`` is reached or Ctrl-C is pressed."""
        wanted = options.max_frames if options.loop else min(len(images), options.max_frames or len(images))
        with stop_on_interrupt() as stop, make_view(as_json=options.as_json) as view:
            frames = islice(reader.frames(images, loop=options.loop, note=view.note), options.max_frames)

            def show(frame: Frame, answer: Answer) -> None:
                view.show(self._snapshot(frame, answer, wanted=wanted, skipped=len(reader.skipped)))

            run_frames(self.model, frames, self.meter, self.figures, stop=stop, on_group=show)

    def _snapshot(self, frame: Frame, answer: Answer, *, wanted: int | None, skipped: int) -> Snapshot:
        manifest, adaptation = self.model.bundle.manifest, self.fitted.adaptation
        return Snapshot(
            title=f"{manifest.name} version {manifest.version} on {self.provider}",
            image=str(frame.path),
            label=answer.labels[0] or "no answer",
            confidence=float(answer.confidence[0]),
            source=answer.source[0],
            frames=self.figures.frames,
            frames_wanted=wanted,
            skipped=skipped,
            latencies=self.figures.recent(),
            outline=PlanOutline.of(self.model.bundle.supernet, self.model.plan),
            budget_ms=adaptation.budget.latency_ms,
            measured_ms=adaptation.measured_ms,
            sources=self.figures.sources,
            mj_per_frame=self.figures.mj_per_frame,
            mean_w=self.figures.mean_w,
            energy_source=self.meter.source,
            events=self.events.texts(),
        )

    def summary(self, reader: ImageReader, options: Options) -> dict[str, Any]:
        """The JSON result. Latencies are of single prepared images."""
        latencies, adaptation, plan = self.figures.overall(), self.fitted.adaptation, self.model.plan
        return {
            "frames": self.figures.frames,
            "skipped": len(reader.skipped),
            "median_ms": latencies.median_ms,
            "p95_ms": latencies.p95_ms,
            "mean_ms": latencies.mean_ms,
            "share_early": self.figures.share_early,
            "sources": self.figures.sources,
            "plan": str(plan.subnet),
            "exits": {choice.exit: choice.threshold for choice in plan.exits},
            "provider": self.provider,
            "runtime": self.model.profile().runtime,
            "threads": options.threads,
            "energy": {
                "mj_per_frame": self.figures.mj_per_frame,
                "mean_w": self.figures.mean_w,
                "source": self.meter.source,
            },
            "budget_ms": adaptation.budget.latency_ms,
            "measured_ms": adaptation.measured_ms,
            "full_measured_ms": adaptation.full_measured_ms,
        }


def _print_summary(summary: dict[str, Any]) -> None:
    energy = summary["energy"]
    click.echo(f"plan: {summary['plan']}, exits: {' '.join(summary['exits']) or 'none'}")
    click.echo(
        f"subnet: {summary['measured_ms']:.3g} ms for a budget of {summary['budget_ms']:.3g} ms"
        f" (full model {summary['full_measured_ms']:.3g} ms) on {summary['provider']}"
    )
    click.echo(f"{summary['frames']} images answered, {summary['skipped']} files skipped")
    click.echo(
        f"latency: median {summary['median_ms']:.3g} ms, p95 {summary['p95_ms']:.3g} ms,"
        f" mean {summary['mean_ms']:.3g} ms; {summary['share_early']:.0%} left early"
    )
    click.echo(f"energy: {energy_text(energy['mj_per_frame'], energy['mean_w'])} ({energy['source']})")


def _tell(text: str) -> None:
    click.echo(text, err=True)


if __name__ == "__main__":
    sys.exit(main(group=run_demo, prog_name="run_demo.py"))
