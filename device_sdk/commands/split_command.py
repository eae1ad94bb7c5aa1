"""``pathweave split``: chooses the cut point between device and server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from device_sdk.commands.command_line import emit, progress
from device_sdk.commands.command_options import (
    ChosenTrust,
    bundle_options,
    fallback_option,
    limit_option,
    load_data,
    open_model,
    privacy_option,
    require_permission,
)
from device_sdk.commands.fetch_command import FALLBACKS
from device_sdk.errors import UsageError
from device_sdk.supernet.cost import MB

if TYPE_CHECKING:
    from device_sdk.offload.remote_model import Privacy
    from device_sdk.policies.measured_splits.decision import SplitDecision
    from device_sdk.policies.splitting import SplitCost
    from device_sdk.session.adaptive_model import AdaptiveModel
    from device_sdk.supernet.plan import Fallback

_WIDEST = 1000  # columns; a table is never cut to the width of the terminal
_PARTS = ("device", "packing", "transfer", "handling", "unpacking", "server")


@click.command()
@bundle_options
@click.option("--uplink-mbps", type=float, help="Uplink in Mbit/s [default: measured, with a server].")
@click.option(
    "--round-trip-ms",
    type=float,
    default=0.0,
    show_default=True,
    help="Round-trip time to the server, if --server is not given.",
)
@click.option("--server", help="URL of the server that runs the tail [default: where BUNDLE comes from].")
@privacy_option
@click.option("--memory-mb", type=float, help="Limit of the device's part: weights once loaded and working set.")
@click.option("--storage-mb", type=float, help="Limit of the weights of the device's part as they are stored and sent.")
@fallback_option
@click.option("--max-drop", type=float, help="Limit of the accuracy lost, 0 to 1, measured on --data.")
@click.option("--data", help="Private images: a folder or zip with class folders, a CSV list …; perhaps #part.")
@limit_option
@click.option("--device-factor", type=float, help="Estimate for a device so many times slower than this one.")
@click.option("--picture", type=click.Path(path_type=Path), help="Draw the latencies to FILE.svg or FILE.png.")
def split(
    bundle: str,
    trust: ChosenTrust,
    token: str | None,
    threads: int,
    state: Path | None,
    uplink_mbps: float | None,
    round_trip_ms: float,
    server: str | None,
    privacy: Privacy,
    memory_mb: float | None,
    storage_mb: float | None,
    fallback: Fallback | None,
    max_drop: float | None,
    data: str | None,
    limit: int | None,
    device_factor: float | None,
    picture: Path | None,
    as_json: bool,
) -> None:
    """Find the best cut point to split the plan in use between device and server, and use it from now on.

    With --max-drop, 1 to 8 bits per value on the way, the input as JPEG where inputs may be sent, and all renditions of
    the device's blocks are tried. Without a server, or for a slower device, the result is an estimate for a server as
    fast as this device, and the plan stays as it is.
    """
    if picture is not None and picture.suffix not in (".svg", ".png"):
        raise UsageError(f"a picture is a .svg or .png file, not {picture.name}")
    server = _checked_server(server or _origin(bundle), bundle, device_factor, uplink_mbps)
    require_permission(server, privacy, "activations")
    if max_drop is not None and data is None:
        raise UsageError("a drop of accuracy is measured on private images", hint="give --data")
    with open_model(bundle, trust=trust, token=token, threads=threads, state=state, as_json=as_json) as model:
        limits: dict[str, Any] = {
            "memory_mb": memory_mb,
            "storage_mb": storage_mb,
            "max_drop": max_drop,
            "fallback": fallback,
        }
        if data is not None:
            dataset = load_data(model, data, limit=limit, as_json=as_json)
            limits |= {"samples": dataset.images, "labels": dataset.labels}
        if server is None:
            assert uplink_mbps is not None
            decision = _estimate(
                model,
                uplink_mbps,
                round_trip_ms,
                1.0 if device_factor is None else device_factor,
                limits,
                as_json=as_json,
            )
        else:
            from device_sdk.offload.remote_model import RemoteModel

            name = f"{model.bundle.manifest.name}:tail"
            remote = RemoteModel(server=server, model=name, token=token, privacy=privacy)
            decision = model.split(remote, uplink_mbps=uplink_mbps, progress=progress(as_json), **limits)
    if picture is not None:
        _draw(picture, decision)
    emit(_summary(decision), as_json=as_json, text=lambda: _print(decision))


def _checked_server(
    server: str | None, bundle: str, device_factor: float | None, uplink_mbps: float | None
) -> str | None:
    if device_factor is not None:
        if server is not None and server != _origin(bundle):
            raise UsageError("for a slower device a split is only estimated", hint="leave out --server")
        server = None
    if server is None and uplink_mbps is None:
        raise UsageError("the uplink's bandwidth is unknown", hint="give --uplink-mbps, or --server to measure it")
    return server


def _origin(bundle: str) -> str | None:
    """The server of a bundle's URL."""
    before, separator, _ = bundle.partition("/v1/bundles/")
    return before if separator and "://" in before else None


def _estimate(
    model: AdaptiveModel,
    uplink_mbps: float,
    round_trip_ms: float,
    device_factor: float,
    limits: Mapping[str, Any],
    *,
    as_json: bool,
) -> SplitDecision:
    from device_sdk.supernet.cost import Uplink

    uplink = Uplink(uplink_mbps, round_trip_ms)
    return model.estimate_split(uplink, device_factor=device_factor, progress=progress(as_json), **limits)


def _summary(decision: SplitDecision) -> dict[str, Any]:
    split_ = decision.plan.split
    return {
        "subnet": list(map(str, decision.plan.subnet.edges)),
        "position": split_.position if split_ is not None else None,
        "bits": list(decision.best.bits),
        "head": list(map(str, decision.best.head)),
        "reason": decision.reason,
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


def _draw(picture: Path, decision: SplitDecision) -> None:
    from device_sdk.commands.split_picture import write_picture

    title = f"latency by cut point, {decision.uplink.mbps:.3g} Mbit/s; best: {_where(decision.best, decision)}"
    write_picture(picture, _shown(decision), decision.best, title)


def _where(cost: SplitCost, decision: SplitDecision) -> str:
    if not cost.tail:
        return "everything on the device"
    if cost.sends == "jpeg":
        return "everything at the server, the input as JPEG"
    bits = "" if set(cost.bits) == {8} else f" in {cost.bits[0]} bits"
    return f"everything at the server{bits}" if cost.position == 0 else f"cross at cut point {cost.position}{bits}"


def _shown(decision: SplitDecision) -> list[SplitCost]:
    """One way for each cut point, in the bits that were chosen and the plan's renditions, and those that were measured.

    The renditions of the device alone are the plan's own.
    """
    bits, own = set(decision.best.bits) or {8}, decision.on_device.head
    measured = {cost for cost, _ in decision.drops}
    return [
        cost
        for cost in decision.costs
        if cost.sends == "jpeg"
        or (cost.head == own[: len(cost.head)] and (not cost.tail or set(cost.bits) == bits))
        or cost in measured
        or cost == decision.best
    ]


def _renditions(cost: SplitCost) -> list[tuple[str, int]]:
    """The renditions of the device's part, in order, each with the number of consecutive blocks that have it."""
    return [(name, len(list(blocks))) for name, blocks in groupby(edge.rendition for edge in cost.head)]


def _print(decision: SplitDecision) -> None:
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
        bits = "JPEG" if cost.sends == "jpeg" else " ".join(map(str, cost.bits))
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
