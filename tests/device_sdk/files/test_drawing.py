from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest
from PIL import Image

from device_sdk.errors import UsageError
from device_sdk.files.drawing import Box, Dot, Drawing, Line, Text, svg, write_drawing

DRAWING = Drawing(
    80,
    60,
    (
        Box(10, 10, 20, 20, "#ff0000"),
        Dot(60, 20, 5, "#00ff00", title="5 < 6 & more"),
        Line(((0, 50), (80, 50)), "#0000ff", 3),
        Text(4, 45, "a < b"),
    ),
)


def test_an_svg_has_every_shape_and_escapes_texts():
    root = ElementTree.fromstring(svg(DRAWING))
    assert [one.tag.rpartition("}")[2] for one in root] == ["rect", "rect", "circle", "polyline", "text"]
    assert [one.text for one in root.iter() if one.text and one.text.strip()] == ["5 < 6 & more", "a < b"]


def test_a_png_shows_the_same_shapes(tmp_path):
    write_drawing(tmp_path / "it.png", DRAWING)
    with Image.open(tmp_path / "it.png") as image:
        assert image.size == (80, 60)
        assert [image.getpixel(place) for place in ((20, 20), (60, 20), (40, 50), (75, 5))] == [
            (255, 0, 0),
            (0, 255, 0),
            (0, 0, 255),
            (255, 255, 255),
        ]


def test_another_suffix_is_refused_and_nothing_written(tmp_path):
    with pytest.raises(UsageError, match=r"\.svg or \.png file, not it\.gif"):
        write_drawing(tmp_path / "it.gif", DRAWING)
    assert not list(tmp_path.iterdir())
