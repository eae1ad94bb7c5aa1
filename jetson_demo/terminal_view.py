"""Display of a run on standard error: a live view on a terminal, else a line at intervals."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from jetson_demo.figures import Latencies
from jetson_demo.plan_drawing import PlanOutline, draw_blocks, draw_cut_points, draw_exits, sparkline

_LABEL_WIDTH = 8
_FRAME_WIDTH = 4  # the panel's borders and padding
_EVENTS_SHOWN = 3
_STYLES = {"original": "cyan", "merged": "magenta", "shrunk": "yellow", "": ""}


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The displayed state at one moment. Latencies in milliseconds; shares between 0 and 1."""

    title: str
    image: str
    label: str
    confidence: float
    source: str
    frames: int
    frames_wanted: int | None
    skipped: int
    missed: int
    board: str
    latencies: Latencies
    outline: PlanOutline
    budget_ms: float | None
    measured_ms: float
    sources: Mapping[str, float]
    mj_per_frame: float | None
    mean_w: float | None
    energy_source: str
    events: tuple[str, ...]


class View(Protocol):
    """A display of a run, used as a context. Called between timed runs, never during one."""

    def __enter__(self) -> View: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def show(self, snapshot: Snapshot) -> None:
        """Display ``snapshot``, at a limited rate."""

    def note(self, text: str) -> None:
        """Print a single message."""


def make_view(*, as_json: bool) -> View:
    """A live view on a terminal; lines for log files and CI."""
    if sys.stderr.isatty() and not as_json and not os.environ.get("CI"):
        return LiveView(Console(stderr=True))
    return LineView()


class Picture:
    """A snapshot, drawn at the terminal's width."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown, width = self._snapshot, options.max_width - _FRAME_WIDTH - _LABEL_WIDTH - 1
        rows = Table.grid(padding=(0, 1, 0, 0))
        rows.add_column(width=_LABEL_WIDTH, style="dim")
        rows.add_column(width=width, overflow="fold")
        rows.add_row("image", Text(_shortened(shown.image, width), no_wrap=True))
        rows.add_row("answer", _answer(shown))
        rows.add_row("latency", _latency(shown.latencies))
        rows.add_row("", Text(sparkline(shown.latencies.recent_ms, width=width), style="green", no_wrap=True))
        rows.add_row("plan", _plan(shown.outline, width))
        rows.add_row("", _budget(shown))
        rows.add_row("answers", Text(", ".join(f"{source} {share:.0%}" for source, share in shown.sources.items())))
        rows.add_row("energy", Text(f"{energy_text(shown.mj_per_frame, shown.mean_w)} ({shown.energy_source})"))
        for number, event in enumerate(shown.events[-_EVENTS_SHOWN:]):
            rows.add_row("" if number else "events", Text(event, no_wrap=True, overflow="ellipsis"))
        rows.add_row("board", Text(shown.board, no_wrap=True, overflow="ellipsis"))
        yield Panel(
            rows,
            title=Text(shown.title),
            subtitle=Text(_counted(shown)),
            title_align="left",
            subtitle_align="left",
            width=options.max_width,
        )


def _counted(shown: Snapshot) -> str:
    wanted = f" of {shown.frames_wanted}" if shown.frames_wanted else ""
    skipped = f", {shown.skipped} skipped" if shown.skipped else ""
    missed = f", {shown.missed} late" if shown.missed else ""
    return f"{shown.frames}{wanted} images{skipped}{missed}"


def _shortened(path: str, width: int) -> str:
    """The path, shortened at its start, which is less specific than its end."""
    return path if len(path) <= width else "…" + path[len(path) - max(width, 1) + 1 :]


def _answer(shown: Snapshot) -> Text:
    return Text.assemble((shown.label, "bold"), f" ({shown.confidence:.1%}) by {shown.source}")


def _latency(latencies: Latencies) -> str:
    return f"{latencies.last_ms:.3g} ms now, median {latencies.median_ms:.3g} ms, p95 {latencies.p95_ms:.3g} ms"


def _plan(outline: PlanOutline, width: int) -> Text:
    drawn = Text(no_wrap=True)
    for text, kind in draw_blocks(outline, width=width):
        drawn.append(text, _STYLES[kind])
    drawn.append("\n" + draw_cut_points(outline, width=width), "dim")
    if outline.exits:
        drawn.append("\n" + draw_exits(outline, width=width), "green")
    return drawn


def _budget(shown: Snapshot) -> str:
    budget = "" if shown.budget_ms is None else f" for a budget of {shown.budget_ms:.3g} ms"
    return f"measured {shown.measured_ms:.3g} ms without exits{budget}"


def energy_text(mj_per_frame: float | None, mean_w: float | None) -> str:
    """Energy per image and mean power, or ``unknown``."""
    if mj_per_frame is None or mean_w is None:
        return "unknown"
    return f"{mj_per_frame:.3g} mJ per image at {mean_w:.3g} W"


class LiveView:
    """A view that is redrawn in place, at most every ``interval_s``."""

    def __init__(
        self, console: Console, *, interval_s: float = 0.15, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._live = Live(console=console, auto_refresh=False)
        self._interval_s = interval_s
        self._clock = clock
        self._drawn_s = float("-inf")
        self._latest: Snapshot | None = None

    def __enter__(self) -> LiveView:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._latest is not None:
            self._draw(self._latest)  # the last one stays on the screen
        self._live.__exit__(kind, error, trace)

    def show(self, snapshot: Snapshot) -> None:
        """See the port."""
        self._latest = snapshot
        if self._clock() - self._drawn_s >= self._interval_s:
            self._draw(snapshot)

    def _draw(self, snapshot: Snapshot) -> None:
        self._live.update(Picture(snapshot), refresh=True)
        self._drawn_s = self._clock()

    def note(self, text: str) -> None:
        """Above the picture."""
        self._live.console.print(Text(text))


def _write_to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class LineView:
    """One line at the start and then every ``interval_s``."""

    def __init__(
        self,
        *,
        interval_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
        write: Callable[[str], None] = _write_to_stderr,
    ) -> None:
        self._interval_s = interval_s
        self._clock = clock
        self._write = write
        self._written_s = float("-inf")

    def __enter__(self) -> LineView:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def show(self, snapshot: Snapshot) -> None:
        """See the port."""
        now_s = self._clock()
        if now_s - self._written_s >= self._interval_s:
            self._written_s = now_s
            energy = energy_text(snapshot.mj_per_frame, snapshot.mean_w)
            self._write(
                f"{_counted(snapshot)}: {snapshot.label} ({snapshot.confidence:.1%}) by {snapshot.source},"
                f" {_latency(snapshot.latencies)}, {energy} ({snapshot.energy_source})"
            )

    def note(self, text: str) -> None:
        """On a line of its own."""
        self._write(text)
