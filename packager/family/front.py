"""The picture of a family: work and loss of each rung of the ladder and of each stitch, and the front of them all."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from device_sdk.errors import UsageError
from device_sdk.files.drawing import ACCENT, INK, PALETTE, SOFT, Box, Dot, Drawing, Line, Shape, Text

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM, _RIGHT = 640, 380, 66, 70, 46, 24  # pixels
_RUNG, _STITCH = 3.5, 5.0  # radii


class ReportedRung(msgspec.Struct, frozen=True):
    """A member at an input size (empty: the family's own). ``loss``: see ``Point``."""

    member: str
    size: tuple[int, ...]
    macs: int
    loss: float


class ReportedStitch(msgspec.Struct, frozen=True):
    """A stitch and the path through it. ``gain``: how far its loss lies below that of the rungs of no more work."""

    id: str
    path_macs: int
    loss: float
    gain: float


class FamilyReport(msgspec.Struct, frozen=True):
    """The paths of a family, as its packaging report has them."""

    rungs: tuple[ReportedRung, ...]
    stitches: tuple[ReportedStitch, ...]


@dataclass(frozen=True)
class Point:
    """A path's multiply-accumulates and its loss: how far its answers lie from the largest member's, 0 to 1."""

    name: str
    macs: int
    loss: float


def read_report(path: Path) -> FamilyReport:
    """The report at ``path``.

    Raises:
        UsageError: there is none, or it is not a family's.
    """
    try:
        report = msgspec.json.decode(path.read_bytes(), type=FamilyReport)
    except (OSError, msgspec.DecodeError):
        report = FamilyReport((), ())
    if not report.rungs:
        raise UsageError(
            f"there is nothing to draw: {path} is not the report of a family",
            hint="pictures are of the folder that pathweave package --member has written",
        )
    return report


def front(points: Sequence[Point]) -> list[Point]:
    """The points that lose less than all of no more work, by rising work."""
    found: list[Point] = []
    for one in sorted(points, key=lambda point: (point.macs, point.loss)):
        if not found or one.loss < found[-1].loss:
            found.append(one)
    return found


def drawn(report: FamilyReport, name: str) -> Drawing:
    """The picture of the family ``name``: work to the right, agreement with the largest member upwards.

    A member's rungs, one for each input size, are joined by a line; stitches are dots with their gain over the rungs.
    """
    rungs: dict[str, list[Point]] = {}
    for rung in report.rungs:
        label = f"{rung.member} at {'x'.join(map(str, rung.size))}" if rung.size else rung.member
        rungs.setdefault(rung.member, []).append(Point(label, rung.macs, rung.loss))
    stitches = [Point(one.id, one.path_macs, one.loss) for one in report.stitches]
    title = f"{name}: agreement of each path's answers with {report.rungs[0].member}'s"
    points = [one for column in rungs.values() for one in column]
    axes = _Axes([*points, *stitches])
    shapes: list[Shape] = [Text(_LEFT, 20, title, size=13), *axes.shapes()]
    x = float(_LEFT)
    for (name, column), colour in zip(rungs.items(), PALETTE, strict=False):
        ordered = sorted(column, key=lambda one: one.macs)
        shapes += [Box(x, 36, 10, 10, colour), Text(x + 14, 45, name)]
        shapes.append(Line(tuple(map(axes.place, ordered)), colour))
        shapes += [Dot(*axes.place(one), _RUNG, colour, _said(one)) for one in ordered]
        x += 30 + 6.2 * len(name)
    shapes.append(Line(tuple(map(axes.place, front([*points, *stitches]))), SOFT, 1.0))
    for stitch, kept in zip(stitches, report.stitches, strict=True):
        (x, y), gain = axes.place(stitch), 100 * kept.gain
        shapes += [Dot(x, y, _STITCH, ACCENT, _said(stitch)), Text(x - 8, y - 9, f"+{gain:.1f}", ACCENT)]
    if stitches:
        shapes.append(Text(_LEFT, 60, "● stitches, and by how many points they come nearer than the rungs", ACCENT))
    return Drawing(_WIDTH, _TOP + _HEIGHT + _BOTTOM, tuple(shapes))


def _said(point: Point) -> str:
    return f"{point.name}: {point.macs / 1e6:.1f} million MACs, agreement {1 - point.loss:.1%}"


class _Axes:
    """Work on a logarithmic axis, agreement on a linear one."""

    def __init__(self, points: Sequence[Point]) -> None:
        logs = [math.log(max(one.macs, 1)) for one in points] or [0.0]
        self._low, self._high = min(logs), max(logs)
        self._worst = max((one.loss for one in points), default=1.0) or 1.0

    def place(self, point: Point) -> tuple[float, float]:
        """The pixels of a point."""
        share = (math.log(max(point.macs, 1)) - self._low) / max(self._high - self._low, 1e-9)
        y = _TOP + 12 + point.loss / self._worst * (_HEIGHT - 12)
        return _LEFT + 12 + share * (_WIDTH - _LEFT - _RIGHT - 12), y

    def shapes(self) -> Iterator[Shape]:
        """Both axes with their labels."""
        bottom, right = _TOP + _HEIGHT, _WIDTH - _RIGHT
        yield Line(((_LEFT, _TOP), (_LEFT, bottom), (right, bottom)), INK, 1.0)
        for share in (0.0, 0.25, 0.5, 0.75, 1.0):
            macs = math.exp(self._low + share * (self._high - self._low))
            x, _ = self.place(Point("", round(macs), 0.0))
            yield Text(x - 12, bottom + 16, f"{macs / 1e6:.3g} M")
            y = _TOP + 12 + share * (_HEIGHT - 12)
            yield Text(_LEFT - 42, y + 4, f"{100 * (1 - share * self._worst):.1f} %")
        yield Text(right - 170, bottom + 34, "multiply-accumulates per image")
        yield Text(6, _TOP - 2, "agreement")
