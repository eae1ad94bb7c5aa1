"""The commands of this package: ``pathweave bench`` and ``pathweave demo``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from device_sdk.commands.command_line import emit, json_option, progress
from device_sdk.extras import require
from pathweave import bench as runner

if TYPE_CHECKING:
    from pathweave.demo import DemoResult

RESULTS_FOLDER = Path("benchmarks/results")

results_option = click.option(
    "--out",
    "results_folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=RESULTS_FOLDER,
    show_default=True,
    help="Folder of the results.",
)


class Benchmarks(click.Group):
    """``list``, ``report``, and one command per benchmark in benchmarks/."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *runner.benchmark_names()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self.commands or cmd_name not in runner.benchmark_names():
            return super().get_command(ctx, cmd_name)
        return _command_of(cmd_name)


@click.group(cls=Benchmarks, subcommand_metavar="NAME [--quick] [--check] [--json] …")
def bench() -> None:
    """Run a benchmark, compare it with its targets and store its figures."""


@bench.command("list")
@json_option
def list_benchmarks(as_json: bool) -> None:
    """List the benchmarks."""
    purposes = {name: runner.benchmark_purpose(name) for name in runner.benchmark_names()}
    emit(
        {"benches": purposes},
        as_json=as_json,
        text="\n".join(f"{name:<12} {purposes[name]}" for name in purposes),
    )


@bench.command("report")
@results_option
@json_option
def report(results_folder: Path, as_json: bool) -> None:
    """Write all results to one page, report.html; it marks those older than the code that they measure."""
    from device_sdk.files.atomic import write_atomically
    from pathweave.bench_age import ages, measured_paths
    from pathweave.bench_report import render_report

    results = runner.read_results(results_folder)
    path = results_folder / "report.html"
    found = ages(results, measured_paths(), runner.package_folder(runner.PACKAGE).parent)
    write_atomically(path, render_report(results, found).encode())
    missed = sum(len(result.missed) for result in results)
    old = sorted({result.bench for result in results if found[result.bench].is_old})
    summary = {"report": path, "benches": len(results), "missed": missed, "old": old}
    line = f"{path}: {len(results)} results, {missed} missed targets, {len(old)} older than the code that they measure"
    emit(summary, as_json=as_json, text=line + (f" ({', '.join(old)})" if old else ""))


def _command_of(name: str) -> click.Command:
    @click.command(name, help=runner.benchmark_purpose(name))
    @click.option("--quick", is_flag=True, help="Less data, fewer rounds; written to its own file.")
    @click.option("--check", is_flag=True, help="Exit with 1 if a target is missed.")
    @click.option(
        "--data",
        "data_folder",
        type=click.Path(file_okay=False, path_type=Path),
        envvar="PATHWEAVE_SHARED_DATA",
        default=Path("../shared/data"),
        show_default=True,
        show_envvar=True,
        help="Folder of the data sets.",
    )
    @results_option
    @json_option
    def run(quick: bool, check: bool, data_folder: Path, results_folder: Path, as_json: bool) -> None:
        result = runner.run_benchmark(
            runner.load_benchmark(name),
            name=name,
            quick=quick,
            data_folder=data_folder.resolve(),
            progress=progress(as_json),
        )
        path = runner.write_result(result, results_folder)
        emit(msgspec.to_builtins(result), as_json=as_json, text=lambda: _print_figures(result, path))
        if check and result.missed:
            click.echo(f"error: {name} misses {', '.join(result.missed)}", err=True)
            click.echo(f"hint: all figures are in {path}", err=True)
            raise click.exceptions.Exit(1)

    return run


def _print_figures(result: runner.BenchResult, path: Path) -> None:
    for figure in [*result.figures, *(name for name in result.missed if name not in result.figures)]:
        value = result.figures.get(figure)
        target = f"  (target: {result.targets[figure]})" if figure in result.targets else ""
        verdict = "  MISSED" if figure in result.missed else ""
        click.echo(f"{figure:<32} {'not measured' if value is None else f'{value:.6g}'}{target}{verdict}")
    click.echo(f"written to {path} after {result.seconds:.0f} s")


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
    for module in ("flask", "waitress"):
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
            f"{device.share_escalated:.0%}",
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
