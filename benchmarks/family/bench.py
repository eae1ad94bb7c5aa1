"""Family: several networks stitched into one bundle, adapted at each latency, against the best rung of the ladder."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

from benchmarks.family.choosing import FamilyResult, path_text, result_of
from benchmarks.family.figures import Duel, JudgedFamily, figures_of
from benchmarks.family.networks import CIFAR, LITE, Family, families
from benchmarks.runner.run import BenchOptions, BenchOutcome, Target
from benchmarks.support.bundles import packaging_cost
from benchmarks.sure.networks import Skipped
from device_sdk.supernet.plan import Subnet
from packager.output.ownership import REPORT

_OF_EACH = {
    "mean_gain_points": Target(minimum=1.0),
    "mean_gain_low_points": Target(minimum=0.0),
    "worst_gap_points": Target(maximum=0.5),
    "front_points": Target(minimum=10.0),
    "part_bytes_over_member": Target(maximum=1.2),
    "refused_runs": Target(maximum=0.0),
}
TARGETS = {f"{figure}_{name}": target for name in (LITE, CIFAR) for figure, target in _OF_EACH.items()} | {
    "package_minutes_lite": Target(maximum=8.0),
    "package_peak_gb_lite": Target(maximum=5.0),
    "adapt_seconds_lite": Target(maximum=45.0),
}


def run(options: BenchOptions) -> BenchOutcome:
    """Each family in turn; one that cannot be had is in the table with the reason, and misses its targets."""
    figures: dict[str, float] = {}
    table: list[dict[str, object]] = []
    for family in families(options):
        if isinstance(family, Skipped):
            table.append({"family": family.name, "what": "skipped", "reason": family.reason})
            continue
        found = result_of(family, options)
        own = figures_of(found.judged) | _costs(family, found)
        figures |= {f"{figure}_{family.name}": value for figure, value in own.items()}
        table += _rows(family, found)
    return BenchOutcome(figures, table, data="imagenette/val.zip, cifar10/test.zip: #search, judged on #report")


def _costs(family: Family, found: FamilyResult) -> dict[str, float]:
    """Packaging in a process of its own, perhaps in an earlier run; adapting in another, the first time and at most."""
    packaging = packaging_cost(family.folder)
    costs = {"package_minutes": packaging["packaging_minutes"]}
    if "packaging_peak_rss_gb" in packaging:
        costs["package_peak_gb"] = packaging["packaging_peak_rss_gb"]
    costs |= {"adapt_seconds": found.first.seconds, "adapt_peak_gb": found.first.peak_bytes / 1e9}
    return costs | {"adapt_seconds_most": max(one.seconds for one in found.runs)}


def _rows(family: Family, found: FamilyResult) -> list[dict[str, object]]:
    """A row for the packaging, one for each latency and one for each rung."""
    full_ms = _full_ms(found)
    rows = [_packaging_row(family.folder, family.left_out)]
    for run_, duel in zip(found.runs, found.judged.duels, strict=True):
        row: dict[str, object] = {"what": "latency", **_duel_row(found, duel, full_ms)}
        row |= {"adapt_seconds": run_.seconds, "evaluated": run_.evaluated}
        rows.append(row | ({"refusal": run_.refusal} if run_.refusal else {}))
    rows += [_rung_row(found, rung, full_ms) for rung in found.judged.rungs]
    return [{"family": family.name, **row} for row in rows]


def _full_ms(found: FamilyResult) -> float:
    """The full model's latency, as the adaptations measured it; not a number if all were refused."""
    known = [one.latency_ms / one.ratio for one in found.runs if one.latency_ms is not None]
    return median(known) if known else float("nan")


def _packaging_row(folder: Path, left_out: tuple[str, ...]) -> dict[str, object]:
    report = json.loads((folder / REPORT).read_bytes())
    row: dict[str, object] = {"what": "packaging", "members": report["family"], **packaging_cost(folder)}
    row |= {"stitches": [f"{one['id']}: gain {one['gain']:g}" for one in report["stitches"]]}
    return row | ({"left_out": left_out} if left_out else {})


def _duel_row(found: FamilyResult, duel: Duel, full_ms: float) -> dict[str, object]:
    judged = found.judged
    row: dict[str, object] = {
        "latency_ratio": duel.limit_ratio,
        "latency_ms": full_ms * duel.limit_ratio,
        "rival": path_text(found.supernet, duel.rival),
        "rival_accuracy": _accuracy(judged, duel.rival),
        "rival_ms": full_ms * judged.ratios[duel.rival],
    }
    if duel.ours is None:
        return row
    return row | {
        "ours": path_text(found.supernet, duel.ours),
        "accuracy": _accuracy(judged, duel.ours),
        "measured_ms": full_ms * judged.ratios[duel.ours],
        "measured_ratio": judged.ratios[duel.ours],
        "is_rung": duel.ours in judged.rungs,
        "on_front": duel.ours in judged.on_front,
        "bytes": judged.path_bytes[duel.ours],
        "bytes_over_member": judged.bytes_over_member(duel.ours),
    }


def _rung_row(found: FamilyResult, rung: Subnet, full_ms: float) -> dict[str, object]:
    judged, ratio = found.judged, found.judged.ratios[rung]
    row: dict[str, object] = {"what": "rung", "rung": path_text(found.supernet, rung), "measured_ratio": ratio}
    row |= {"measured_ms": full_ms * ratio, "bytes": judged.path_bytes[rung]}
    row |= {"search_accuracy": 100 * float(found.searched[rung].mean())}
    return row | ({"accuracy": _accuracy(judged, rung)} if rung in judged.right else {})


def _accuracy(judged: JudgedFamily, path: Subnet) -> float:
    """On #report, in percent."""
    return 100 * float(judged.right[path].mean())
