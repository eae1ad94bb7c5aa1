"""``pathweave plan-hybrid``: a subnet for the device together with one for a server."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from device_sdk.commands.command_line import emit, progress
from device_sdk.commands.command_options import (
    ChosenTrust,
    bundle_options,
    limit_option,
    load_data,
    open_model,
    power_options,
    privacy_option,
    private_images_option,
    require_permission,
)

if TYPE_CHECKING:
    from device_sdk.offload.remote_model import Privacy
    from device_sdk.policies.hybrid.choice import HybridChoice
    from device_sdk.supernet.cost import Power

_RESOURCES = {"macs": ("macs", 1e6), "latency": ("latency_ms", 1.0), "energy": ("energy_mj", 1.0)}
_UNITS = {"macs": "million MACs", "latency": "ms", "energy": "mJ"}


@click.command("plan-hybrid")
@bundle_options
@private_images_option
@limit_option
@click.option("--server", required=True, help="URL of a server that has the same bundle.")
@privacy_option
@click.option(
    "--resource", type=click.Choice(list(_RESOURCES)), default="macs", show_default=True, help="What is limited."
)
@click.option(
    "--at-most", type=float, required=True, help="The limit per sample: million MACs, milliseconds or millijoules."
)
@click.option("--least-coverage", type=float, default=0.0, show_default=True, help="Share that stays here at least.")
@click.option("--generations", type=click.IntRange(min=0), default=4, show_default=True, help="Of the search.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the search.")
@power_options
def plan_hybrid(
    bundle: str,
    trust: ChosenTrust,
    token: str | None,
    threads: int,
    state: Path | None,
    data: str,
    limit: int | None,
    server: str,
    privacy: Privacy,
    resource: str,
    at_most: float,
    least_coverage: float,
    generations: int,
    seed: int,
    power: Power | None,
    as_json: bool,
) -> None:
    """Choose subnets for this device and for a server in one go, and use them from now on.

    The server is sent the images that the device's subnet is unsure about.
    """
    from device_sdk.offload.remote_model import RemoteModel
    from device_sdk.policies.hybrid.joint_search import JointSettings

    require_permission(server, privacy, "inputs")
    name, unit = _RESOURCES[resource]
    with open_model(bundle, trust=trust, token=token, threads=threads, state=state, as_json=as_json) as model:
        dataset = load_data(model, data, limit=limit, as_json=as_json)
        choice = model.plan_hybrid(
            dataset.images,
            dataset.labels,
            at_most * unit,
            resource=name,  # type: ignore[arg-type]
            server=RemoteModel(server=server, model=model.bundle.manifest.name, token=token, privacy=privacy),
            power=power,
            settings=JointSettings(least_coverage=least_coverage, generations=generations, seed=seed),
            progress=progress(as_json),
        )
    emit(_summary(choice), as_json=as_json, text=lambda: _print(choice, unit, _UNITS[resource]))


def _summary(choice: HybridChoice) -> dict[str, Any]:
    from device_sdk.supernet.plan_json import encode_plan

    def described(pair: Any) -> dict[str, Any] | None:
        return None if pair is None else asdict(pair) | {"base": str(pair.base), "global_": str(pair.global_)}

    return {
        "plan": encode_plan(choice.plan).decode(),
        "pair": described(choice.pair),
        "separate": described(choice.separate),
        "held_out_accuracy": choice.held_out,
        "answered": choice.answered,
    }


def _print(choice: HybridChoice, unit: float, named: str) -> None:
    pair = choice.pair
    click.echo(f"base, here: {pair.base}")
    click.echo(f"global, at the server: {pair.global_}")
    click.echo(f"{pair.sent:.0%} are sent, {pair.cost / unit:.3g} {named} per sample, accuracy {pair.accuracy:.1%}")
    click.echo(f"on samples that did not choose: {choice.held_out:.1%}; {choice.answered} subnets were tried")
    if choice.separate is not None:
        click.echo(f"picked one by one they would reach {choice.separate.accuracy:.1%}")
