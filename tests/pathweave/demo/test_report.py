from __future__ import annotations

import re
from collections.abc import Sequence
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from device_sdk.supernet.blocks import Block, CutPoint, Golden, Rendition, TensorSpec
from device_sdk.supernet.supernet import Supernet
from pathweave.demo.devices import DeviceResult, Point
from pathweave.demo.elastic import DeadlineRow, ElasticResult, MemoryRow
from pathweave.demo.extras import JobResult, SplitResult
from pathweave.demo.report import render_demo

RATIOS = (1.0, 0.6, 0.35)


def block(block_id: str, start: int, end: int) -> Block:
    rendition = Rendition("fp32", "onnxruntime", blob="", size_bytes=0, golden=Golden((), 0.0))
    kind = "original" if end == start + 1 else "merged"
    return Block(block_id, start, end, kind, parameters=1234, macs=0, renditions=(rendition,))


def supernet() -> Supernet:
    cuts = [CutPoint(index, (TensorSpec(f"cut_{index}", (4, 8, 8)),)) for index in range(6)]
    originals = [block(f"o{index}", index, index + 1) for index in range(5)]
    return Supernet(cuts, [*originals, block("m1-3", 1, 3), block("m1-4", 1, 4), block("m2-4", 2, 4)])


def device(ratio: float, *, pool: Sequence[Point] = (Point(0.2, 0.5), Point(0.9, 0.98))) -> DeviceResult:
    return DeviceResult(
        budget_ratio=ratio,
        full_ms=1.0,
        budget_ms=ratio,
        subnet=("o0", "m1-4", "o4"),
        predicted_ms=0.31,
        predicted_ratio=0.31,
        measured_ms=0.32,
        measured_ratio=0.32,
        accuracy_local=0.96,
        full_accuracy_local=0.99,
        accuracy_with_server=0.97,
        share_early=0.5,
        share_asked=0.1,
        exits=("x2-pooled",),
        resumed=int(ratio == 0.6),
        log_lines=5,
        held_back_samples=100,
        class_mix=(3, 0, 12),
        pool=tuple(pool),
    )


def rendered(devices: Sequence[DeviceResult]) -> str:
    return render_demo(
        devices,
        supernet=supernet(),
        full_model_accuracy=0.987,
        split=SplitResult(4, 10.2, 10.4, 0.5, 4321, 1.0),
        job=JobResult("done", 1, 31.4, 0.975),
        elastic=ElasticResult(
            60,
            (DeadlineRow(2.5, 60, 57, 2.25, {"exit x2-pooled": 12, "subnet": 48}), DeadlineRow(0.125, 0, 0, 0.0, {})),
            (MemoryRow(3.5, 60, 30, 1.75, {"exit <1>": 60}),),
        ),
        seconds=99.6,
    )


def pictures(page: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)]


def classed(picture: ElementTree.Element, class_: str) -> list[ElementTree.Element]:
    return [part for part in picture.iter() if part.get("class") == class_]


def centres(picture: ElementTree.Element, class_: str) -> list[tuple[float, float]]:
    return [(float(part.attrib["cx"]), float(part.attrib["cy"])) for part in classed(picture, class_)]


class Loads(HTMLParser):
    """Collects what a browser would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]


def test_the_page_names_every_device_and_loads_nothing() -> None:
    page = rendered([device(ratio) for ratio in RATIOS])
    assert all(f"{percent} % device" in page for percent in (100, 60, 35))
    loads = Loads()
    loads.feed(page)
    assert loads.addresses == []
    assert "url(" not in page
    assert "98.7% right" in page
    assert "took 100 s" in page


def test_every_picture_is_well_formed_and_described() -> None:
    found = pictures(rendered([device(ratio) for ratio in RATIOS]))
    assert len(found) == 3 + len(RATIOS)  # accuracy and latency, supernet, who answered, a class mix each
    assert all(picture.get("aria-label") for picture in found)


def test_dots_are_told_apart_by_the_budget() -> None:
    pool = (Point(0.1, 0.9), Point(0.35, 0.9), Point(0.36, 0.99))
    chart = pictures(rendered([device(0.35, pool=pool)]))[0]
    assert (len(classed(chart, "dot")), len(classed(chart, "dot beyond"))) == (2, 1)


def test_faster_lies_left_and_more_accurate_lies_higher() -> None:
    chart = pictures(rendered([device(1.0, pool=(Point(0.2, 0.8), Point(0.8, 0.95)))]))[0]
    (fast_x, fast_y), (slow_x, slow_y) = centres(chart, "dot")
    assert fast_x < slow_x
    assert fast_y > slow_y


@pytest.mark.parametrize("accuracy", [0.0, 0.2, 0.74, 1.0])
def test_no_dot_leaves_the_picture(accuracy: float) -> None:
    chart = pictures(rendered([device(1.0, pool=(Point(0.2, accuracy), Point(3.0, accuracy)))]))[0]
    _, _, width, height = map(float, chart.attrib["viewBox"].split())
    for x, y in centres(chart, "dot") + centres(chart, "dot beyond"):
        assert 0 <= x <= width
        assert 0 <= y <= height


def test_a_device_that_tried_nothing_but_its_choice_can_be_drawn() -> None:
    assert len(pictures(rendered([device(0.35, pool=())]))) == 4


def test_the_supernet_shows_all_blocks_and_the_taken_path() -> None:
    paths = pictures(rendered([device(ratio) for ratio in RATIOS]))[1]
    taken = [part[0].text or "" for part in classed(paths, "taken")]
    assert [text.split(":")[0] for text in taken] == ["o0", "o4", "m1-4"] * len(RATIOS)
    assert len(classed(paths, "edge")) == (8 - 3) * len(RATIOS)
    assert len(classed(paths, "cut passed")) == 4 * len(RATIOS)  # 0, 1, 4 and 5


def test_the_class_mix_has_a_bar_for_every_class() -> None:
    bars = classed(pictures(rendered([device(0.6)]))[3], "mix")
    assert [bar[0].text for bar in bars] == ["class 0: 3 samples", "class 1: 0 samples", "class 2: 12 samples"]
    heights = [float(bar.attrib["height"]) for bar in bars]
    assert heights[1] < heights[0] < heights[2]


def test_the_bars_show_who_answered() -> None:
    bars = pictures(rendered([device(0.6)]))[2]
    widths = {who: float(classed(bars, who)[0].attrib["width"]) for who in ("early", "end", "server")}
    assert widths["early"] / sum(widths.values()) == pytest.approx(0.5, abs=0.01)
    assert widths["server"] / sum(widths.values()) == pytest.approx(0.1, abs=0.01)


def test_an_interrupted_download_is_reported() -> None:
    assert "The connection of the 60 % device was dropped" in rendered([device(ratio) for ratio in RATIOS])
    assert "dropped" not in rendered([device(1.0)])


def test_the_split_plan_and_the_job_are_told() -> None:
    page = rendered([device(1.0)])
    assert "Split at cut point 4" in page
    assert "4,321 bytes" in page
    assert "97.5% right" in page


def test_the_page_shows_deadlines_and_a_shrinking_memory_limit() -> None:
    page = rendered([device(1.0)])
    assert "2.50 ms" in page
    assert "95.0%" in page
    assert "exit x2-pooled 12, subnet 48" in page
    assert "3.5 MB" in page
    assert "exit &lt;1&gt; 60" in page
