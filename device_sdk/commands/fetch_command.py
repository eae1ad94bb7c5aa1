"""``pathweave fetch``: the bundle at a server, or the part of it that a plan needs on this device."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from device_sdk.commands.command_line import emit, progress
from device_sdk.commands.command_options import ChosenTrust, bundle_options, chosen_homes, existing, fallback_option
from device_sdk.errors import UsageError

if TYPE_CHECKING:
    from device_sdk.session.adaptive_model import AdaptiveModel
    from device_sdk.supernet.plan import Fallback, Plan

_PLAN_MAX_BYTES = 16_000_000

FALLBACKS = {
    "subnet": "the rest of the subnet runs here",
    "exit": "the last exit before the cut answers",
    "abstain": "there is no answer",
}


@click.command()
@bundle_options
@click.option("--plan", "plan_file", type=existing, help="Fetch only what this plan, a JSON file, needs; run it.")
@click.option("--whole", is_flag=True, help="Fetch all blocks, also where a part was enough before.")
@click.option("--memory-mb", type=float, help="Choose a split whose part here fits; fetch only that part.")
@click.option("--device-factor", type=float, help="For that choice: this device is so many times slower.")
@click.option("--uplink-mbps", type=float, help="For that choice: the uplink [default: measured].")
@fallback_option
@click.option("--tag", "tags", multiple=True, help="NAME=VALUE of this device, for rollouts; kept. Repeatable.")
@click.option("--exit-memory-mb", type=click.FloatRange(min=0), help="Hold only the exits worth this memory (MEEdge).")
def fetch(
    bundle: str,
    trust: ChosenTrust,
    token: str | None,
    threads: int,
    homes: tuple[str, ...],
    state: Path | None,
    plan_file: Path | None,
    whole: bool,
    memory_mb: float | None,
    device_factor: float | None,
    uplink_mbps: float | None,
    fallback: Fallback | None,
    tags: tuple[str, ...],
    exit_memory_mb: float | None,
    as_json: bool,
) -> None:
    """Fetch the bundle at a URL and test it here, or only the part that a plan needs.

    With --memory-mb the manifest comes first, alone: where to split is chosen by the server's profile, times
    --device-factor, or by one that this device kept. With --exit-memory-mb, which exits to hold is chosen by accuracies
    that the packager measured and MACs.
    """
    from device_sdk.delivery.assignment import decode_tags
    from device_sdk.session.adaptive_model import AdaptiveModel

    chooses = any(one is not None for one in (memory_mb, device_factor, uplink_mbps, fallback))
    if sum((plan_file is not None, whole, chooses)) > 1:
        raise UsageError("give --plan, --whole, or the limits of a split (--memory-mb …), one of them")
    plan: Plan | Literal["whole"] | None = "whole" if whole else None
    why = ""
    if plan_file is not None:
        plan = _read_plan(plan_file)
    elif chooses:
        from device_sdk.session.heads import plan_head

        decision = plan_head(
            bundle,
            trust=trust,
            token=token,
            memory_mb=memory_mb,
            device_factor=1.0 if device_factor is None else device_factor,
            uplink_mbps=uplink_mbps,
            fallback=fallback,
            threads=threads,
            state_folder=state,
            progress=progress(as_json),
        )
        plan, why = decision.plan, f"; the device's profile: {decision.device_profile}; {decision.reason}"
    with AdaptiveModel.open(
        bundle,
        trust=trust,
        token=token,
        tags=decode_tags(",".join(tags)) if tags else None,
        threads=threads,
        homes=chosen_homes(homes),
        plan=plan,
        exits=None if exit_memory_mb is None else (),
        state_folder=state,
        progress=progress(as_json),
    ) as model:
        placed = None
        if exit_memory_mb is not None:
            placed = model.exits.place(memory_mb=exit_memory_mb, progress=progress(as_json))
        summary = part_summary(model) | {"placed": None if placed is None else asdict(placed)}
    emit(summary, as_json=as_json, text="\n".join(part_lines(summary)) + why)


def _read_plan(path: Path) -> Plan:
    from device_sdk.supernet.plan import decode_plan

    try:
        with path.open("rb") as file:
            data = file.read(_PLAN_MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > _PLAN_MAX_BYTES:
        raise UsageError(f"{path} has more than {_PLAN_MAX_BYTES} bytes: it is no plan")
    return decode_plan(data)


def part_summary(model: AdaptiveModel) -> dict[str, Any]:
    """Part of the bundle on this device, and the plan in use."""
    from device_sdk.execution.part_sizes import part_sizes
    from device_sdk.supernet.plan import encode_plan

    split = model.plan.split
    return {
        "name": model.bundle.manifest.name,
        "version": model.bundle.manifest.version,
        "digest": model.bundle.digest,
        "whole": model.bundle.part.is_whole,
        "last_position": model.bundle.last_position,
        "kind": model.plan.kind,
        "plan": encode_plan(model.plan).decode(),
        "position": None if split is None else split.position,
        "fallback": None if split is None else split.fallback,
        **asdict(part_sizes(model.bundle, model.plan)),
    }


def part_lines(summary: dict[str, Any]) -> list[str]:
    """The same for a person."""
    here = f"{summary['blobs']} blobs, {summary['stored_bytes'] / 1e6:.3g} MB, are here"
    lines = [f"{summary['name']} version {summary['version']}: {here}"]
    if summary["absent_blobs"]:
        away = f"{summary['absent_blobs']} blobs, {summary['absent_bytes'] / 1e6:.3g} MB"
        lines[0] += f"; {away}, are not"
    if not summary["whole"]:
        lines.append(f"only what the plan needs is held: blocks up to cut point {summary['last_position']}")
    lines.append(f"plan: {summary['kind']}, {summary['resident_bytes'] / 1e6:.3g} MB when it is loaded")
    if summary["position"] is not None:
        lines.append(f"cut point {summary['position']}; without the server {FALLBACKS[summary['fallback']]}")
    placed = summary["placed"]
    if placed is not None:
        reason = "" if placed["failure"] is None else f"; only those here could be chosen: {placed['failure']}"
        size = f"{placed['memory_bytes'] / 1e6:.3g} MB, {placed['expectation']:.1%} right if stopped at any time"
        lines.append(f"exits: {' '.join(placed['exits']) or 'none'}, {size}{reason}")
    return lines
