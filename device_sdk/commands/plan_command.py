"""``pathweave plan``: the best plan of any kind for a requirement."""

from __future__ import annotations

from collections.abc import Iterator
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
    server_model_option,
)
from device_sdk.errors import UsageError
from device_sdk.supernet.plan import UNREACHABLE_CONFIDENCE

if TYPE_CHECKING:
    from device_sdk.offload.remote_model import Privacy
    from device_sdk.policies.deciding.promises import Promise
    from device_sdk.policies.planning.choice import Choice
    from device_sdk.policies.planning.plan_choice import Planned
    from device_sdk.session.adaptive_model import AdaptiveModel
    from device_sdk.supernet.cost import PlanCost, Power, Uplink

_ENERGY = 3  # of the cells of a row
_OPTIMISED = {"accuracy": "accuracy", "latency": "latency_ms", "energy": "energy_mj", "bytes": "bytes_sent"}


@click.command()
@bundle_options
@private_images_option
@limit_option
@click.option("--unlabelled", is_flag=True, help="Use the server's or the full model's predictions instead of labels.")
@click.option(
    "--optimise", type=click.Choice(list(_OPTIMISED)), default="accuracy", show_default=True, help="What to optimise."
)
@click.option("--accuracy", type=float, help="Least accuracy, 0 to 1, of the samples that are answered.")
@click.option(
    "--certainty",
    type=float,
    help="Probability, 0 to 1, with which --accuracy holds on new samples like the given ones.",
)
@click.option(
    "--coverage",
    type=float,
    default=1.0,
    show_default=True,
    help="Least share of samples that are answered; below 1 the plan may abstain from hard ones.",
)
@click.option("--latency-ms", type=float, help="Limit of the mean latency.")
@click.option("--p95-latency-ms", type=float, help="Limit of the 95th percentile of the latency.")
@click.option("--energy-mj", type=float, help="Limit of the mean energy; needs --active-w.")
@click.option("--bytes-sent", type=float, help="Limit of the mean bytes sent per sample.")
@click.option("--memory-mb", type=float, help="Limit of the memory in megabytes.")
@click.option("--server", help="URL of a server that may answer hard samples, or run tails of split plans.")
@server_model_option
@click.option("--model", "old_model", hidden=True)
@privacy_option
@click.option("--network", help="Plan with a typical network instead of the measured one: wifi, lte, 3g, ble or lora.")
@click.option("--uplink-mbps", type=float, help="Plan with this uplink in Mbit/s instead of the measured one.")
@click.option("--round-trip-ms", type=float, default=0.0, show_default=True, help="Round-trip time with --uplink-mbps.")
@power_options
def plan(
    bundle: str,
    trust: ChosenTrust,
    token: str | None,
    threads: int,
    state: Path | None,
    data: str,
    limit: int | None,
    unlabelled: bool,
    optimise: str,
    accuracy: float | None,
    certainty: float | None,
    coverage: float,
    latency_ms: float | None,
    p95_latency_ms: float | None,
    energy_mj: float | None,
    bytes_sent: float | None,
    memory_mb: float | None,
    server: str | None,
    server_model: str | None,
    old_model: str | None,
    privacy: Privacy,
    network: str | None,
    uplink_mbps: float | None,
    round_trip_ms: float,
    power: Power | None,
    as_json: bool,
) -> None:
    """Choose among all kinds of plans for a requirement, and use the best from now on.

    Subnets are the best rungs of the ladder, and those of the last ``adapt``. With a server, sending hard samples to it
    and splitting are planned with too.
    """
    from device_sdk.supernet.cost import MB
    from device_sdk.supernet.requirement import Requirement

    requirement = Requirement(
        optimise=_OPTIMISED[optimise],  # type: ignore[arg-type]
        accuracy=accuracy,
        certainty=certainty,
        coverage=coverage,
        latency_ms=latency_ms,
        p95_latency_ms=p95_latency_ms,
        energy_mj=energy_mj,
        bytes_sent=bytes_sent,
        peak_bytes=None if memory_mb is None else round(memory_mb * MB),
    )
    if old_model is not None:
        raise UsageError("--model is now --server-model", hint=f"give --server-model {old_model}")
    require_permission(server, privacy, "activations" if server_model is None else "inputs")
    uplink = _uplink(network, uplink_mbps, round_trip_ms)
    if power is None and (energy_mj is not None or optimise == "energy"):
        raise UsageError("energies are unknown without the device's power", hint="give --active-w")
    with open_model(bundle, trust=trust, token=token, threads=threads, state=state, as_json=as_json) as model:
        _connect(model, server, server_model, token, privacy)
        dataset = load_data(model, data, limit=limit, as_json=as_json)
        labels = None if unlabelled else dataset.labels
        planned = model.plan_for(
            dataset.images, labels, requirement, uplink=uplink, power=power, progress=progress(as_json)
        )
    emit(_summary(planned), as_json=as_json, text=lambda: _print(planned))


def _uplink(network: str | None, mbps: float | None, round_trip_ms: float) -> Uplink | None:
    from device_sdk.supernet.cost import Uplink

    if network is not None and mbps is not None:
        raise UsageError("give --network or --uplink-mbps, not both")
    if mbps is not None:
        return Uplink(mbps, round_trip_ms)
    return None if network is None else Uplink.typical(network)


def _connect(
    model: AdaptiveModel,
    server: str | None,
    asked: str | None,
    token: str | None,
    privacy: Privacy,
) -> None:
    from device_sdk.offload.remote_model import RemoteModel

    if server is None:
        if asked is not None:
            raise UsageError("--server-model names a model of a server", hint="give --server too")
        return
    if asked is not None:
        model.connect(RemoteModel(server=server, model=asked, token=token, privacy=privacy))
    tails = f"{model.bundle.manifest.name}:tail"
    model.connect(RemoteModel(server=server, model=tails, token=token, privacy=privacy))


def _summary(planned: Planned) -> dict[str, Any]:
    from device_sdk.supernet.plan_json import encode_plan

    choice = planned.choice
    return {
        "kind": choice.kind,
        "plan": encode_plan(choice.plan).decode(),
        "expected": _cost(choice.cost),
        "held_out": None if planned.held_out is None else _cost(planned.held_out),
        "samples": planned.samples,
        "judged": planned.judged,
        "considered": choice.considered,
        "saved_by_asking_early": choice.saved_by_asking_early,
        "promise": None if choice.promise is None else _promise(choice.promise),
        "kinds": {
            kind: {"subnet": str(one.plan.subnet), "expected": _cost(one.cost), "misses": sorted(one.misses)}
            for kind, one in choice.by_kind.items()
        },
        "notes": list(planned.servers.notes),
    }


def _promise(promise: Promise) -> dict[str, Any]:
    return {
        "certainty": promise.certainty,
        "samples": promise.samples,
        "wrong": promise.wrong,
        "least_accuracy": promise.least_accuracy,
    }


def _cost(cost: PlanCost) -> dict[str, Any]:
    import msgspec

    return msgspec.structs.asdict(cost)


def _print(planned: Planned) -> None:
    from rich.console import Console
    from rich.table import Table

    from device_sdk.policies.exits.timed_exits import without_timed_exits

    options, chosen = planned.choice.by_kind, without_timed_exits(planned.choice.plan)
    energy = any(one.cost.energy_mj is not None for one in options.values())
    table = Table(box=None, pad_edge=False)
    for heading in ("kind", "accuracy", "ms", "p95", *(("mJ",) if energy else ()), "bytes", "early", "asked", "none"):
        table.add_column(heading, no_wrap=True)
    table.add_column("misses", overflow="fold")
    for kind, one in options.items():
        cells = [cell for number, cell in enumerate(_cells(one.cost)) if energy or number != _ENERGY]
        style = "bold" if one.plan == chosen else None
        table.add_row(kind, *cells, ", ".join(sorted(one.misses)), style=style)
    Console().print(table)
    choice = planned.choice
    click.echo(f"best of {choice.considered:,} plans: {choice.kind}, {choice.plan.subnet}")
    for line in told_of_exits(choice):
        click.echo(line)
    if planned.held_out is not None:
        accuracy, mean_ms = _cells(planned.held_out)[:2]
        click.echo(f"on {planned.judged} samples that it did not see: accuracy {accuracy}, {mean_ms} ms")
    promise = choice.promise
    if promise is not None:
        click.echo(
            f"with a certainty of {promise.certainty:.0%} its accuracy is at least {promise.least_accuracy:.1%}: "
            f"{promise.wrong} of {promise.samples} new samples were answered wrongly"
        )
    for note in planned.servers.notes:
        click.echo(f"note: {note}")


def told_of_exits(choice: Choice) -> Iterator[str]:
    """Lines on the decisions of each exit, and on the saving by sending samples from exits."""
    for one in choice.plan.exits:
        answers = (
            f"answers from a confidence of {one.threshold:.3f} on" if one.threshold < UNREACHABLE_CONFIDENCE else ""
        )
        asks = f"asks below {one.ask_below:.3f}" if one.ask_below else ""
        if answers or asks:
            yield f"exit {one.exit} {' and '.join(filter(None, (answers, asks)))}"
    saved = choice.saved_by_asking_early
    if saved:
        units = {"latency_ms": "ms", "energy_mj": "mJ", "bytes_sent": "bytes"}
        amounts = ", ".join(f"{amount:.3g} {units[name]}" for name, amount in saved.items())
        yield f"against asking at the end alone it saves on average {amounts} per sample"


def _cells(cost: PlanCost) -> list[str]:
    def number(value: float | None, form: str) -> str:
        return "unknown" if value is None else format(value, form)

    return [
        number(cost.accuracy, ".1%"),
        number(cost.latency_ms, ".3f"),
        number(cost.p95_latency_ms, ".3f"),
        number(cost.energy_mj, ".3g"),
        f"{cost.bytes_sent:,.0f}",
        f"{cost.share_early:.0%}",
        f"{cost.share_asked:.0%}" + (f" ({cost.share_asked_early:.0%} early)" if cost.share_asked_early else ""),
        f"{cost.share_abstained:.0%}",
    ]
