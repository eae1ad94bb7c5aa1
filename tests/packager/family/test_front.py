from __future__ import annotations

import msgspec
import pytest

from device_sdk.errors import UsageError
from device_sdk.files.drawing import ACCENT, Dot, Text
from packager.family.front import FamilyReport, Point, ReportedRung, ReportedStitch, drawn, front, read_report

REPORT = FamilyReport(
    (ReportedRung("large", (), 100, 0.0), ReportedRung("large", (6, 6), 60, 0.3), ReportedRung("small", (), 50, 0.4)),
    (ReportedStitch("small.2-to-large.3", 70, 0.1, 0.2),),
)


def test_the_front_holds_what_loses_less_than_all_of_no_more_work():
    points = [Point("a", 10, 0.5), Point("b", 20, 0.6), Point("c", 30, 0.2), Point("d", 30, 0.3)]
    assert [one.name for one in front(points)] == ["a", "c"]


def test_the_picture_shows_every_rung_and_every_stitch_with_what_it_earns():
    drawing = drawn(REPORT, "pair")
    dots = [one for one in drawing.shapes if isinstance(one, Dot)]
    assert len(dots) == 4
    (stitch,) = [one for one in dots if one.colour == ACCENT]
    assert "small.2-to-large.3" in stitch.title
    assert "agreement 90.0%" in stitch.title
    texts = [one.text for one in drawing.shapes if isinstance(one, Text)]
    assert "+20.0" in texts
    assert {"large", "small"} <= set(texts)


def test_more_work_lies_to_the_right_and_more_agreement_above():
    smaller, large, small, stitch = (one for one in drawn(REPORT, "pair").shapes if isinstance(one, Dot))
    assert small.x < smaller.x < stitch.x < large.x
    assert large.y < stitch.y < smaller.y < small.y


@pytest.mark.parametrize("content", [None, b"{}", b"[]", b"not json"])
def test_what_is_no_report_of_a_family_is_said(tmp_path, content):
    path = tmp_path / "packaging.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match="nothing to draw"):
        read_report(path)


def test_a_report_is_read_with_fields_that_are_not_drawn(tmp_path):
    path = tmp_path / "packaging.json"
    path.write_bytes(msgspec.json.encode(msgspec.to_builtins(REPORT) | {"seconds": 1.5}))
    assert read_report(path) == REPORT
