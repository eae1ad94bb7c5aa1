"""``python -m benchmarks``: runs a measurement of this checkout, or writes the report of all."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from benchmarks.runner import run as runner
from device_sdk.commands.command_line import emit, json_option, progress

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
    from benchmarks.runner.age import ages, measured_paths
    from benchmarks.runner.report import render_report
    from device_sdk.files.atomic import write_atomically

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
