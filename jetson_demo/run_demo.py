"""Profile a bundle on this device, adapt it, and run it over a folder of images, a video or a camera.

    python jetson_demo/run_demo.py --source folder:PATH --bundle FOLDER_OR_URL

Works on a Jetson and, unchanged, on a laptop; docs/guide/run_on_a_jetson.md explains the figures.
"""

from __future__ import annotations

import contextlib
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
from device_sdk.policies.plan_choice import Planned
from device_sdk.supernet.cost import MB
from jetson_demo.adapting import Fitted, Samples, Wish, fit, labelled_samples, unlabelled_samples
from jetson_demo.board import BoardWatch, Change, Tegrastats
from jetson_demo.events import RunEvents
from jetson_demo.figures import Figures
from jetson_demo.frames import Frame, FrameSource
from jetson_demo.image_folder import ImageFolder, find_images
from jetson_demo.plan_drawing import PlanOutline
from jetson_demo.providers import available_providers, open_on_first, to_try
from jetson_demo.running import run_frames, stop_on_interrupt
from jetson_demo.terminal_view import Snapshot, View, energy_text, make_view
from jetson_demo.video import VideoFrames, camera_source, video_file
from pathweave import AdaptiveModel, Answer, Budget, BudgetError, UsageError
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
    memory_mb: float | None
    accuracy: float | None
    deadline_ms: float | None
    live: bool
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
    """1. open the bundle and the source; 2. profile, adapt and calibrate; 3. run; 4. summarise.

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
        events = RunEvents(model.log_path)
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
        on_failed=lambda name, reason: _tell(f"{name} does not work here: {reason}"),
    )
    _tell(f"ONNX Runtime has {', '.join(available)}; {provider} runs this bundle")
    return model, provider


@dataclass(eq=False)
class Fitting:
    """The samples and the wish that the model is fitted to, at the start and again when the board has changed."""

    model: AdaptiveModel
    to_adapt: Samples
    to_calibrate: Samples
    options: Options
    fitted: Fitted | None = None

    @classmethod
    def of(cls, model: AdaptiveModel, source: FrameSource, options: Options) -> Fitting:
        """Read the samples: the labelled ones where they are given, else some of the source."""
        if options.data is not None:
            parts = labelled_samples(model, options.data, progress=progress(options.as_json))
        else:
            parts = unlabelled_samples(source, note=_tell)
        kind = "unlabelled" if parts[0].labels is None else "labelled"
        _tell(f"adapting on {len(parts[0].images)} {kind} images, calibrating on {len(parts[1].images)} others")
        return cls(model, *parts, options)

    @property
    def latest(self) -> Fitted:
        """The last result."""
        assert self.fitted is not None
        return self.fitted

    def fit_again(self, *, profile_again: bool) -> None:
        """Profile, adapt and calibrate for the board as it is now.

        Raises:
            BudgetError: nothing fits.
        """
        shown = progress(self.options.as_json)
        full_ms = self.model.profile(again=profile_again, progress=shown).original_ms
        wish = Wish(
            budget=Budget(latency_ms=self._latency_ms(full_ms), memory_mb=self.options.memory_mb),
            least_accuracy=self.options.accuracy,
            live=self.options.live,
        )
        self.fitted = fit(self.model, self.to_adapt, self.to_calibrate, wish, progress=shown)

    def _latency_ms(self, full_ms: float) -> float:
        """The budget in milliseconds; a share is of the full model as it was first measured: the user's clock stays."""
        if self.options.latency_ms is not None:
            return self.options.latency_ms
        if self.fitted is not None and self.fitted.adaptation.budget.latency_ms is not None:
            return self.fitted.adaptation.budget.latency_ms
        return (DEFAULT_RATIO if self.options.latency_ratio is None else self.options.latency_ratio) * full_ms


@dataclass(frozen=True, eq=False)
class Run:
    """A run of a fitted model over a source, with an energy meter."""

    model: AdaptiveModel
    provider: str
    source: FrameSource
    fitting: Fitting
    meter: EnergyMeter
    events: RunEvents
    figures: Figures = field(default_factory=Figures)
    replanned: list[str] = field(default_factory=list)

    def answer_all(self, options: Options) -> None:
        """Answer and show the images, until they end, ``--max-frames`` is reached or Ctrl-C is pressed."""
        wanted = _fewest(None if options.loop else self.source.count, options.max_frames)
        with stop_on_interrupt() as stop, make_view(as_json=options.as_json) as view, Tegrastats() as tegrastats:
            watch = BoardWatch(hottest_c=tegrastats.hottest_c)
            frames = islice(self.source.frames(loop=options.loop, note=view.note), options.max_frames)

            def show(frame: Frame, answer: Answer) -> None:
                view.show(self._snapshot(frame, answer, str(watch.board), wanted=wanted))
                change = watch.change()
                if change is not None:
                    self._follow(change, view)

            deadline_ms = options.deadline_ms
            run_frames(self.model, frames, self.meter, self.figures, stop=stop, on_group=show, deadline_ms=deadline_ms)

    def _follow(self, change: Change, view: View) -> None:
        """Plan again after a change of the board; heat is left to live update where that runs."""
        if change.profile_again and self.model.watching:
            view.note(f"{change.text}; live update follows")
            return
        view.note(f"{change.text}; adapting again")
        try:
            self.fitting.fit_again(profile_again=change.profile_again)
        except BudgetError as error:
            view.note(f"the plan in use stays: {error}")
            return
        self.replanned.append(change.text)

    def _snapshot(self, frame: Frame, answer: Answer, board: str, *, wanted: int | None) -> Snapshot:
        manifest, adaptation = self.model.bundle.manifest, self.fitting.latest.adaptation
        return Snapshot(
            title=f"{manifest.name} version {manifest.version} on {self.provider}",
            image=frame.name,
            label=answer.labels[0] or "no answer",
            confidence=float(answer.confidence[0]),
            source=answer.source[0],
            frames=self.figures.frames,
            frames_wanted=wanted,
            skipped=len(self.source.skipped),
            missed=self.figures.missed,
            board=board,
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

    def summary(self, options: Options) -> dict[str, Any]:
        """The JSON result. Latencies are of single prepared images."""
        fitted = self.fitting.latest
        latencies, adaptation, plan = self.figures.overall(), fitted.adaptation, self.model.plan
        return {
            "frames": self.figures.frames,
            "skipped": len(self.source.skipped),
            "deadline_ms": options.deadline_ms,
            "missed": self.figures.missed,
            "replanned": list(self.replanned),
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
            "memory_mb": options.memory_mb,
            "planned": None if fitted.planned is None else _planned(fitted.planned),
        }


def _fewest(*counts: int | None) -> int | None:
    return min((count for count in counts if count is not None), default=None)


def _planned(planned: Planned) -> dict[str, Any]:
    """What the planner chose, and the best of each kind with what it misses."""
    choice = planned.choice
    return {
        "kind": choice.plan.kind,
        "considered": choice.considered,
        "kinds": {
            kind: {
                "accuracy": one.cost.accuracy,
                "latency_ms": one.cost.latency_ms,
                "peak_bytes": one.cost.peak_bytes,
                "misses": sorted(one.misses),
            }
            for kind, one in choice.by_kind.items()
        },
    }


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


def _tell(text: str) -> None:
    click.echo(text, err=True)


if __name__ == "__main__":
    sys.exit(main(group=run_demo, prog_name="run_demo.py"))
