"""Bundles with their versions, sizes and what their manifests say of accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from server.page.asked import Asked, address, bundle_address
from server.page.charts import Point, front
from server.page.figures import accuracy, digest, number, share, size
from server.page.table import Column, Row, Table, View
from server.services import Services
from server.state.catalogue import ServedBundle

_DEVICES = 1000  # versions that are counted


def bundles(services: Services, asked: Asked) -> View:
    """The view at ``/page/bundles``: all versions of all bundles."""
    listing, on = services.bundles.listing(), _devices(services)
    served = [one for _, versions in sorted(listing.bundles.items()) for one in versions]
    table = Table("bundles", "Bundles", _columns(), [_row(one, on) for one in served], empty=_NO_BUNDLE)
    broken = Table(
        "broken",
        "Not served",
        (Column("folder", "Folder"), Column("reason", "Reason", style="long")),
        [{"folder": one.folder, "reason": one.reason} for one in listing.broken],
    )
    return View("bundles", "Bundles", "bundles.html", (table, broken), {"table": table, "broken": broken})


def bundle(services: Services, asked: Asked, name: str) -> View:
    """The view of one bundle at ``/page/bundles/NAME``: its versions, and one of them (``?version=``) in full."""
    versions = services.bundles.listing().versions(name)
    wanted, on = asked.whole("version"), _devices(services)
    chosen = next((one for one in versions if one.version == wanted), versions[0])
    table = Table("versions", "Versions", _columns(), [_row(one, on) for one in versions])
    fronts, exits, members = _front(chosen), _exits(chosen), _members(chosen)
    facts = _facts(chosen)
    values = {
        "name": name,
        "version": chosen.version,
        "versions": table,
        "devices_address": address("/page/devices", bundle=chosen.bundle.digest),
        "front": fronts,
        "chart": _chart(fronts.rows, chosen),
        "exits": exits,
        "members": members,
        "facts": facts,
        "notes": chosen.bundle.manifest.notes,
    }
    return View("bundles", name, "bundle.html", (table, fronts, exits, members, facts), values)


def _devices(services: Services) -> Mapping[str, int]:
    return {one.value or "": one.devices for one in services.fleet.groups("bundle", most=_DEVICES)}


def _row(one: ServedBundle, on: Mapping[str, int]) -> Row:
    metrics = one.bundle.manifest.metrics
    return {
        "name": one.name,
        "version": one.version,
        "signed": one.bundle.has_signature,
        "released": one.release is not None,
        "size_bytes": one.size_bytes,
        "architectures": one.architectures,
        "exits": len(one.bundle.supernet.exits),
        "accuracy": metrics.original_accuracy if metrics.samples else None,
        "devices": on.get(one.bundle.digest, 0),
        "digest": one.bundle.digest,
    }


def _columns() -> tuple[Column, ...]:
    def yes(value: object) -> str:
        return "yes" if value else "no"

    return (
        Column("name", "Bundle", link=lambda row: bundle_address(row["name"])),
        Column(
            "version",
            "Version",
            is_number=True,
            link=lambda row: address(bundle_address(row["name"]), version=str(row["version"])),
        ),
        Column("signed", "Signed", shown=yes, mark=lambda row: "good" if row["signed"] else "soft"),
        Column("released", "Released", shown=yes, mark=lambda row: "good" if row["released"] else "soft"),
        Column("size_bytes", "Size", shown=size, is_number=True),
        Column("architectures", "Subnets", shown=number, is_number=True),
        Column("exits", "Exits", shown=number, is_number=True),
        Column("accuracy", "Accuracy", shown=accuracy, is_number=True),
        Column(
            "devices",
            "Devices",
            shown=number,
            is_number=True,
            link=lambda row: address("/page/devices", bundle=row["digest"]) if row["devices"] else None,
        ),
        Column("digest", "Digest", shown=digest, is_code=True, hint=lambda row: row["digest"]),
    )


def _front(one: ServedBundle) -> Table:
    """Accuracy by the share of the full model's work, as the packager measured it."""
    ranges = one.bundle.manifest.metrics.range_accuracy
    rows = [
        {
            "macs_low": found.macs_ratio_low,
            "macs_high": found.macs_ratio_high,
            "accuracy": found.accuracy,
            "subnets": found.subnets,
        }
        for found in ranges
    ]
    shown = (
        Column("macs_low", "Work from", shown=share, is_number=True),
        Column("macs_high", "To", shown=share, is_number=True),
        Column("accuracy", "Accuracy", shown=accuracy, is_number=True),
        Column("subnets", "Subnets", shown=number, is_number=True),
    )
    empty = "The packager sampled no subnets of this bundle."
    return Table("front", "Accuracy of sampled subnets", shown, rows, empty=empty)


def _chart(rows: Sequence[Row], one: ServedBundle) -> Markup | None:
    if not rows:
        return None
    full = one.bundle.manifest.metrics.original_accuracy
    points = [Point(1.0, full, f"full model: {accuracy(full)}", "dot good")]
    for row in rows:
        middle = (row["macs_low"] + row["macs_high"]) / 2
        points.append(Point(middle, row["accuracy"], f"{share(middle)} of the work: {accuracy(row['accuracy'])}"))
    best = max(row["accuracy"] for row in rows)
    said = (
        f"mean accuracies of sampled subnets by their work, up to {accuracy(best)}; the full model has {accuracy(full)}"
    )
    return front(points, x_label="of the full model's work", said=said)


def _exits(one: ServedBundle) -> Table:
    rows = [
        {
            "exit": found.id,
            "position": found.position,
            "accuracy": found.accuracy,
            "parameters": found.parameters,
            "macs": found.macs,
        }
        for found in one.bundle.supernet.exits
    ]
    shown = (
        Column("exit", "Exit"),
        Column("position", "At cut point", is_number=True),
        Column("accuracy", "Accuracy", shown=accuracy, is_number=True),
        Column("parameters", "Parameters", shown=number, is_number=True),
        Column("macs", "MACs", shown=number, is_number=True),
    )
    return Table("exits", "Exits", shown, rows, empty="It has no exits.")


def _members(one: ServedBundle) -> Table:
    rows = [
        {"member": found.name, "blocks": len(found.blocks), "accuracy": found.accuracy}
        for found in one.bundle.manifest.members
    ]
    shown = (
        Column("member", "Network"),
        Column("blocks", "Blocks", is_number=True),
        Column("accuracy", "Accuracy", shown=accuracy, is_number=True),
    )
    return Table("members", "Networks of the family", shown, rows, empty="It is no family.")


def _facts(one: ServedBundle) -> Table:
    """Statements of the manifest, in words."""
    manifest = one.bundle.manifest
    metrics, origin = manifest.metrics, manifest.provenance
    found = {
        "task": f"{manifest.task.kind}, {len(manifest.task.class_names):,} classes",
        "accuracy": f"{accuracy(metrics.original_accuracy)} of {metrics.samples:,} samples ({metrics.data})",
        "size": f"{size(one.size_bytes)} in {len(one.blob_sizes):,} blobs",
        "blocks": f"{len(manifest.blocks):,} between {len(manifest.cut_points):,} cut points",
        "subnets": number(one.architectures),
        "model": origin.model,
        "source": origin.source,
        "licence": origin.licence or "not stated",
        "training data": origin.training_data,
        "format": manifest.format_version,
        "digest": one.bundle.digest,
    }
    rows = [{"fact": name, "value": value} for name, value in found.items()]
    return Table("facts", "In its manifest", (Column("fact", "Fact"), Column("value", "Value")), rows)


_NO_BUNDLE = Markup("No bundle yet: put the folder that <code>pathweave package</code> wrote into the served folder.")
