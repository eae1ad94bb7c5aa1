"""The device's commands: ``pathweave profile``, ``adapt``, ``run`` and ``logs``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from device_sdk.command_line import emit, json_option, progress
from device_sdk.errors import UsageError

if TYPE_CHECKING:
    from device_sdk.adaptation import Adaptation
    from device_sdk.datasets import ImageDataset
    from device_sdk.profiling import Profile
    from device_sdk.session import AdaptiveModel

Command = TypeVar("Command", bound=Callable[..., object])


def _location_options(command: Command) -> Command:
    """The bundle, who must have signed it, and where this device keeps what it knows of it."""
    folder = click.Path(path_type=Path)
    decorators = (
        click.argument("bundle", type=folder),
        click.option("--trust", type=folder, help="Public key that must have signed the bundle."),
        click.option("--state", type=folder, help="Folder for profiles, the plan and the log."),
        json_option,
    )
    for decorate in reversed(decorators):
        command = decorate(command)
    return command


def _bundle_options(command: Command) -> Command:
    """The same, and how the bundle runs."""
    threads = click.option(
        "--threads", type=click.IntRange(min=1), default=1, show_default=True, help="Inference threads."
    )
    return _location_options(threads(command))


def _open(bundle: Path, trust: Path | None, threads: int, state: Path | None, as_json: bool) -> AdaptiveModel:
    from device_sdk.session import AdaptiveModel

    shown = progress(as_json)
    return AdaptiveModel.open(bundle, trust=trust, threads=threads, state_folder=state, progress=shown)


def _load_data(model: AdaptiveModel, reference: str, *, limit: int | None, as_json: bool) -> ImageDataset:
    from device_sdk.datasets import load_dataset

    manifest = model.bundle.manifest
    dataset = load_dataset(reference, progress=progress(as_json), limit=limit, resize=manifest.preprocessing.resize)
    return dataset.relabelled(manifest.task.class_names)


@click.command()
@_bundle_options
@click.option("--again", is_flag=True, help="Measure even if this device was profiled before.")
def profile(bundle: Path, trust: Path | None, threads: int, state: Path | None, again: bool, as_json: bool) -> None:
    """Measure what every block costs on this device."""
    with _open(bundle, trust, threads, state, as_json) as model:
        measured = model.profile(again=again, progress=progress(as_json))
    summary = _profile_summary(measured)
    emit(summary, as_json=as_json, text=lambda: _print_profile(measured))


def _profile_summary(measured: Profile) -> dict[str, Any]:
    return {
        "device": measured.device,
        "runtime": measured.runtime,
        "original_ms": measured.original_ms,
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


@click.command()
@_bundle_options
@click.option(
    "--data", required=True, help="Private images: FOLDER or FILE.zip with a folder per class, perhaps #part."
)
@click.option("--limit", type=click.IntRange(min=2), help="Use at most this many images.")
@click.option("--latency-ratio", type=float, help="Latency budget as a share of the full model's.")
@click.option("--latency-ms", type=float, help="Latency budget in milliseconds (median, batch 1).")
@click.option("--memory-mb", type=float, help="Memory budget in megabytes.")
@click.option("--unlabelled", is_flag=True, help="Do not use the labels: the full model's answers stand in.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the search.")
@click.option("--time-limit", "time_limit_s", type=float, help="Seconds after which the best so far is taken.")
def adapt(
    bundle: Path,
    trust: Path | None,
    threads: int,
    state: Path | None,
    data: str,
    limit: int | None,
    latency_ratio: float | None,
    latency_ms: float | None,
    memory_mb: float | None,
    unlabelled: bool,
    seed: int,
    time_limit_s: float | None,
    as_json: bool,
) -> None:
    """Find the best subnet for this device and this data within a budget, and use it from now on."""
    from device_sdk.adaptation import AdaptationSettings
    from device_sdk.cost import Budget

    if latency_ratio is not None and latency_ms is not None:
        raise UsageError("give --latency-ratio or --latency-ms, not both")
    with _open(bundle, trust, threads, state, as_json) as model:
        dataset = _load_data(model, data, limit=limit, as_json=as_json)
        full_ms = model.profile(progress=progress(as_json)).original_ms
        if latency_ratio is not None:
            latency_ms = latency_ratio * full_ms
        adaptation = model.adapt(
            dataset.images,
            None if unlabelled else dataset.labels,
            Budget(latency_ms=latency_ms, memory_mb=memory_mb),
            settings=AdaptationSettings(seed=seed, time_limit_s=time_limit_s),
            progress=progress(as_json),
        )
    summary = _adaptation_summary(adaptation, full_ms)
    emit(summary, as_json=as_json, text=lambda: _print_adaptation(adaptation, summary))


def _adaptation_summary(adaptation: Adaptation, full_ms: float) -> dict[str, Any]:
    return {
        "subnet": list(map(str, adaptation.subnet.edges)),
        "budget_ms": adaptation.budget.latency_ms,
        "budget_memory_mb": adaptation.budget.memory_mb,
        "predicted_ms": adaptation.predicted_ms,
        "measured_ms": adaptation.measured_ms,
        "full_measured_ms": adaptation.full_measured_ms,
        "predicted_ratio": adaptation.predicted_ms / full_ms,
        "measured_ratio": adaptation.measured_ratio,
        "predicted_peak_bytes": adaptation.predicted_peak_bytes,
        "accuracy_search": adaptation.accuracy_search,
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
    click.echo(
        f"latency: {adaptation.measured_ms:.3f} ms measured, {adaptation.predicted_ms:.3f} ms predicted"
        f" ({adaptation.measured_ratio:.0%} of the full model's {adaptation.full_measured_ms:.3f} ms)"
    )
    if adaptation.accuracy_holdout is not None and adaptation.full_accuracy_holdout is not None:
        click.echo(
            f"accuracy on {adaptation.holdout_samples} samples that the search did not see:"
            f" {adaptation.accuracy_holdout:.1%} (full model {adaptation.full_accuracy_holdout:.1%})"
        )
    click.echo(f"{adaptation.subnets_evaluated} subnets evaluated in {adaptation.seconds:.1f} s ({adaptation.stopped})")


@click.command()
@_bundle_options
@click.argument("images", nargs=-1, type=click.Path(path_type=Path))
@click.option("--data", help="Labelled images instead: FOLDER or FILE.zip with a folder per class, perhaps #part.")
@click.option("--limit", type=click.IntRange(min=1), help="Use at most this many images of --data.")
def run(
    bundle: Path,
    trust: Path | None,
    threads: int,
    state: Path | None,
    images: tuple[Path, ...],
    data: str | None,
    limit: int | None,
    as_json: bool,
) -> None:
    """Classify IMAGES, or measure the accuracy on --data, with the plan in use."""
    if bool(images) == (data is not None):
        raise UsageError("give image files or --data, one of them")
    with _open(bundle, trust, threads, state, as_json) as model:
        if data is None:
            answers = [_classify(model, path) for path in images]
            text = "\n".join(f"{a['image']}: {a['label']} ({a['confidence']:.1%})" for a in answers)
            emit({"plan": str(model.plan.subnet), "answers": answers}, as_json=as_json, text=text)
            return
        dataset = _load_data(model, data, limit=limit, as_json=as_json)
        accuracy = _accuracy(model, dataset, as_json=as_json)
        result = {"plan": str(model.plan.subnet), "samples": len(dataset), "accuracy": accuracy}
    emit(result, as_json=as_json, text=f"{accuracy:.2%} of {len(dataset)} right with {result['plan']}")


def _classify(model: AdaptiveModel, path: Path) -> dict[str, Any]:
    from device_sdk.image_sources import read_image

    answer = model(read_image(path, channels=model.bundle.manifest.preprocessing.channels))
    return {
        "image": str(path),
        "label": answer.labels[0],
        "confidence": float(answer.confidence[0]),
        "source": answer.source[0],
        "latency_ms": answer.latency_ms,
    }


def _accuracy(model: AdaptiveModel, dataset: ImageDataset, *, as_json: bool, batch: int = 64) -> float:
    right = 0
    with progress(as_json).task("run", len(dataset)) as task:
        for at in range(0, len(dataset), batch):
            answer = model(dataset.images[at : at + batch])
            right += int((answer.output.argmax(axis=1) == dataset.labels[at : at + batch]).sum())
            task.advance(len(answer.output))
    return right / len(dataset)


@click.command()
@_location_options
@click.option("--last", type=click.IntRange(min=1), default=20, show_default=True, help="How many events to show.")
def logs(bundle: Path, trust: Path | None, state: Path | None, last: int, as_json: bool) -> None:
    """Show what was decided about the plan on this device."""
    import msgspec

    from device_sdk.adaptation_log import read_log
    from device_sdk.bundle import Bundle
    from device_sdk.device_state import default_state_folder, log_path

    path = log_path(state or default_state_folder(), Bundle.open(bundle, trust=trust))
    lines = list(read_log(path))[-last:]
    text = "\n".join(f"{line.time}  {_one_line(msgspec.to_builtins(line.event))}" for line in lines)
    emit({"log": str(path), "events": msgspec.to_builtins(lines)}, as_json=as_json, text=text)


def _one_line(event: dict[str, Any]) -> str:
    shown = (f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}" for key, value in event.items())
    return "  ".join(shown)
