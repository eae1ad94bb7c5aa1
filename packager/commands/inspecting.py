"""``pathweave inspect``: contents of a bundle, every byte of it verified. Needs the base installation alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from device_sdk.commands.command_line import emit, json_option

if TYPE_CHECKING:
    from rich.table import Table

    from device_sdk.bundles.bundle import Bundle
    from device_sdk.bundles.manifest import Manifest
    from device_sdk.supernet.blocks import Block, Exit
    from packager.output.bundle_folder import Packaged


existing_file = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.argument("bundle")
@click.option("--trust", type=existing_file, help="Public key or key list that must have signed the bundle.")
@click.option("--state", type=click.Path(path_type=Path), help="Of a device that fetched the bundle at a URL.")
@click.option("--brief", is_flag=True, help="Omit the tables of blocks and exits.")
@click.option(
    "--picture", type=click.Path(path_type=Path), help="Draw a family's members and stitches to FILE.svg or FILE.png."
)
@json_option
def inspect(
    bundle: str, trust: Path | None, state: Path | None, brief: bool, picture: Path | None, as_json: bool
) -> None:
    """Show what is in a bundle, after verifying every byte of it; with a URL, what this device fetched of it."""
    from device_sdk.session.device_state import default_state_folder
    from device_sdk.session.opening import bundle_at

    opened = bundle_at(bundle, trust=trust, state_folder=state or default_state_folder(), accepts=None)
    opened.verify()
    if picture is not None:
        _draw(opened, picture)
    described = describe_bundle(opened)
    emit(described, as_json=as_json, text=lambda: _print_bundle(opened, described, brief=brief))


def _draw(bundle: Bundle, picture: Path) -> None:
    from device_sdk.files.drawing import require_picture, write_drawing
    from packager.family.front import drawn, read_report
    from packager.output.ownership import REPORT

    require_picture(picture)
    write_drawing(picture, drawn(read_report(bundle.folder / REPORT), bundle.manifest.name))


def describe_bundle(bundle: Bundle) -> dict[str, Any]:
    """The output of ``pathweave inspect --json``."""
    from device_sdk.supernet.paths import architecture_count, subnet_count
    from packager.npu.compiler import installed_compiler
    from packager.npu.records import chip_records, outdated

    manifest, hybrid = bundle.manifest, bundle.manifest.hybrid
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
        "members": [
            {"name": one.name, "blocks": list(one.blocks), "accuracy": one.accuracy} for one in manifest.members
        ],
        "held": _held(bundle),
        "chips": [record.described() for record in chip_records(manifest.blocks)],
        "chips_outdated": outdated(chip_records(manifest.blocks), installed_compiler()),
        "hybrid": None
        if hybrid is None
        else {"role": hybrid.role, "path": list(hybrid.path), "partner": hybrid.partner},
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
    for member in bundle.manifest.members:
        console.print(f"member {member.name}: {len(member.blocks)} blocks, {percent(member.accuracy)}")
    console.print(_block_table(bundle))
    if bundle.manifest.exits:
        console.print(_exit_table(bundle))
    for line in _chip_lines(bundle, described["chips_outdated"]):
        console.print(line, markup=False, soft_wrap=True)
    if described["hybrid"] is not None:
        console.print(f"{described['hybrid']['role']} of a hybrid with {described['hybrid']['partner']}")
    for note in bundle.manifest.notes:
        console.print(f"note: {shortened(note)}")


def _chip_lines(bundle: Bundle, outdated: str | None) -> list[str]:
    from packager.npu.records import chip_records

    lines = [line for record in chip_records(bundle.manifest.blocks) for line in record.lines()]
    return [*lines, *([] if outdated is None else [outdated])]


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
    return _table(
        ("block", "kind", "from", "to", "parameters", "MACs", "distillation error"),
        [
            (
                *(block.id, block.kind, block.start, block.end, f"{block.parameters:,}", f"{block.macs:,}"),
                "" if block.distillation_error is None else f"{block.distillation_error:.3f}",
            )
            for block in bundle.manifest.blocks
        ],
    )


def _exit_table(bundle: Bundle) -> Table:
    return _table(
        ("exit", "branch", "at", "parameters", "MACs", "accuracy"),
        [
            (
                *(exit_.id, exit_.branch, exit_.position, f"{exit_.parameters:,}", f"{exit_.macs:,}"),
                percent(exit_.accuracy),
            )
            for exit_ in bundle.manifest.exits
        ],
    )


def _table(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> Table:
    from rich.table import Table

    table = Table(*columns)
    for row in rows:
        table.add_row(*map(str, row))
    return table


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
    names = ("id", "kind", "start", "end", "parameters", "macs", "distillation_error")
    found = {name: getattr(block, name) for name in names}
    return found | {"renditions": {rendition.name: rendition.size_bytes for rendition in block.renditions}}


def described_exit(exit_: Exit) -> dict[str, Any]:
    """An exit as JSON output has it."""
    return {name: getattr(exit_, name) for name in ("id", "position", "branch", "parameters", "macs", "accuracy")}


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
