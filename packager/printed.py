"""Text output of ``pathweave package`` about minutes and memory, before and after the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from packager.assembly.packaged import Packaged


def print_minutes(packaged: Packaged) -> None:
    """Print the minutes of each step, and the training report."""
    steps = ", ".join(f"{step} {seconds / 60:.1f}" for step, seconds in packaged.step_seconds.items() if seconds >= 0.5)
    click.echo(f"{packaged.seconds / 60:.1f} minutes" + (f": {steps}" if steps else ""))
    for line in packaged.training_report:
        click.echo(f"  {line}")


def print_estimate(said: Mapping[str, Any]) -> None:
    """Print the result of ``pipeline.dry_run``."""
    click.echo(f"about {said['minutes']:.1f} minutes, at least {said['least_minutes']:.1f}; in seconds:")
    for step, seconds in said["seconds"].items():
        click.echo(f"  {step}: {seconds:.0f}")
    click.echo(
        f"about {said['peak_gb']:.1f} GB of memory, at least {said['least_memory_gb']:.1f}; the limit is"
        f" {said['memory_limit_gb']:.1f} (--memory-gb)"
    )
    click.echo(f"training in batches of {said['training_batch']}, calibration on {said['calibration_samples']} samples")
    click.echo(f"a bundle of about {said['bundle_mb']:.1f} MB")
