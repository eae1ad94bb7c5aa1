"""``pathweave package --model A --member B …``: several pretrained networks in one bundle."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from device_sdk.commands.command_line import emit, progress
from packager.commands.inspecting import described_exit, percent, print_minutes, shortened

if TYPE_CHECKING:
    from packager.family.pipeline import PackagedFamily
    from packager.pipeline import Limits

_OF_JOBS = ("input_shape", "training", "validation", "version", "recipe_path", "classes")


def package_members(
    options: Mapping[str, Any], members: tuple[str, ...], overrides: Mapping[str, Any], limits: Limits
) -> None:
    """Package ``--model`` and all of ``--member`` as one family; ``overrides``: of the recipe."""
    from packager.family.members import MemberSource, load_family
    from packager.family.pipeline import package_family
    from packager.inputs.pixels import Pixels

    as_json = options["as_json"]
    shown = progress(as_json)
    family = load_family(
        [MemberSource(options["specification"], options["weights"]), *map(MemberSource.parse, members)],
        **{name: options[name] for name in _OF_JOBS},
        overrides=overrides,
        pixels=Pixels(options["normalisation"], options["interpolation"], options["crop"]),
        progress=shown,
    )
    for note in (note for member in family for note in member.job.notes):
        click.echo(f"note: {note}", err=True)
    packaged = package_family(
        family,
        options["out"],
        name=options["name"],
        private_key=options["private_key"],
        restart=options["restart"],
        progress=shown,
        limits=limits,
    )
    print_family(packaged, options["out"], card=options["card"], as_json=as_json)


def print_family(family: PackagedFamily, out: Path, *, card: bool, as_json: bool) -> None:
    """Print the family that was written to ``out``, as text or JSON, after its model card, if asked for."""
    from packager.output.model_card import write_card

    if card:
        write_card(family.packaged.folder, family.packaged.manifest)
    described = _described(family, out)
    emit(described, as_json=as_json, text=lambda: _print(family, described))


def check_members(options: Mapping[str, Any], members: tuple[str, ...]) -> None:
    """Report what can be stitched; nothing is fitted or written."""
    from packager.family.examination import examine_family
    from packager.family.members import MemberSource, load_models
    from packager.inputs.pixels import Pixels

    sources = [MemberSource(options["specification"], options["weights"]), *map(MemberSource.parse, members)]
    pixels = Pixels(options["normalisation"], options["interpolation"], options["crop"])
    models = load_models(sources, classes=options["classes"], pixels=pixels, input_shape=options["input_shape"])
    described = examine_family(models).described()
    emit(described, as_json=options["as_json"], text=lambda: _print_examined(described))


def _print_examined(described: Mapping[str, Any]) -> None:
    click.echo(f"a family of {len(described['members'])} members, for inputs of {described['input_shape']}")
    for one in described["members"]:
        click.echo(f"  {one['name']}: {one['macs'] / 1e6:.1f} million MACs, {one['cut_points']} cut points")
    for one in described["joints"]:
        least, most = (macs / 1e6 for macs in one["path_macs"])
        click.echo(
            f"  {one['start']}, then {one['end']}: {one['count']} pairs of cut points can be joined,"
            f" for paths of {least:.1f} to {most:.1f} million MACs"
        )
    if not described["joints"]:
        click.echo("no cut points can be joined: their maps differ in size; the family would be a ladder of networks")


def _described(family: PackagedFamily, out: Path) -> dict[str, Any]:
    from device_sdk.bundles.bundle import SIGNATURE, Bundle
    from device_sdk.supernet.paths import architecture_count

    packaged = family.packaged
    manifest, bundle = packaged.manifest, Bundle.open(packaged.folder)
    peak_mb = None if packaged.peak_rss_bytes is None else round(packaged.peak_rss_bytes / 1e6)
    return {
        "bundle": str(out),
        "signed": (packaged.folder / SIGNATURE).exists(),
        "fresh": packaged.fresh,
        "minutes": round(packaged.seconds / 60, 2),
        "peak_rss_mb": peak_mb,
        "blocks": len(manifest.blocks),
        "architecture_count": str(architecture_count(manifest.supernet())),
        "members": [
            {
                "name": member.name,
                "accuracy": member.accuracy,
                "macs": sum(bundle.supernet.block(name).macs for name in member.blocks),
                "bytes": family.part_bytes[member.name],
            }
            for member in manifest.members
        ],
        "stitches": [dict(one) for one in family.stitches],
        "exits": [described_exit(one) for one in manifest.exits],
        "bundle_bytes": sum(bundle.blob_sizes().values()),
        "ladder_bytes": sum(family.part_bytes.values()),
        "notes": list(manifest.notes),
        "step_seconds": dict(packaged.step_seconds),
    }


def _print(family: PackagedFamily, described: Mapping[str, Any]) -> None:
    members = f"{len(described['members'])} members" if described["members"] else "one network"
    click.echo(
        f"{described['bundle']}: {members}, {described['blocks']} blocks,"
        f" {described['architecture_count']} architectures"
    )
    for member in described["members"]:
        click.echo(
            f"  {member['name']}: {percent(member['accuracy'])}, {member['macs'] / 1e6:.1f} million"
            f" multiply-accumulates, {member['bytes'] / 1e6:.1f} MB"
        )
    for one in described["exits"]:
        click.echo(f"  exit {one['id']} at cut point {one['position']}: {percent(one['accuracy'])}")
    for one in described["stitches"]:
        click.echo(
            f"  stitch {one['id']}: a path of {one['path_macs'] / 1e6:.1f} million multiply-accumulates, nearer to"
            f" {described['members'][0]['name']} by {100 * one['gain']:.1f} points than the members of no more work"
        )
    if described["members"]:
        click.echo(
            f"{described['bundle_bytes'] / 1e6:.1f} MB in all renditions;"
            f" the members alone in their first {described['ladder_bytes'] / 1e6:.1f} MB"
        )
    for note in described["notes"]:
        click.echo(f"note: {shortened(note)}")
    print_minutes(family.packaged)
    if not described["signed"]:
        click.echo("not signed: pathweave sign key new NAME makes a key, --key NAME.key signs with it")
