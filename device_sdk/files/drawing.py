"""Plain drawings of boxes, dots, lines and texts, written as SVG or PNG. Positions and sizes are in pixels."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from io import BytesIO
from pathlib import Path

from device_sdk.errors import UsageError
from device_sdk.files.atomic import write_atomically

INK, SOFT, ACCENT = "#222222", "#b3b3b3", "#c44e52"
PALETTE = ("#4c72b0", "#dd8452", "#55a868", "#8172b3", "#937860", "#da8bc3", "#64b5cd", "#ccb974")
SUFFIXES = (".svg", ".png")
_ASCENT = 0.9  # of the font size: from the top of a text to its baseline
_THINNEST = 0.5  # of boxes in a PNG
_PLAIN = str.maketrans("×−●", "x-o")  # letters that the font of a PNG lacks


@dataclass(frozen=True)
class Box:
    """A filled rectangle; ``x``, ``y``: its upper left corner."""

    x: float
    y: float
    width: float
    height: float
    colour: str


@dataclass(frozen=True)
class Dot:
    """A filled circle around ``x``, ``y``. ``title``: shown under the pointer, in SVG."""

    x: float
    y: float
    radius: float
    colour: str
    title: str = ""


@dataclass(frozen=True)
class Line:
    """A line through ``points``."""

    points: tuple[tuple[float, float], ...]
    colour: str
    width: float = 1.5


@dataclass(frozen=True)
class Text:
    """A text that begins at ``x``, on the baseline ``y``."""

    x: float
    y: float
    text: str
    colour: str = INK
    size: int = 11


Shape = Box | Dot | Line | Text


@dataclass(frozen=True)
class Drawing:
    """Shapes on a white page, later ones above earlier ones."""

    width: int
    height: int
    shapes: tuple[Shape, ...]


def require_picture(path: Path) -> None:
    """Refuse another suffix than .svg and .png.

    Raises:
        UsageError: the suffix is another one.
    """
    if path.suffix not in SUFFIXES:
        raise UsageError(f"a picture is a .svg or .png file, not {path.name}")


def write_drawing(path: Path, drawing: Drawing) -> None:
    """Write the drawing, by the suffix of ``path``.

    Raises:
        UsageError: the suffix is neither .svg nor .png.
        StorageError: the file cannot be written.
    """
    require_picture(path)
    write_atomically(path, svg(drawing).encode() if path.suffix == ".svg" else _png(drawing))


def svg(drawing: Drawing) -> str:
    """The drawing as a standalone SVG."""
    size = f'width="{drawing.width}" height="{drawing.height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">'
    page = '<rect width="100%" height="100%" fill="white"/>'
    return "\n".join([head, page, *map(_element, drawing.shapes), "</svg>", ""])


def _element(shape: Shape) -> str:
    match shape:
        case Box(x, y, width, height, colour):
            return f'<rect x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}" fill="{colour}"/>'
        case Dot(x, y, radius, colour, title):
            circle = f'<circle cx="{x:.2f}" cy="{y:.2f}" r="{radius:.2f}" fill="{colour}"'
            return f"{circle}><title>{escape(title)}</title></circle>" if title else f"{circle}/>"
        case Line(points, colour, width):
            places = " ".join(f"{x:.2f},{y:.2f}" for x, y in points)
            return f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="{width:g}"/>'
        case Text(x, y, text, colour, size):
            return f'<text x="{x:.2f}" y="{y:.2f}" font-size="{size}" fill="{colour}">{escape(text)}</text>'


def _png(drawing: Drawing) -> bytes:
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", (drawing.width, drawing.height), "white")
    draw = ImageDraw.Draw(image)
    for shape in drawing.shapes:
        match shape:
            case Box(x, y, width, height, colour) if height >= _THINNEST:
                draw.rectangle((x, y, x + width, y + height), fill=colour)
            case Dot(x, y, radius, colour):
                draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour)
            case Line(points, colour, width):
                draw.line(points, fill=colour, width=max(1, round(width)))
            case Text(x, y, text, colour, size):
                font = ImageFont.load_default(size)
                draw.text((x, y - _ASCENT * size), text.translate(_PLAIN), fill=colour, font=font)
    file = BytesIO()
    image.save(file, "PNG")
    return file.getvalue()
