"""``pathweave profile``: what each block costs on this device, and how its speed lasts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from device_sdk.commands.command_line import emit, progress
from device_sdk.commands.command_options import ChosenTrust, bundle_options, open_model
from device_sdk.commands.home_report import HomeRow, home_rows, homes_summary, print_homes
from device_sdk.errors import UsageError
from device_sdk.files.drawing import require_picture, write_drawing

if TYPE_CHECKING:
    from device_sdk.execution.home_check import HomeReport
    from device_sdk.profiling.profile import Profile
    from device_sdk.profiling.sustained import SustainedProfile
    from device_sdk.session.adaptive_model import AdaptiveModel


@click.command()
@bundle_options
@click.option("--again", is_flag=True, help="Measure even if this device was profiled before.")
@click.option(
    "--sustained",
    "sustained_seconds",
    type=click.FloatRange(min=2),
    metavar="SECONDS",
    help="Also call the plan in use for so long, and compare the last tenth with the first; 60 are usual.",
)
@click.option("--picture", type=click.Path(path_type=Path), help="Draw the sustained latency to FILE.svg or FILE.png.")
def profile(
    bundle: str,
    trust: ChosenTrust,
    token: str | None,
    threads: int,
    homes: tuple[str, ...],
    state: Path | None,
    again: bool,
    sustained_seconds: float | None,
    picture: Path | None,
    as_json: bool,
) -> None:
    """Measure the latency and memory of every block on this device."""
    if picture is not None:
        require_picture(picture)
    with open_model(
        bundle, trust=trust, token=token, threads=threads, homes=homes, state=state, as_json=as_json
    ) as model:
        measured, reports = model.profile(again=again, progress=progress(as_json)), model.home_reports
        rows = home_rows(measured, model.bundle.supernet)
        sustained = model._state.load_sustained()
        if sustained_seconds is not None:
            sustained = _measure_sustained(model, measured.runtime, sustained_seconds, as_json=as_json)
    if picture is not None:
        _draw(picture, sustained)
    summary = {
        **_profile_summary(measured),
        "homes": homes_summary(rows, reports),
        "sustained": _sustained_summary(sustained),
    }
    emit(summary, as_json=as_json, text=lambda: _print_profile(measured, rows, reports, sustained))


def _measure_sustained(model: AdaptiveModel, runtime: str, seconds: float, *, as_json: bool) -> SustainedProfile | None:
    """Call the plan in use with one input of noise; an interruption stores nothing. ``runtime``: its identity."""
    from device_sdk.bundles.runnable import golden_inputs
    from device_sdk.profiling.speed_reading import SystemSpeed, thermal_zones
    from device_sdk.profiling.sustained import measure_sustained

    [tensor] = golden_inputs(model.bundle.supernet.cut_points[0], seed=0, batch=1)
    model.warm_up()
    found = measure_sustained(
        lambda: model.infer(tensor),
        seconds=seconds,
        signals=SystemSpeed(),
        zones=thermal_zones,
        bundle=model.bundle.digest,
        runtime=runtime,
        plan=str(model.plan.subnet),
        progress=progress(as_json),
    )
    if found is not None:
        model._state.save_sustained(found)
    return found


def _draw(picture: Path, sustained: SustainedProfile | None) -> None:
    from device_sdk.commands.sustained_report import sustained_drawing

    if sustained is None:
        raise UsageError("there is no sustained profile to draw", hint="measure one with --sustained 60")
    write_drawing(picture, sustained_drawing(sustained))


def _sustained_summary(sustained: SustainedProfile | None) -> dict[str, Any] | None:
    from device_sdk.commands.sustained_report import sustained_summary

    return None if sustained is None else sustained_summary(sustained)


def _profile_summary(measured: Profile) -> dict[str, Any]:
    return {
        "device": measured.device,
        "runtime": measured.runtime,
        "original_ms": measured.original_ms,
        "nodes_by_provider": measured.nodes_by_provider,
        "scale": measured.scale,
        "offset_ms": measured.offset_ms,
        "blocks": {
            str(one.edge): {
                "latency_ms": one.cost.latency_ms,
                "p95_latency_ms": one.cost.p95_latency_ms,
                "peak_bytes": one.cost.resident_bytes + one.cost.working_bytes,
            }
            for one in measured.edges
        },
        "exits": {
            one.exit: {"latency_ms": one.cost.latency_ms, "memory_bytes": one.cost.resident_bytes}
            for one in measured.exits
        },
        "subnets": [
            {"subnet": str(one.subnet), "predicted_ms": predicted, "measured_ms": one.measured_ms}
            for one in measured.fitted
            for predicted in [measured.cost_model().latency_ms(one.subnet)]
        ],
    }


def _print_profile(
    measured: Profile,
    homes: Sequence[HomeRow],
    reports: Sequence[HomeReport],
    sustained: SustainedProfile | None,
) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("block", "median ms", "p95 ms", "peak kB")
    for one in measured.edges:
        peak = one.cost.resident_bytes + one.cost.working_bytes
        cells = (f"{one.cost.latency_ms:.4f}", f"{one.cost.p95_latency_ms:.4f}", f"{peak / 1e3:.0f}")
        table.add_row(str(one.edge), *cells)
    Console().print(table)
    click.echo(f"full model: {measured.original_ms:.3f} ms on {measured.device}")
    total = sum(measured.nodes_by_provider.values())
    for provider, nodes in measured.nodes_by_provider.items():
        click.echo(f"{provider} runs {nodes} of its {total} nodes")
    print_homes(homes, reports)
    if sustained is not None:
        from device_sdk.commands.sustained_report import sustained_lines

        for line in sustained_lines(sustained, encoding=sys.stdout.encoding or "utf-8"):
            click.echo(line)
