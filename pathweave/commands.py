"""The command of this package: ``pathweave demo``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from device_sdk.commands.command_line import emit, json_option, progress
from device_sdk.extras import require

if TYPE_CHECKING:
    from pathweave.demo import DemoResult


@click.command()
@click.option(
    "--out",
    "report_path",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("demo-report.html"),
    show_default=True,
    help="File of the report.",
)
@click.option(
    "--work",
    "work_folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="New folder for keys, bundle and the devices' state [default: a temporary one].",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Random seed.")
@json_option
def demo(report_path: Path, work_folder: Path | None, seed: int, as_json: bool) -> None:
    """Package a small network, serve it, and adapt it to three simulated devices."""
    for module in ("torch", "onnx", "onnxscript", "sklearn"):
        require(module, extra="packager")
    for module in ("flask", "waitress", "sqlalchemy", "alembic"):
        require(module, extra="server")
    from pathweave.demo import run_demo

    result = run_demo(report_path=report_path, work_folder=work_folder, seed=seed, progress=progress(as_json))
    emit(result.summary(), as_json=as_json, text=lambda: _print_demo(result))


def _print_demo(result: DemoResult) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("device", "budget ms", "measured", "accuracy", "early", "sent", "with server", "full model")
    for device in result.devices:
        table.add_row(
            device.name,
            f"{device.budget_ms:.3f}",
            f"{device.measured_ms:.3f}",
            f"{device.accuracy_local:.1%}",
            f"{device.share_early:.0%}",
            f"{device.share_asked:.0%}",
            f"{device.accuracy_with_server:.1%}",
            f"{device.full_accuracy_local:.1%}",
        )
    Console().print(table)
    for device in result.devices:  # below the table, since paths are longer than a column
        click.echo(f"{device.name}: {' '.join(device.subnet)}")
    click.echo(f"full model: {result.full_model_accuracy:.1%} right on all held-back samples")
    click.echo(f"the server has {result.log_lines_at_server} events of {len(result.devices)} devices")
    split, job = result.split, result.job
    click.echo(
        f"split at cut point {split.position}: {split.measured_ms:.1f} ms end to end,"
        f" {split.predicted_ms:.1f} ms predicted, {split.bytes_sent} bytes per sample"
    )
    click.echo(f"packaged on the server in {job.seconds:.0f} s: {job.accuracy:.1%} right")
    click.echo(f"report: {result.report} ({result.seconds:.0f} s)")
