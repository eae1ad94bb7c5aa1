"""The pictures of the demo's report, as SVG: accuracy and latency, paths through the supernet, class mixes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from device_sdk.supernet.blocks import Block
from device_sdk.supernet.supernet import Supernet
from pathweave.demo.devices import DeviceResult
from pathweave.page import element, hint, label, picture

WIDTH = 1080  # pixels, as all sizes here

# accuracy and latency: one panel per device, all on the same scales
PANEL_HEIGHT = 300
LEFT, TOP, GAP, BOTTOM = 44, 50, 22, 46
X_MAX = 1.15  # of the full model's latency
Y_MIN = 0.75  # less accurate subnets are drawn on the lower edge, to resolve the better ones

# supernet: one row per device
ROW_LEFT, ROW_RIGHT = 150, 30
ARC_RISE = 14  # per replaced block
ROW_GAP = 44

MIX_BAR, MIX_HEIGHT = 8, 24

# sources of answers: one bar per device
BAR_HEIGHT, BAR_GAP = 26, 16
BAR_LABEL_MIN = 0.07  # a narrower part has no label


def accuracy_latency_picture(devices: Sequence[DeviceResult]) -> str:
    """For each device its evaluated subnets, its budget, its chosen subnet and the full model."""
    panel_width = (WIDTH - LEFT - GAP * (len(devices) - 1)) / len(devices)
    lowest = _lowest_accuracy(devices)
    panels = []
    for number, device in enumerate(devices):
        panel = _Panel(LEFT + number * (panel_width + GAP), panel_width, lowest)
        panels.append(element("g", *panel.draw(device, first=number == 0), class_=f"device{number % 3}"))
    name = "Accuracy and latency of the subnets that each device tried"
    return picture(*panels, width=WIDTH, height=TOP + PANEL_HEIGHT + BOTTOM, name=name)


def _lowest_accuracy(devices: Sequence[DeviceResult]) -> float:
    """Start of the accuracy axis: a multiple of 5 % a little below all points, or ``Y_MIN``."""
    points = [point.accuracy for device in devices for point in device.pool]
    shown = [value for device in devices for value in (device.accuracy_local, device.full_accuracy_local)]
    return min(*shown, max(Y_MIN, math.floor((min(points + shown) - 0.005) * 20) / 20))


class _Panel:
    """One device's picture: latency relative to the full model to the right, accuracy upwards."""

    def __init__(self, left: float, width: float, lowest: float) -> None:
        self._left, self._width, self._lowest = left, width, lowest
        self._bottom = float(TOP + PANEL_HEIGHT)

    def _x(self, ratio: float) -> float:
        return self._left + self._width * min(ratio, X_MAX) / X_MAX

    def _y(self, accuracy: float) -> float:
        highest = 1 + 0.04 * (1 - self._lowest)  # dots at 100 % stay whole
        return self._bottom - PANEL_HEIGHT * (max(accuracy, self._lowest) - self._lowest) / (highest - self._lowest)

    def draw(self, device: DeviceResult, *, first: bool) -> Iterator[str]:
        """Elements from back to front; only the ``first`` panel labels the accuracy axis."""
        limit = self._x(device.budget_ratio)
        right = self._left + self._width
        yield element("rect", x=limit, y=TOP, width=right - limit, height=PANEL_HEIGHT, class_="over")
        yield from self._axes(first=first)
        yield element("line", x1=limit, x2=limit, y1=TOP, y2=self._bottom, class_="limit")
        yield from self._heading(device)
        yield from self._dots(device)
        yield self._full_model(device)
        yield self._chosen(device)

    def _heading(self, device: DeviceResult) -> Iterator[str]:
        title = f"{device.name} device: at most {device.budget_ms:.3f} ms"
        yield label(title, x=self._left, y=TOP - 30, class_="strong heading")
        ratio = device.measured_ms / device.full_ms
        chosen = f"chose one that is {device.accuracy_local:.1%} right at {ratio:.0%} of the latency"
        yield label(chosen, x=self._left, y=TOP - 12)

    def _axes(self, *, first: bool) -> Iterator[str]:
        spread = 1 - self._lowest
        step = 0.01 if spread < 0.06 else 0.05 if spread < 0.3 else 0.1
        for index in range(int(spread / step + 1e-9) + 1):
            accuracy = 1 - index * step
            y = self._y(accuracy)
            yield element("line", x1=self._left, x2=self._left + self._width, y1=y, y2=y, class_="grid")
            if first:
                yield label(f"{accuracy:.0%}", x=self._left - 6, y=y + 4, text_anchor="end")
        bottom = self._bottom
        yield element("line", x1=self._left, x2=self._left + self._width, y1=bottom, y2=bottom, class_="axis")
        for percent in (0, 25, 50, 75, 100):
            yield label(f"{percent}%", x=self._x(percent / 100), y=bottom + 17, text_anchor="middle")
        middle = self._left + self._width / 2
        yield label("latency, of the full model's", x=middle, y=bottom + 36, text_anchor="middle")

    def _dots(self, device: DeviceResult) -> Iterator[str]:
        for point in device.pool:
            ratio = point.latency_ms / device.full_ms
            class_ = "dot" if point.latency_ms <= device.budget_ms else "dot beyond"
            yield element("circle", cx=self._x(ratio), cy=self._y(point.accuracy), r=4, class_=class_)

    def _full_model(self, device: DeviceResult) -> str:
        x, y = self._x(1.0), self._y(device.full_accuracy_local)
        corners = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in ((0, -7), (7, 0), (0, 7), (-7, 0)))
        tooltip = f"full model: {device.full_accuracy_local:.1%} at {device.full_ms:.3f} ms"
        return element("polygon", hint(tooltip), points=corners, class_="full")

    def _chosen(self, device: DeviceResult) -> str:
        x, y = self._x(device.measured_ms / device.full_ms), self._y(device.accuracy_local)
        tooltip = f"chosen: {device.accuracy_local:.1%} at {device.measured_ms:.3f} ms"
        return element("circle", hint(tooltip), cx=x, cy=y, r=8, class_="chosen")


def supernet_picture(devices: Sequence[DeviceResult], supernet: Supernet) -> str:
    """The supernet once per device, with the device's path drawn bold."""
    longest = max(block.end - block.start for block in supernet.blocks)
    row_height = ARC_RISE * longest + ROW_GAP
    step = (WIDTH - ROW_LEFT - ROW_RIGHT) / supernet.output_index
    rows = []
    for number, device in enumerate(devices):
        base = (number + 1) * row_height - 10
        parts = [*_blocks(device, supernet, base, step), *_cut_points(device, supernet, base, step)]
        name = label(f"{device.name} device", x=0, y=base - 4, class_="strong heading")
        count = label(f"{len(device.subnet)} of {supernet.output_index} blocks", x=0, y=base + 13)
        rows.append(element("g", name, count, *parts, class_=f"device{number % 3}"))
    height = row_height * len(devices) + 24
    return picture(*rows, width=WIDTH, height=height, name="The supernet and the path that each device chose")


def _blocks(device: DeviceResult, supernet: Supernet, base: float, step: float) -> Iterator[str]:
    """All blocks in grey, then those of the subnet above them."""
    for taken in (False, True):
        for block in supernet.blocks:
            if (block.id in device.subnet) == taken:
                tooltip = f"{block.id}: {block.kind}, {block.parameters:,} parameters"
                class_ = "taken" if taken else "edge"
                yield element("path", hint(tooltip), d=_curve(block, base, step), class_=class_)


def _curve(block: Block, base: float, step: float) -> str:
    start, end = ROW_LEFT + block.start * step, ROW_LEFT + block.end * step
    span = block.end - block.start
    if span == 1:
        return f"M{start:.1f} {base}H{end:.1f}"
    top = base - ARC_RISE * span / 0.75  # a cubic curve reaches three quarters of the way to its handles
    lean = 0.2 * (end - start)
    return f"M{start:.1f} {base}C{start + lean:.1f} {top:.1f} {end - lean:.1f} {top:.1f} {end:.1f} {base}"


def _cut_points(device: DeviceResult, supernet: Supernet, base: float, step: float) -> Iterator[str]:
    passed = {0} | {supernet.block(block_id).end for block_id in device.subnet}
    for cut in supernet.cut_points:
        x = ROW_LEFT + cut.index * step
        shape = "×".join(str(extent) for extent in cut.tensors[0].shape)
        class_ = "cut passed" if cut.index in passed else "cut"
        yield element("circle", hint(f"cut point {cut.index}: {shape}"), cx=x, cy=base, r=5, class_=class_)
        name = {0: "input", supernet.output_index: "output"}.get(cut.index, str(cut.index))
        yield label(name, x=x, y=base + 21, text_anchor="middle")


def answers_picture(devices: Sequence[DeviceResult]) -> str:
    """A bar per device, divided by the source of its answers: exits, end of the subnet, server."""
    width = WIDTH - ROW_LEFT - ROW_RIGHT
    rows = []
    for number, device in enumerate(devices):
        top = number * (BAR_HEIGHT + BAR_GAP) + 4
        rest = 1 - device.share_early - device.share_asked
        shares = (("early", device.share_early), ("end", rest), ("server", device.share_asked))
        parts = [label(f"{device.name} device", x=0, y=top + 18, class_="strong heading")]
        left = float(ROW_LEFT)
        for source, share in shares:
            tooltip, text = hint(f"{_SOURCES[source]}: {share:.0%}"), f"{_SOURCES[source]} {share:.0%}"
            parts.append(element("rect", tooltip, x=left, y=top, width=width * share, height=BAR_HEIGHT, class_=source))
            if share >= BAR_LABEL_MIN:
                middle = left + width * share / 2
                parts.append(label(text, x=middle, y=top + 18, text_anchor="middle", class_="on"))
            left += width * share
        rows.append(element("g", *parts, class_=f"device{number % 3}"))
    height = len(devices) * (BAR_HEIGHT + BAR_GAP) + 4
    return picture(*rows, width=WIDTH, height=height, name="Sources of each device's answers")


_SOURCES = {"early": "exits", "end": "end of the subnet", "server": "server"}


def class_mix_picture(device: DeviceResult) -> str:
    """A bar chart of the device's private samples per class."""
    most = max(device.class_mix)
    bars = []
    for index, count in enumerate(device.class_mix):
        height = max(1.0, MIX_HEIGHT * count / most)
        tooltip = hint(f"class {index}: {count} samples")
        x, y = index * (MIX_BAR + 2), MIX_HEIGHT - height
        bars.append(element("rect", tooltip, x=x, y=y, width=MIX_BAR, height=height, class_="mix"))
    width = len(device.class_mix) * (MIX_BAR + 2)
    return picture(*bars, width=width, height=MIX_HEIGHT, name="The device's samples by class")
