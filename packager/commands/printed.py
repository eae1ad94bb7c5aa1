"""Output that the subcommands share: minutes and memory, blocks, exits, bytes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from device_sdk.bundles.manifest import Manifest
    from device_sdk.supernet.blocks import Block, Exit
    from packager.output.packaged import Packaged

existing_file = click.Path(dir_okay=False, path_type=Path)


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


def shortened(note: str, limit: int = 200) -> str:
    """A note whose enumeration does not fill the screen: entries up to `limit` characters, and the number of others."""
    if len(note) <= limit or ", " not in note[:limit]:
        return note
    shown = note[:limit].rpartition(", ")[0]
    left_out = note[len(shown) :].count(", ")
    return f"{shown} and {left_out} more (all with --json)"


def described_block(block: Block) -> dict[str, Any]:
    """A block as JSON output has it."""
    return {
        "id": block.id,
        "kind": block.kind,
        "start": block.start,
        "end": block.end,
        "parameters": block.parameters,
        "macs": block.macs,
        "distillation_error": block.distillation_error,
        "renditions": {rendition.name: rendition.size_bytes for rendition in block.renditions},
    }


def described_exit(exit_: Exit) -> dict[str, Any]:
    """An exit as JSON output has it."""
    return {
        "id": exit_.id,
        "position": exit_.position,
        "branch": exit_.branch,
        "parameters": exit_.parameters,
        "macs": exit_.macs,
        "accuracy": exit_.accuracy,
    }


def rendition_bytes(manifest: Manifest, sizes: Mapping[str, int]) -> dict[str, int]:
    """Bytes per kind of rendition; a blob that several share counts for the first. ``sizes``: bytes of blobs here."""
    blobs: dict[str, set[str]] = {}
    counted: set[str] = set()
    renditions = [rendition for block in manifest.blocks for rendition in block.renditions]
    renditions += [rendition for exit_ in manifest.exits for rendition in exit_.renditions]
    for name in dict.fromkeys(rendition.name for rendition in renditions):
        blobs[name] = {blob for one in renditions if one.name == name for blob in (one.blob, *one.shared)} - counted
        counted |= blobs[name]
    return {name: sum(sizes.get(blob, 0) for blob in found) for name, found in blobs.items()}


def percent(accuracy: float | None) -> str:
    """An accuracy as text; empty where it is unknown."""
    return "" if accuracy is None else f"{accuracy:.2%}"
