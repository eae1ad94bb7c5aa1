"""``python -m benchmarks.faults [PROMISE…]``: promises one by one, and in their long form."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import click

from benchmarks.faults.bench import verdict
from benchmarks.faults.parsers import NAMES as PARSERS
from benchmarks.faults.processes import require_linux, try_promise
from benchmarks.faults.promise import Promise
from benchmarks.faults.promises.registry import PROMISES
from device_sdk.errors import UsageError

NAMES = [one.name for one in PROMISES]


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(NAMES))
@click.option("--quick", is_flag=True, help="The shares of time of a quick bench.")
@click.option("--fuzz-minutes", type=click.FloatRange(min=0, min_open=True), help="Of S3, for each parser: 10.")
@click.option("--soak-minutes", type=click.FloatRange(min=0, min_open=True), help="Of S8: 30.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
def main(
    names: tuple[str, ...], quick: bool, fuzz_minutes: float | None, soak_minutes: float | None, seed: int
) -> None:
    """Try promises, all unless some are named; exit with 1 if one is not kept."""
    try:
        require_linux()
    except UsageError as error:
        raise click.ClickException(str(error)) from error
    longer = {} if fuzz_minutes is None else {"S3": 60 * fuzz_minutes * len(PARSERS)}
    longer |= {} if soak_minutes is None else {"S8": 60 * soak_minutes}
    kept = True
    for promise in [one for one in PROMISES if one.name in (names or NAMES)]:
        share_s = promise.quick_seconds if quick else promise.seconds
        with tempfile.TemporaryDirectory(prefix="pathweave-faults-") as folder:
            kept &= _tried(promise, Path(folder), longer.get(promise.name, share_s), seed)
    sys.exit(0 if kept else 1)


def _tried(promise: Promise, folder: Path, seconds: float, seed: int) -> bool:
    tried = try_promise(replace(promise, seconds=seconds), folder / promise.name, seconds=seconds, seed=seed)
    found = tried.findings
    killed = f", {found.kills} kills" if found.kills else ""
    click.echo(
        f"{promise.name:<4}{verdict(tried):<7} {found.cases} cases{killed} in {tried.seconds:.1f} s:"
        f" {promise.statement}"
    )
    for text in found.broken:
        click.echo(f"      broken: {text}")
    for text in found.missing:
        click.echo(f"      not tried: {text}")
    for text in found.notes:
        click.echo(f"      {text}")
    return found.kept


if __name__ == "__main__":
    main()
