"""Lines, JSON and picture of a split that was chosen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from device_sdk.commands.fetch_command import FALLBACKS
from device_sdk.files.drawing import ACCENT, INK, Box, Drawing, Shape, Text, write_drawing
from device_sdk.policies.splitting.path_splits import SplitCost
from device_sdk.supernet.cost import MB

if TYPE_CHECKING:
    from device_sdk.policies.measured_splits.decision import SplitDecision
    from device_sdk.policies.splitting import SplitCost

PARTS = {  # field of a SplitCost and its colour
    "device": "#4c72b0",
    "packing": "#8fb0d9",
    "transfer": "#dd8452",
    "handling": "#b3b3b3",
    "unpacking": "#9fd6a8",
    "server": "#55a868",
}
_BAR, _GAP, _HEIGHT, _LEFT, _TOP, _BOTTOM = 22, 8, 260, 70, 60, 48  # pixels


def split_drawing(costs: Sequence[SplitCost], best: SplitCost, title: str) -> Drawing:
    """A stack of latencies for each way to split; ``best`` is marked."""
    most_ms = max(cost.latency_ms for cost in costs) or 1.0
    shapes: list[Shape] = [Text(_LEFT, 18, title)]
    for number, (part, colour) in enumerate(PARTS.items()):
        x = _LEFT + number * 92
        shapes += [Box(x, 30, 10, 10, colour), Text(x + 14, 39, part)]
    for number, cost in enumerate(costs):
        x, y = _LEFT + number * (_BAR + _GAP), float(_TOP + _HEIGHT)
        for part, colour in PARTS.items():
            height = getattr(cost, f"{part}_ms") / most_ms * _HEIGHT
            y -= height
            shapes.append(Box(x, y, _BAR, height, colour))
        colour = ACCENT if cost == best else INK
        shapes.append(Text(x + 2, _TOP + _HEIGHT + 14, str(cost.position), colour))
        if cost.tail:
            sent = cost.sends if cost.sends != "activations" else f"{cost.bits[0]}{coding_letters(cost)}"
            shapes.append(Text(x + 2, _TOP + _HEIGHT + 28, sent, colour))
        if cost == best:
            shapes.append(Box(x, _TOP + _HEIGHT + 33, _BAR, 3, ACCENT))
    for share in (0.0, 0.5, 1.0):
        shapes.append(Text(6, _TOP + _HEIGHT * (1 - share) + 4, f"{share * most_ms:.3g} ms"))
    width = _LEFT + max(len(costs) * (_BAR + _GAP), len(PARTS) * 92)
    return Drawing(width, _TOP + _HEIGHT + _BOTTOM, tuple(shapes))


_WIDEST = 1000  # columns; a table is never cut to the width of the terminal
IMAGE_WORDS = {"jpeg": "JPEG", "images": "pixels"}
_PARTS = ("device", "packing", "transfer", "handling", "unpacking", "server")


def split_summary(decision: SplitDecision) -> dict[str, Any]:
    """The decision as JSON: every way to split with its parts in milliseconds, and the one that was chosen."""
    split_ = decision.plan.split
    return {
        "subnet": list(map(str, decision.plan.subnet.edges)),
        "position": split_.position if split_ is not None else None,
        "bits": list(decision.best.bits),
        "per_channel": decision.best.per_channel,
        "compress": decision.best.compress,
        "head": list(map(str, decision.best.head)),
        "reason": decision.reason,
        "not_measured": len(decision.not_measured),
        "drop": decision.drop_of(decision.best),
        "latency_ms": decision.best.latency_ms,
        "on_device_ms": None if decision.is_head_only else decision.on_device.latency_ms,
        "fallback": None if split_ is None else split_.fallback,
        "bytes_sent": decision.best.bytes_sent,
        "uplink_mbps": decision.uplink.mbps,
        "round_trip_ms": decision.uplink.round_trip_ms,
        "server_profile": decision.server_profile,
        "splits": [
            {
                "position": cost.position,
                "bits": list(cost.bits),
                "per_channel": cost.per_channel,
                "compress": cost.compress,
                "sends": cost.sends if cost.tail else None,
                **{f"{part}_ms": getattr(cost, f"{part}_ms") for part in _PARTS},
                "latency_ms": cost.latency_ms,
                "bytes_sent": cost.bytes_sent,
                "device_bytes": cost.device_bytes,
                "stored_bytes": cost.stored_bytes,
                "head": list(map(str, cost.head)),
                "drop": decision.drop_of(cost),
            }
            for cost in decision.costs
        ],
    }


def draw_split(picture: Path, decision: SplitDecision) -> None:
    """Draw the latencies by cut point to an SVG or PNG file."""
    title = f"latency by cut point, {decision.uplink.mbps:.3g} Mbit/s; best: {_where(decision.best, decision)}"
    write_drawing(picture, split_drawing(_shown(decision), decision.best, title))


def coding_letters(cost: SplitCost) -> str:
    """The coding of a packet beside its bits: ``c`` for ranges per channel, ``z`` where it is deflated."""
    return "c" * cost.per_channel + "z" * cost.compress


def _where(cost: SplitCost, decision: SplitDecision) -> str:
    if not cost.tail:
        return "everything on the device"
    if cost.sends != "activations":
        return f"everything at the server, the input as {IMAGE_WORDS[cost.sends]}"
    bits = f" {cost.coding}"
    return f"everything at the server{bits}" if cost.position == 0 else f"cross at cut point {cost.position}{bits}"


def _shown(decision: SplitDecision) -> list[SplitCost]:
    """One way for each cut point, in the chosen coding and the plan's renditions, and those that were measured.

    The renditions of the device alone are the plan's own.
    """
    best, own = decision.best, decision.on_device.head
    coding = (set(best.bits) or {8}, best.per_channel)
    measured = {cost for cost, _ in decision.drops}
    return [
        cost
        for cost in decision.costs
        if cost.sends != "activations"
        or (cost.head == own[: len(cost.head)] and (not cost.tail or (set(cost.bits), cost.per_channel) == coding))
        or cost in measured
        or cost == best
    ]


def _renditions(cost: SplitCost) -> list[tuple[str, int]]:
    """The renditions of the device's part, in order, each with the number of consecutive blocks that have it."""
    return [(name, len(list(blocks))) for name, blocks in groupby(edge.rendition for edge in cost.head)]


def print_split(decision: SplitDecision) -> None:
    """Print the table of all ways to split, and the one that was chosen."""
    from rich.console import Console
    from rich.table import Table

    shown, measured = _shown(decision), bool(decision.drops)
    mixed = any(cost.head != decision.on_device.head[: len(cost.head)] for cost in shown)
    table = Table(box=None, padding=(0, 1, 0, 0))
    for name in ("cut", "bits", *(["weights"] if mixed else []), *_PARTS, "all ms", "bytes"):
        table.add_column(name, no_wrap=True, justify="right")
    if measured:
        table.add_column("lost", no_wrap=True, justify="right")
    for cost in shown:
        parts = [f"{getattr(cost, f'{part}_ms'):.2f}" for part in _PARTS]
        drop = decision.drop_of(cost)
        lost = ["" if drop is None else f"{100 * drop:.1f} %"] if measured else []
        names = Counter(edge.rendition for edge in cost.head)
        weights = [" ".join(f"{count} {name}" for name, count in names.items())] if mixed else []
        bits = IMAGE_WORDS.get(cost.sends, " ".join(map(str, cost.bits)) + coding_letters(cost))
        row = (str(cost.position), bits, *weights, *parts, f"{cost.latency_ms:.2f}", f"{cost.bytes_sent:,}", *lost)
        table.add_row(*row, style="bold" if cost == decision.best else None)
    needed = Console(width=_WIDEST).measure(table).maximum
    Console(width=max(Console().width, needed)).print(table)
    click.echo(
        f"{decision.uplink.mbps:.3g} Mbit/s, {decision.uplink.round_trip_ms:.3g} ms there and back;"
        f" the server's profile is {decision.server_profile}"
    )
    if decision.best.head:
        blocks = ", ".join(f"{name} for {count}" for name, count in _renditions(decision.best))
        sizes = f"{decision.best.device_bytes / MB:.2f} MB in memory, {decision.best.stored_bytes / MB:.2f} MB stored"
        click.echo(f"the device's blocks, from the input on: {blocks}; {sizes}")
    alone = ""
    if decision.best.tail and not decision.is_head_only:
        alone = f" ({decision.on_device.latency_ms:.3f} ms on the device alone)"
    click.echo(f"best: {_where(decision.best, decision)}, {decision.best.latency_ms:.3f} ms{alone}; {decision.reason}")
    if decision.plan.split is not None:
        click.echo(f"without the server {FALLBACKS[decision.plan.split.fallback]}")
