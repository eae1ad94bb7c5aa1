from __future__ import annotations

import json
from xml.etree import ElementTree

import msgspec
import pytest

from device_sdk.commands.sustained_report import sparkline, sustained_drawing, sustained_lines
from device_sdk.files.drawing import svg
from device_sdk.profiling.speed_reading import Zone
from device_sdk.profiling.sustained import Stage, SustainedProfile, SustainedSample


def sample(number, latency_ms):
    return SustainedSample(at_s=number + 1.0, calls=10, median_ms=latency_ms, p95_ms=latency_ms + 1)


FOUND = SustainedProfile(
    bundle="b",
    runtime="r",
    plan="o0 m1-4",
    created="2026-01-01T00:00:00+00:00",
    seconds=60.0,
    calls=600,
    first=Stage(seconds=6.0, calls=60, mean_ms=10.1, median_ms=10.0, p95_ms=11.0, zones=(Zone("cpu", 41.0, 80.0),)),
    last=Stage(seconds=6.0, calls=60, mean_ms=15.1, median_ms=15.0, p95_ms=17.0, zones=(Zone("cpu", 82.4, 80.0),)),
    sustained_over_first=1.5,
    settled_s=31.0,
    outcome="throttled",
    samples=tuple(sample(number, 10.0 if number < 30 else 15.0) for number in range(60)),
)


QUICK = msgspec.structs.replace(FOUND.first, mean_ms=8.0, median_ms=8.0)


@pytest.fixture
def shown(pathweave, tiny_bundle, slow_state):
    """Runs ``profile`` on a device that was profiled before; gives status, output and lines of errors."""
    return lambda *arguments: pathweave("profile", tiny_bundle.folder, "--state", slow_state, *arguments)


def test_a_sustained_profile_is_measured_kept_and_shown_again(shown, tmp_path):
    picture = tmp_path / "sustained.svg"
    status, out, err = shown("--sustained", "2", "--picture", picture, "--json")
    assert status == 0, err
    found = json.loads(out)["sustained"]
    assert found["calls"] > 10
    assert found["first"]["calls"] > 0
    assert found["outcome"] in {"steady", "throttled", "load", "power_mode", "unknown"}
    assert ElementTree.fromstring(picture.read_text()).tag.endswith("svg")
    status, out, _ = shown("--json")
    assert json.loads(out)["sustained"] == found
    status, out, _ = shown()
    assert "sustained for 2 s with o0 o1 o2 o3 o4" in out


def test_without_a_sustained_profile_there_is_none_to_show_or_draw(shown, tmp_path):
    status, out, _ = shown("--json")
    assert (status, json.loads(out)["sustained"]) == (0, None)
    status, _, err = shown("--picture", tmp_path / "sustained.svg")
    assert status == 2
    assert "no sustained profile" in err[0]
    assert shown("--picture", tmp_path / "sustained.gif")[0] == 2


def test_the_report_says_how_much_slower_since_when_and_why():
    lines = list(sustained_lines(FOUND))
    assert lines[0].endswith("15.000 ms in the last 6 s, 1.50 × the first 6 s")
    assert lines[1].endswith("15.100 ms and 17.000 ms at last; the device throttled itself; settled after 31 s")
    assert lines[2].strip() == "▁" * 30 + "█" * 30
    assert lines[3].strip() == "hottest: cpu 41 °C to cpu 82 °C, slowed down from 80 °C on"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"outcome": "steady", "sustained_over_first": 1.0}, "at last; steady"),
        ({"outcome": "load", "settled_s": None}, "other processes took its cores; not settled yet"),
        ({"outcome": "unknown", "last": QUICK}, "faster without a reason that the system tells; settled"),
    ],
)
def test_other_outcomes_have_their_own_words(changes, words):
    assert words in list(sustained_lines(msgspec.structs.replace(FOUND, **changes)))[1]


def test_a_system_without_sensors_has_no_line_for_heat():
    bare = msgspec.structs.replace(
        FOUND,
        first=msgspec.structs.replace(FOUND.first, zones=()),
        last=msgspec.structs.replace(FOUND.last, zones=()),
        samples=(),
    )
    assert len(list(sustained_lines(bare))) == 2


def test_a_sparkline_is_at_most_60_wide_and_has_digits_where_there_are_no_blocks():
    assert len(sparkline(range(1, 1000))) == 60
    assert sparkline([5.0, 5.0]) == "▁▁"
    assert sparkline([1.0, 8.0, 4.0], encoding="ascii") == "073"
    assert sparkline([1.0, 2.0], encoding="no such encoding") == "07"


def test_a_picture_has_a_point_for_each_second():
    drawing = sustained_drawing(FOUND)
    assert max(len(getattr(one, "points", ())) for one in drawing.shapes) == 60
    assert "settled after 31 s" in svg(drawing)
