"""The latency of every position of a split as stacked bars: an SVG, or a PNG drawn with Pillow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from io import BytesIO
from pathlib import Path

from device_sdk.errors import UsageError
from device_sdk.files.atomic import write_atomically
from device_sdk.policies.splitting.path_splits import SplitCost

PARTS = {  # field of a SplitCost and its colour
    "device": "#4c72b0",
    "packing": "#8fb0d9",
    "transfer": "#dd8452",
    "handling": "#b3b3b3",
    "unpacking": "#9fd6a8",
    "server": "#55a868",
}
_BAR, _GAP, _HEIGHT, _LEFT, _TOP, _BOTTOM = 22, 8, 260, 70, 60, 48  # pixels
_INK, _CHOSEN = "#222222", "#c44e52"


@dataclass(frozen=True)
class _Box:
    x: float
    y: float
    width: float
    height: float
    colour: str


@dataclass(frozen=True)
class _Text:
    x: float
    y: float
    text: str
    colour: str = _INK


@dataclass(frozen=True)
class _Drawing:
    width: int
    height: int
    boxes: tuple[_Box, ...]
    texts: tuple[_Text, ...]


def write_picture(path: Path, costs: Sequence[SplitCost], best: SplitCost, title: str) -> None:
    """Write the picture to ``path``, by its suffix.

    Raises:
        UsageError: the suffix is neither .svg nor .png.
    """
    drawing = _drawn(costs, best, title)
    if path.suffix == ".svg":
        write_atomically(path, _svg(drawing).encode())
    elif path.suffix == ".png":
        write_atomically(path, _png(drawing))
    else:
        raise UsageError(f"a picture is a .svg or .png file, not {path.name}")


def _drawn(costs: Sequence[SplitCost], best: SplitCost, title: str) -> _Drawing:
    most_ms = max(cost.latency_ms for cost in costs) or 1.0
    boxes, texts = [], [_Text(_LEFT, 18, title)]
    for number, (part, colour) in enumerate(PARTS.items()):
        x = _LEFT + number * 92
        boxes.append(_Box(x, 30, 10, 10, colour))
        texts.append(_Text(x + 14, 39, part))
    for number, cost in enumerate(costs):
        x, y = _LEFT + number * (_BAR + _GAP), float(_TOP + _HEIGHT)
        for part, colour in PARTS.items():
            height = getattr(cost, f"{part}_ms") / most_ms * _HEIGHT
            y -= height
            boxes.append(_Box(x, y, _BAR, height, colour))
        colour = _CHOSEN if cost == best else _INK
        texts.append(_Text(x + 2, _TOP + _HEIGHT + 14, str(cost.position), colour))
        if cost.tail:
            sent = "jpeg" if cost.sends == "jpeg" else f"{cost.bits[0]}b"
            texts.append(_Text(x + 2, _TOP + _HEIGHT + 28, sent, colour))
        if cost == best:
            boxes.append(_Box(x, _TOP + _HEIGHT + 33, _BAR, 3, _CHOSEN))
    for share in (0.0, 0.5, 1.0):
        texts.append(_Text(6, _TOP + _HEIGHT * (1 - share) + 4, f"{share * most_ms:.3g} ms"))
    width = _LEFT + max(len(costs) * (_BAR + _GAP), len(PARTS) * 92)
    return _Drawing(width, _TOP + _HEIGHT + _BOTTOM, tuple(boxes), tuple(texts))


def _svg(drawing: _Drawing) -> str:
    boxes = [
        f'<rect x="{box.x:.2f}" y="{box.y:.2f}" width="{box.width:.2f}" height="{box.height:.2f}" fill="{box.colour}"/>'
        for box in drawing.boxes
    ]
    texts = [
        f'<text x="{one.x:.2f}" y="{one.y:.2f}" fill="{one.colour}">{escape(one.text)}</text>' for one in drawing.texts
    ]
    size = f'width="{drawing.width}" height="{drawing.height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *boxes, *texts, "</svg>", ""])


def _png(drawing: _Drawing) -> bytes:
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (drawing.width, drawing.height), "white")
    draw = ImageDraw.Draw(image)
    for box in drawing.boxes:
        if box.height >= 0.5:
            draw.rectangle((box.x, box.y, box.x + box.width, box.y + box.height), fill=box.colour)
    for text in drawing.texts:
        draw.text((text.x, text.y - 10), text.text, fill=text.colour)
    file = BytesIO()
    image.save(file, "PNG")
    return file.getvalue()
