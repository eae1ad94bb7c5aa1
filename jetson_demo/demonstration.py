"""One run of the script: the samples that the model is fitted to, the answers, and what the board does meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import click

from device_sdk.commands.command_line import progress
from device_sdk.commands.command_options import ChosenTrust
from device_sdk.energy import EnergyMeter
from device_sdk.policies.found import Measured
from jetson_demo.adapting import Fitted, Samples, fit, labelled_samples, unlabelled_samples
from jetson_demo.board import Board, BoardWatch, Change, Tegrastats, read_board
from jetson_demo.events import RunEvents
from jetson_demo.figures import Figures
from jetson_demo.frames import Frame, FrameSource
from jetson_demo.plan_drawing import PlanOutline
from jetson_demo.running import run_frames, stop_on_interrupt
from jetson_demo.terminal_view import Snapshot, View, make_view
from pathweave import AdaptiveModel, Answer, Found, Goal
from pathweave.errors import BudgetError

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


@dataclass(eq=False)
class Fitting:
    """The samples that the model is fitted to, at the start and again when the board has changed."""

    model: AdaptiveModel
    samples: Samples
    others: Samples
    options: Options
    fitted: Fitted | None = None

    @classmethod
    def of(cls, model: AdaptiveModel, source: FrameSource, options: Options) -> Fitting:
        """Read the samples: the labelled ones where they are given, else some of the source."""
        if options.data is not None:
            parts = labelled_samples(model, options.data, progress=progress(options.as_json))
        else:
            parts = unlabelled_samples(source, note=tell)
        kind = "unlabelled" if parts[0].labels is None else "labelled"
        tell(f"adapting on {len(parts[0].images)} {kind} images, choosing exits on {len(parts[1].images)} others")
        return cls(model, *parts, options)

    @property
    def latest(self) -> Fitted:
        """The last result."""
        assert self.fitted is not None
        return self.fitted

    def fit_again(self, *, profile_again: bool) -> None:
        """Profile and adapt for the board as it is now.

        Raises:
            BudgetError: nothing fits.
        """
        shown = progress(self.options.as_json)
        self.model.profile(again=profile_again, progress=shown)
        self.fitted = fit(
            self.model,
            self.samples,
            self.others,
            self._goal(),
            least_accuracy=self.options.accuracy,
            live=self.options.live,
            progress=shown,
        )

    def _goal(self) -> Goal:
        """The user's latency and memory; a share is of the full model as it was first measured: the clock stays."""
        options, memory_mb = self.options, self.options.memory_mb
        first = None if self.fitted is None else self.fitted.subnet.goal.latency_ms
        latency_ms = first if options.latency_ms is None else options.latency_ms
        if latency_ms is not None:
            return Goal(latency_ms=latency_ms, memory_mb=memory_mb)
        ratio = DEFAULT_RATIO if options.latency_ratio is None else options.latency_ratio
        return Goal(latency_ratio=ratio, memory_mb=memory_mb)


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
    read_board: Callable[[], Board] = read_board
    clock: Callable[[], float] = time.monotonic

    def answer_all(self, options: Options) -> None:
        """Answer and show the images, until they end, ``--max-frames`` is reached or Ctrl-C is pressed."""
        wanted = _fewest(None if options.loop else self.source.count, options.max_frames)
        with stop_on_interrupt() as stop, make_view(as_json=options.as_json) as view, Tegrastats() as tegrastats:
            watch = BoardWatch(self.read_board, hottest_c=tegrastats.hottest_c, clock=self.clock)
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
        if change.profile_again and "latency" in self.model.live.running:
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
        manifest, found = self.model.bundle.manifest, self.fitting.latest.subnet
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
            budget_ms=found.goal.latency_ms,
            measured_ms=_measured(found).latency_ms,
            sources=self.figures.sources,
            mj_per_frame=self.figures.mj_per_frame,
            mean_w=self.figures.mean_w,
            energy_source=self.meter.source,
            events=self.events.texts(),
        )

    def summary(self, options: Options) -> dict[str, Any]:
        """The JSON result. Latencies are of single prepared images."""
        fitted = self.fitting.latest
        latencies, measured, plan = self.figures.overall(), _measured(fitted.subnet), self.model.plan
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
            "budget_ms": fitted.subnet.goal.latency_ms,
            "measured_ms": measured.latency_ms,
            "full_measured_ms": measured.full_ms,
            "memory_mb": options.memory_mb,
            "planned": None if fitted.plan is None else _planned(fitted.plan),
        }


def _fewest(*counts: int | None) -> int | None:
    return min((count for count in counts if count is not None), default=None)


def _measured(found: Found) -> Measured:
    assert found.measured is not None  # of a subnet within a latency or memory
    return found.measured


def _planned(found: Found) -> dict[str, Any]:
    """Lines on the chosen plan, and on the best of each kind with the limits that it misses."""
    choice = found.choice
    return {
        "kind": choice.kind,
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


def tell(text: str) -> None:
    """Print a line on standard error."""
    click.echo(text, err=True)
