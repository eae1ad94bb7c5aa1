"""Choosing the plan: ``pathweave profile``, ``adapt``, ``calibrate`` and ``place``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from device_sdk.commands.command_line import emit, progress
from device_sdk.commands.command_options import (
    ChosenTrust,
    bundle_options,
    limit_option,
    load_data,
    location_options,
    open_model,
    private_images_option,
    token_option,
)
from device_sdk.errors import UsageError
from device_sdk.supernet.plan import UNREACHABLE_CONFIDENCE

_BUSY = 1.1  # slowdown that is worth a line

if TYPE_CHECKING:
    from device_sdk.policies.adaptation import Adaptation
    from device_sdk.policies.calibration import Calibration
    from device_sdk.policies.placement import Placement
    from device_sdk.profiling.profile import Profile
    from device_sdk.session.exit_sets import PlacedExits


@click.command()
@bundle_options
@click.option("--again", is_flag=True, help="Measure even if this device was profiled before.")
def profile(
    bundle: str, trust: ChosenTrust, token: str | None, threads: int, state: Path | None, again: bool, as_json: bool
) -> None:
    """Measure the latency and memory of every block on this device."""
    with open_model(bundle, trust=trust, token=token, threads=threads, state=state, as_json=as_json) as model:
        measured = model.profile(again=again, progress=progress(as_json))
    summary = _profile_summary(measured)
    emit(summary, as_json=as_json, text=lambda: _print_profile(measured))


def _profile_summary(measured: Profile) -> dict[str, Any]:
    return {
        "device": measured.device,
        "runtime": measured.runtime,
        "original_ms": measured.original_ms,
        "nodes_by_provider": measured.nodes_by_provider,
        "scale": measured.scale,
        "offset_ms": measured.offset_ms,
        "blocks": {
            str(one.edge): {
                "latency_ms": one.cost.latency_ms,
                "p95_latency_ms": one.cost.p95_latency_ms,
                "peak_bytes": one.cost.resident_bytes + one.cost.working_bytes,
            }
            for one in measured.edges
        },
        "exits": {
            one.exit: {"latency_ms": one.cost.latency_ms, "memory_bytes": one.cost.resident_bytes}
            for one in measured.exits
        },
        "subnets": [
            {"subnet": str(one.subnet), "predicted_ms": predicted, "measured_ms": one.measured_ms}
            for one in measured.fitted
            for predicted in [measured.cost_model().latency_ms(one.subnet)]
        ],
    }


def _print_profile(measured: Profile) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("block", "median ms", "p95 ms", "peak kB")
    for one in measured.edges:
        peak = one.cost.resident_bytes + one.cost.working_bytes
        cells = (f"{one.cost.latency_ms:.4f}", f"{one.cost.p95_latency_ms:.4f}", f"{peak / 1e3:.0f}")
        table.add_row(str(one.edge), *cells)
    Console().print(table)
    click.echo(f"full model: {measured.original_ms:.3f} ms on {measured.device}")
    total = sum(measured.nodes_by_provider.values())
    for provider, nodes in measured.nodes_by_provider.items():
        click.echo(f"{provider} runs {nodes} of its {total} nodes")


@click.command()
@bundle_options
@private_images_option
@limit_option
@click.option("--latency-ratio", type=float, help="Latency budget as a share of the full model's.")
@click.option("--latency-ms", type=float, help="Latency budget in milliseconds (batch 1, when nothing else runs).")
@click.option(
    "--percentile", type=float, default=50.0, show_default=True, help="Percentile of the calls that keep the budget."
)
@click.option(
    "--calls-per-second", type=float, help="Pace at which the application calls.  [default: 20 ms between calls]"
)
@click.option("--memory-mb", type=float, help="Memory budget in megabytes.")
@click.option("--unlabelled", is_flag=True, help="Use the full model's predictions instead of the labels.")
@click.option("--exits", is_flag=True, help="Let subnets compete with their exits; the budget then limits the mean.")
@click.option("--no-prior", is_flag=True, help="Do not correct answers by the mix of classes of the images.")
@click.option("--strategy", default="pathweave", show_default=True, help="How to search (guide: adapt on a device).")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the search.")
@click.option(
    "--time-limit",
    "time_limit_s",
    type=click.FloatRange(min=0, min_open=True),
    default=20.0,
    show_default=True,
    help="Seconds of the search after which the best so far is taken.",
)
def adapt(
    bundle: str,
    trust: ChosenTrust,
    token: str | None,
    threads: int,
    state: Path | None,
    data: str,
    limit: int | None,
    latency_ratio: float | None,
    latency_ms: float | None,
    percentile: float,
    calls_per_second: float | None,
    memory_mb: float | None,
    unlabelled: bool,
    exits: bool,
    no_prior: bool,
    strategy: str,
    seed: int,
    time_limit_s: float,
    as_json: bool,
) -> None:
    """Find the best subnet for this device and this data within a budget, and use it from now on."""
    from device_sdk.policies.adaptation import AdaptationSettings
    from device_sdk.supernet.cost import Budget

    if latency_ratio is not None and latency_ms is not None:
        raise UsageError("give --latency-ratio or --latency-ms, not both")
    budget = Budget(
        latency_ms=latency_ms,
        latency_ratio=latency_ratio,
        percentile=percentile,
        calls_per_second=calls_per_second,
        memory_mb=memory_mb,
    )
    with open_model(bundle, trust=trust, token=token, threads=threads, state=state, as_json=as_json) as model:
        model.bundle.require_whole("adapting")
        dataset = load_data(model, data, limit=limit, as_json=as_json, labelled=not unlabelled)
        full_ms = model.profile(progress=progress(as_json)).original_ms
        adaptation = model.adapt(
            dataset.images,
            None if unlabelled else dataset.labels,
            budget,
            settings=AdaptationSettings(
                strategy=strategy, seed=seed, time_limit_s=time_limit_s, use_exits=exits, use_prior=not no_prior
            ),
            progress=progress(as_json),
        )
    summary = _adaptation_summary(adaptation, full_ms)
    emit(summary, as_json=as_json, text=lambda: _print_adaptation(adaptation, summary))


def _adaptation_summary(adaptation: Adaptation, full_ms: float) -> dict[str, Any]:
    return {
        "subnet": list(map(str, adaptation.subnet.edges)),
        "exits": {choice.exit: choice.threshold for choice in adaptation.plan.exits},
        "prior": adaptation.plan.class_prior is not None,
        "budget_ms": adaptation.budget.latency_ms,
        "budget_memory_mb": adaptation.budget.memory_mb,
        "predicted_ms": adaptation.predicted_ms,
        "measured_ms": adaptation.measured_ms,
        "measured_interval_ms": list(adaptation.measured_interval_ms),
        "within_budget_probability": adaptation.within_budget_probability,
        "slowdown": adaptation.slowdown,
        "prepare_ms": adaptation.prepare_ms,
        "full_measured_ms": adaptation.full_measured_ms,
        "predicted_ratio": adaptation.predicted_ms / full_ms,
        "measured_ratio": adaptation.measured_ratio,
        "predicted_peak_bytes": adaptation.predicted_peak_bytes,
        "accuracy_search": adaptation.accuracy_search,
        "accuracy_interval": list(adaptation.accuracy_interval),
        "accuracy_holdout": adaptation.accuracy_holdout,
        "full_accuracy_holdout": adaptation.full_accuracy_holdout,
        "search_samples": adaptation.search_samples,
        "holdout_samples": adaptation.holdout_samples,
        "subnets_evaluated": adaptation.subnets_evaluated,
        "seconds": adaptation.seconds,
        "stopped": adaptation.stopped,
    }


def _print_adaptation(adaptation: Adaptation, summary: dict[str, Any]) -> None:
    click.echo(f"subnet: {adaptation.subnet}")
    if adaptation.plan.exits:
        click.echo(f"exits: {' '.join(choice.exit for choice in adaptation.plan.exits)}; latencies are means")
    if adaptation.plan.class_prior is not None:
        click.echo("answers are corrected by the mix of classes of these images (--no-prior: not)")
    for line in _latency_lines(adaptation):
        click.echo(line)
    low, high = adaptation.accuracy_interval
    if adaptation.accuracy_holdout is not None and adaptation.full_accuracy_holdout is not None:
        click.echo(
            f"accuracy on {adaptation.holdout_samples} samples that the search did not see:"
            f" {adaptation.accuracy_holdout:.1%} (full model {adaptation.full_accuracy_holdout:.1%})"
        )
    click.echo(f"expected on new samples like these: {low:.1%} to {high:.1%}")
    click.echo(f"{adaptation.subnets_evaluated} subnets evaluated in {adaptation.seconds:.1f} s ({adaptation.stopped})")


def _latency_lines(adaptation: Adaptation) -> list[str]:
    """The measured latency, its certainty, and what it leaves out."""
    low_ms, high_ms = adaptation.measured_interval_ms
    lines = [
        f"latency: {adaptation.measured_ms:.3f} ms ({low_ms:.3f} to {high_ms:.3f}) when nothing else runs,"
        f" {adaptation.measured_ratio:.0%} of the full model's {adaptation.full_measured_ms:.3f} ms;"
        f" preparing an image takes another {adaptation.prepare_ms:.3f} ms"
    ]
    if adaptation.budget.latency_ms is not None:
        chance = adaptation.within_budget_probability
        lines.append(f"the budget of {adaptation.budget.latency_ms:.3f} ms is kept with a probability of {chance:.0%}")
    if adaptation.slowdown > _BUSY:
        lines.append(f"the device is busy: calls take {adaptation.slowdown:.1f} times as long now")
    return lines


@click.command()
@bundle_options
@click.option("--data", required=True, help="Images that the search did not see: FOLDER or FILE.zip, perhaps #part.")
@limit_option
@click.option("--unlabelled", is_flag=True, help="Use the subnet's own predictions instead of the labels.")
@click.option("--no-exits", is_flag=True, help="Every sample runs to the end of the subnet.")
@click.option(
    "--accuracy-drop",
    type=click.FloatRange(0, 1),
    default=0.005,
    show_default=True,
    help="Maximum accuracy loss from early exits, 0 to 1.",
)
@click.option("--exit-memory-mb", type=click.FloatRange(min=0), help="Memory for exits in megabytes.")
@click.option(
    "--escalated-share",
    type=click.FloatRange(0, 1),
    default=0.0,
    show_default=True,
    help="Share of the samples to send to a server, 0 to 1.",
)
def calibrate(
    bundle: str,
    trust: ChosenTrust,
    token: str | None,
    threads: int,
    state: Path | None,
    data: str,
    limit: int | None,
    unlabelled: bool,
    no_exits: bool,
    accuracy_drop: float,
    exit_memory_mb: float | None,
    escalated_share: float,
    as_json: bool,
) -> None:
    """Set the exits of the plan in use, and the threshold for samples that go to a server."""
    from device_sdk.policies.calibration import CalibrationSettings

    settings = CalibrationSettings(
        accuracy_drop=accuracy_drop,
        exit_memory_mb=exit_memory_mb,
        escalated_share=escalated_share,
        use_exits=not no_exits,
    )
    with open_model(bundle, trust=trust, token=token, threads=threads, state=state, as_json=as_json) as model:
        dataset = load_data(model, data, limit=limit, as_json=as_json, labelled=not unlabelled)
        labels = None if unlabelled else dataset.labels
        result = model.calibrate(dataset.images, labels, settings=settings, progress=progress(as_json))
    emit(_calibration_summary(result), as_json=as_json, text=lambda: _print_calibration(result))


def _calibration_summary(result: Calibration) -> dict[str, Any]:
    return {
        "subnet": list(map(str, result.plan.subnet.edges)),
        "exits": {choice.exit: choice.threshold for choice in result.plan.exits},
        "escalation_threshold": result.plan.hard_threshold,
        "samples": result.samples,
        "accuracy": result.accuracy,
        "accuracy_without_exits": result.accuracy_without_exits,
        "share_early": result.share_early,
        "share_escalated": result.share_escalated,
        "mean_ms": result.mean_ms,
        "without_exits_ms": result.without_exits_ms,
    }


def _print_calibration(result: Calibration) -> None:
    click.echo(f"subnet: {result.plan.subnet}")
    for choice in result.plan.exits:
        if choice.threshold < UNREACHABLE_CONFIDENCE:
            click.echo(f"exit {choice.exit} answers from a confidence of {choice.threshold:.3f} on")
        else:
            click.echo(f"exit {choice.exit} answers by a deadline or an interruption only")
    if result.mean_ms is not None and result.without_exits_ms is not None:
        click.echo(
            f"{result.share_early:.0%} of {result.samples} samples leave early: {result.mean_ms:.3f} ms on average"
            f" instead of {result.without_exits_ms:.3f} ms, {result.accuracy:.1%} right"
            f" instead of {result.accuracy_without_exits:.1%}"
        )
    else:
        click.echo(f"no exit is worth it here: {result.accuracy:.1%} of {result.samples} samples right")
    threshold = result.plan.hard_threshold
    if threshold is not None:
        click.echo(f"hard below a confidence of {threshold:.3f}: {result.share_escalated:.1%} of the samples")


@click.command()
@location_options
@token_option
@click.option("--memory-kb", type=click.FloatRange(min=0), help="Memory for exits in kilobytes [default: no limit].")
@click.option("--hold", is_flag=True, help="Fetch these exits, as the server of BUNDLE chooses, and hold only them.")
def place(
    bundle: str,
    trust: ChosenTrust,
    state: Path | None,
    token: str | None,
    memory_kb: float | None,
    hold: bool,
    as_json: bool,
) -> None:
    """Show which exits are worth their memory, estimated from MACs, as for a device without a profile.

    With --hold the device has just these from now on: what is missing is fetched, and plans lose the others.
    """
    if hold:
        with open_model(bundle, trust=trust, token=token, threads=1, state=state, exits=(), as_json=as_json) as model:
            placed = model.place_exits(memory_kb=memory_kb, progress=progress(as_json))
        emit(asdict(placed), as_json=as_json, text=_placed_text(placed))
        return
    from device_sdk.policies.placement import candidates_by_macs
    from device_sdk.policies.placement import place as decide
    from device_sdk.session.device_state import default_state_folder
    from device_sdk.session.opening import bundle_at

    supernet = bundle_at(bundle, trust=trust, state_folder=state or default_state_folder()).supernet
    candidates, full_macs = candidates_by_macs(supernet)
    limit = None if memory_kb is None else int(memory_kb * 1000)
    placement = decide(candidates, full_time=full_macs, memory_bytes=limit)
    summary = {
        "exits": list(placement.exits),
        "expectation": placement.expectation,
        "memory_bytes": placement.memory_bytes,
        "optimal": placement.optimal,
        "basis": "macs",
    }
    emit(summary, as_json=as_json, text=_placement_text(placement))


def _placed_text(placed: PlacedExits) -> str:
    if not placed.exits:
        return f"no exit is held: none fits (chosen by the {placed.chosen_by})"
    reason = "" if placed.failure is None else f" since: {placed.failure}"
    return f"{_exits_text(placed.exits, placed)}\nheld here; chosen by the {placed.chosen_by}{reason}"


def _placement_text(placement: Placement) -> str:
    if not placement.exits:
        return "no exit fits"
    return _exits_text(placement.exits, placement)


def _exits_text(exits: Sequence[str], placement: Placement | PlacedExits) -> str:
    return (
        f"{' '.join(exits)}: {placement.memory_bytes / 1000:.1f} kB,"
        f" {placement.expectation:.1%} right on average if stopped at any time"
    )
