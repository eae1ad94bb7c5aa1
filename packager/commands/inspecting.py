"""``pathweave inspect``: contents of a bundle, every byte of it verified. Needs the base installation alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from device_sdk.commands.command_line import emit, json_option
from packager.commands.printed import (
    described_block,
    described_exit,
    existing_file,
    percent,
    rendition_bytes,
    shortened,
)

if TYPE_CHECKING:
    from rich.table import Table

    from device_sdk.bundles.bundle import Bundle
    from device_sdk.bundles.manifest import Hybrid


@click.command()
@click.argument("bundle")
@click.option("--trust", type=existing_file, help="Public key or key list that must have signed the bundle.")
@click.option("--state", type=click.Path(path_type=Path), help="Of a device that fetched the bundle at a URL.")
@click.option("--brief", is_flag=True, help="Omit the tables of blocks and exits.")
@json_option
def inspect(bundle: str, trust: Path | None, state: Path | None, brief: bool, as_json: bool) -> None:
    """Show what is in a bundle, after verifying every byte of it; with a URL, what this device fetched of it."""
    from device_sdk.session.device_state import default_state_folder
    from device_sdk.session.opening import bundle_at

    opened = bundle_at(bundle, trust=trust, state_folder=state or default_state_folder(), accepts=None)
    opened.verify()
    described = describe_bundle(opened)
    emit(described, as_json=as_json, text=lambda: _print_bundle(opened, described, brief=brief))


def describe_bundle(bundle: Bundle) -> dict[str, Any]:
    """The output of ``pathweave inspect --json``."""
    from device_sdk.supernet.paths import architecture_count, subnet_count

    manifest = bundle.manifest
    sizes = bundle.blob_sizes()
    return {
        "name": manifest.name,
        "version": manifest.version,
        "format_version": manifest.format_version,
        "digest": bundle.digest,
        "signed": bundle.has_signature,
        "architecture_count": str(architecture_count(bundle.supernet)),
        "subnet_count": str(subnet_count(bundle.supernet)),
        "cut_points": [
            {
                "index": cut.index,
                "shapes": [list(tensor.shape) for tensor in cut.tensors],
                "bytes": cut.nbytes,
            }
            for cut in manifest.cut_points
        ],
        "blocks": [described_block(block) for block in manifest.blocks],
        "exits": [
            described_exit(exit_) | {"renditions": {r.name: r.size_bytes for r in exit_.renditions}}
            for exit_ in manifest.exits
        ],
        "sizes": {
            "blobs": len(sizes),
            "blob_bytes": sum(sizes.values()),
            "renditions": rendition_bytes(manifest, sizes),
            "manifest_bytes": bundle.manifest_bytes,
        },
        "held": _held(bundle),
        "hybrid": None if manifest.hybrid is None else _described_hybrid(manifest.hybrid),
        "notes": list(manifest.notes),
    }


def _held(bundle: Bundle) -> dict[str, Any]:
    """Blocks that are held here, and the number and size of blobs that are not."""
    absent = bundle.absent_blobs()
    return {
        "whole": bundle.part.is_whole,
        "last_position": bundle.last_position,
        "blocks": sorted({edge.block for edge in bundle.supernet.edges if bundle.part.has(edge)}),
        "absent_blobs": len(absent),
        "absent_bytes": sum(size or 0 for size in absent.values()),
    }


def _described_hybrid(hybrid: Hybrid) -> dict[str, Any]:
    return {"role": hybrid.role, "path": list(hybrid.path), "partner": hybrid.partner}


def _print_bundle(bundle: Bundle, described: dict[str, Any], *, brief: bool) -> None:
    from rich.console import Console

    console = Console()
    console.print(
        f"{described['name']} version {described['version']}, {'signed' if bundle.has_signature else 'not signed'}"
    )
    console.print(f"{described['architecture_count']} architectures, {described['subnet_count']} subnets")
    size_mb = described["sizes"]["blob_bytes"] / 1e6
    console.print(f"{described['sizes']['blobs']} blobs, {size_mb:.2f} MB{_shares(described['sizes']['renditions'])}")
    if not described["held"]["whole"]:
        console.print(_partial(described["held"]))
    if brief:
        return
    console.print(_block_table(bundle))
    if bundle.manifest.exits:
        console.print(_exit_table(bundle))
    if described["hybrid"] is not None:
        console.print(f"{described['hybrid']['role']} of a hybrid with {described['hybrid']['partner']}")
    for note in bundle.manifest.notes:
        console.print(f"note: {shortened(note)}")


def _partial(held: Mapping[str, Any]) -> str:
    return (
        f"a part: the blocks up to cut point {held['last_position']} ({', '.join(held['blocks'])}); "
        f"{held['absent_blobs']} blobs, {held['absent_bytes'] / 1e6:.2f} MB, are not here"
    )


def _shares(renditions: Mapping[str, int]) -> str:
    if len(renditions) < 2:
        return ""
    return ": " + ", ".join(f"{name} {size / 1e6:.2f} MB" for name, size in renditions.items())


def _block_table(bundle: Bundle) -> Table:
    from rich.table import Table

    table = Table("block", "kind", "from", "to", "parameters", "MACs", "distillation error")
    for block in bundle.manifest.blocks:
        error = "" if block.distillation_error is None else f"{block.distillation_error:.3f}"
        row = (
            block.id,
            block.kind,
            block.start,
            block.end,
            f"{block.parameters:,}",
            f"{block.macs:,}",
            error,
        )
        table.add_row(*map(str, row))
    return table


def _exit_table(bundle: Bundle) -> Table:
    from rich.table import Table

    table = Table("exit", "branch", "at", "parameters", "MACs", "accuracy")
    for exit_ in bundle.manifest.exits:
        row = (
            exit_.id,
            exit_.branch,
            exit_.position,
            f"{exit_.parameters:,}",
            f"{exit_.macs:,}",
            percent(exit_.accuracy),
        )
        table.add_row(*map(str, row))
    return table
