from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from jetson_demo.figures import Latencies
from jetson_demo.plan_drawing import PlacedBlock, PlanOutline
from jetson_demo.terminal_view import LineView, LiveView, Picture, Snapshot, energy_text, make_view

BLOCKS = (
    PlacedBlock("o0", "original", 0, 1),
    PlacedBlock("m1-4", "merged", 1, 4),
    PlacedBlock("o4@int8", "original", 4, 5),
)

SNAPSHOT = Snapshot(
    title="tiny version 1 on CPUExecutionProvider",
    image="/photos/of/a/rather/long/summer/in/the/mountains/red/00042.png",
    label="red",
    confidence=0.9876,
    source="exit x1-pooled",
    frames=41,
    frames_wanted=200,
    skipped=2,
    missed=3,
    board="nvpmodel 15W, 48 °C",
    latencies=Latencies(0.214, 0.21, 0.301, 0.22, tuple(0.2 + 0.01 * (number % 7) for number in range(300))),
    outline=PlanOutline(BLOCKS, (("x1-pooled", 1),)),
    budget_ms=0.262,
    measured_ms=0.25,
    sources={"exit x1-pooled": 0.61, "subnet": 0.39},
    mj_per_frame=2.1,
    mean_w=10.0,
    energy_source="model: 10 W × busy time",
    events=("12:00:01 profiled: the full model takes 0.4 ms", "12:00:02 switched to o0 m1-4 o4@int8: 0.25 ms measured"),
)


def drawn(snapshot: Snapshot, *, width: int) -> list[str]:
    console = Console(width=width, file=io.StringIO(), force_terminal=False, color_system=None)
    console.print(Picture(snapshot))
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [40, 60, 120])
def test_the_picture_is_as_wide_as_the_terminal_and_tells_all(width):
    lines = drawn(SNAPSHOT, width=width)
    assert {len(line) for line in lines} == {width}
    text = " ".join(line.strip("│ ") for line in lines)
    for word in (
        "00042.png",
        "41 of 200 images, 2 skipped, 3 late",
        "nvpmodel 15W, 48 °C",
        "red (98.8%)",
        "0.214 ms now",
        "p95 0.301 ms",
        "61%",
        "2.1 mJ",
    ):
        assert word in text
    assert "│═" in text
    assert "12:00:02 switched to" in text


@pytest.mark.parametrize("width", [60, 120])
def test_the_plan_is_drawn_over_the_whole_width(width):
    [row] = [line for line in drawn(SNAPSHOT, width=width) if "m1-4═" in line]
    assert row.startswith("│ plan     │─")
    assert row.endswith("─│   │") or row.endswith("─│  │") or row.endswith("─│ │")


def test_the_end_of_a_long_path_is_what_is_shown():
    [row] = [line for line in drawn(SNAPSHOT, width=60) if "00042.png" in line]
    assert "…" in row
    assert "/photos/of" not in row


def test_what_is_unknown_is_called_so():
    lines = drawn(replace(SNAPSHOT, mj_per_frame=None, mean_w=None, events=(), frames_wanted=None), width=60)
    text = "\n".join(lines)
    assert "unknown (model: 10 W × busy time)" in text
    assert " of 200" not in text
    assert energy_text(None, None) == "unknown"


def test_text_from_outside_is_never_taken_for_markup():
    named = {"label": "[red]x[/blue]", "image": "[bold]/a.png", "title": "[link=x]t"}
    text = "\n".join(drawn(replace(SNAPSHOT, **named, energy_source="[VDD]", sources={"[a]": 1.0}), width=120))
    for written in (*named.values(), "[VDD]", "[a]"):
        assert written in text


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_lines_come_at_once_and_then_only_now_and_then():
    clock, lines = Clock(), []
    with LineView(interval_s=5, clock=clock, write=lines.append) as view:
        for _ in range(50):
            view.show(SNAPSHOT)
            clock.now_s += 0.2
        view.note("skipped a.png: broken")
    assert len(lines) == 3
    assert lines[0].startswith("41 of 200 images, 2 skipped, 3 late: red (98.8%) by exit x1-pooled, 0.214 ms now")
    assert "2.1 mJ per image at 10 W (model: 10 W × busy time)" in lines[0]
    assert lines[-1] == "skipped a.png: broken"


def test_the_picture_is_not_drawn_more_often_than_told_and_the_last_one_stays():
    clock, file = Clock(), io.StringIO()
    console = Console(file=file, force_terminal=True, width=80, height=40)
    with LiveView(console, interval_s=1, clock=clock) as view:
        for number in range(10):
            view.show(replace(SNAPSHOT, frames=number))
            clock.now_s += 0.25
        view.note("[skipped] a.png")
    written = file.getvalue()
    assert [number for number in range(10) if f" {number} of 200" in written] == [0, 4, 8, 9]
    assert "[skipped] a.png" in written


def test_without_a_terminal_or_for_a_program_there_are_lines():
    assert isinstance(make_view(as_json=True), LineView)
    assert isinstance(make_view(as_json=False), LineView)  # pytest's standard error is no terminal
