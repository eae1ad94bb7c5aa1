"""``pathweave split``: chooses the cut point between device and server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from device_sdk.commands.command_line import emit, progress
from device_sdk.commands.command_options import ChosenTrust, bundle_options, open_model
from device_sdk.errors import UsageError

if TYPE_CHECKING:
    from device_sdk.policies.split_decision import SplitDecision
    from device_sdk.session.adaptive_model import AdaptiveModel


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
def split(
    bundle: str,
    trust: ChosenTrust,
    token: str | None,
    threads: int,
    state: Path | None,
    uplink_mbps: float | None,
    round_trip_ms: float,
    server: str | None,
    as_json: bool,
) -> None:
    """Find the best cut point to split the plan in use between device and server, and use it from now on.

    Without a server the result is an estimate for one as fast as this device, and the plan stays as it is.
    """
    from device_sdk.offload.remote_model import RemoteModel

    server = server or _origin(bundle)
    if server is None and uplink_mbps is None:
        raise UsageError("the uplink's bandwidth is unknown", hint="give --uplink-mbps, or --server to measure it")
    with open_model(bundle, trust=trust, token=token, threads=threads, state=state, as_json=as_json) as model:
        if server is None:
            decision = _without_server(model, uplink_mbps, round_trip_ms, as_json=as_json)
        else:
            name = f"{model.bundle.manifest.name}:tail"
            remote = RemoteModel(server=server, model=name, token=token, privacy="activations")
            decision = model.split(remote, uplink_mbps=uplink_mbps, progress=progress(as_json))
    emit(_summary(decision), as_json=as_json, text=lambda: _print(decision))


def _origin(bundle: str) -> str | None:
    """The server of a bundle's URL."""
    before, separator, _ = bundle.partition("/v1/bundles/")
    return before if separator and "://" in before else None


def _without_server(
    model: AdaptiveModel, uplink_mbps: float | None, round_trip_ms: float, *, as_json: bool
) -> SplitDecision:
    from device_sdk.policies.split_decision import choose
    from device_sdk.supernet.cost import Uplink

    assert uplink_mbps is not None
    uplink = Uplink(uplink_mbps, round_trip_ms)
    profile = model.profile(progress=progress(as_json))
    name = f"{model.bundle.manifest.name}:tail"
    source = "this device's own: no server was named"
    return choose(model.bundle, model.plan, profile, profile, uplink, model_name=name, source=source)


def _summary(decision: SplitDecision) -> dict[str, Any]:
    split_ = decision.plan.split
    return {
        "subnet": list(map(str, decision.plan.subnet.edges)),
        "position": split_.position if split_ is not None else None,
        "latency_ms": decision.best.latency_ms,
        "on_device_ms": decision.on_device.latency_ms,
        "bytes_sent": decision.best.bytes_sent,
        "uplink_mbps": decision.uplink.mbps,
        "round_trip_ms": decision.uplink.round_trip_ms,
        "server_profile": decision.server_profile,
        "splits": [
            {
                "position": cost.position,
                "device_ms": cost.device_ms,
                "transfer_ms": cost.transfer_ms,
                "server_ms": cost.server_ms,
                "latency_ms": cost.latency_ms,
                "bytes_sent": cost.bytes_sent,
            }
            for cost in decision.costs
        ],
    }


def _print(decision: SplitDecision) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("cut point", "device", "transfer", "server", "altogether", "bytes")
    for cost in decision.costs:
        parts = (cost.device_ms, cost.transfer_ms, cost.server_ms, cost.latency_ms)
        style = "bold" if cost == decision.best else None
        table.add_row(str(cost.position), *(f"{part:.3f} ms" for part in parts), f"{cost.bytes_sent:,}", style=style)
    Console().print(table)
    click.echo(
        f"{decision.uplink.mbps:.3g} Mbit/s, {decision.uplink.round_trip_ms:.3g} ms there and back;"
        f" the server's profile is {decision.server_profile}"
    )
    if decision.plan.split is None:
        click.echo(f"best: everything on the device, {decision.best.latency_ms:.3f} ms")
    else:
        click.echo(
            f"best: cross at cut point {decision.plan.split.position}, {decision.best.latency_ms:.3f} ms"
            f" ({decision.on_device.latency_ms:.3f} ms on the device alone)"
        )
