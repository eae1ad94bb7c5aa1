"""Using the plan: ``pathweave run`` and ``logs``."""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from device_sdk.commands.command_line import emit, progress
from device_sdk.commands.command_options import (
    ChosenTrust,
    bundle_options,
    load_data,
    location_options,
    open_model,
    privacy_option,
    require_permission,
    server_model_option,
    token_option,
)
from device_sdk.commands.found_in_samples import found_in, found_text
from device_sdk.errors import DataError, RefusedError, TransferError, UsageError
from device_sdk.session.answer import ABSTAINED, SUBNET

if TYPE_CHECKING:
    from device_sdk.data.kinds import LabelledSamples
    from device_sdk.data.targets import TargetDataset
    from device_sdk.offload.remote_model import Privacy, RemoteModel
    from device_sdk.session.adaptive_model import AdaptiveModel
    from device_sdk.tasks import AnswerTask

_BATCH = 64


@click.command()
@bundle_options
@click.argument("images", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--data", help="Labelled images instead: a folder or zip with class folders, a CSV list …; perhaps #part."
)
@click.option("--limit", type=click.IntRange(min=1), help="Use at most this many images of --data.")
@click.option("--server", help="URL of a server that answers hard samples, or runs the tail of a split plan.")
@server_model_option
@privacy_option
@click.option("--timeout-s", type=click.FloatRange(min=0, min_open=True), default=1.0, show_default=True)
@click.option(
    "--deadline-ms",
    type=click.FloatRange(min=0, min_open=True),
    help="Answer each image within this time, by an earlier exit if need be; no server is asked.",
)
def run(
    bundle: str,
    trust: ChosenTrust,
    token: str | None,
    threads: int,
    homes: tuple[str, ...],
    state: Path | None,
    images: tuple[Path, ...],
    data: str | None,
    limit: int | None,
    server: str | None,
    server_model: str | None,
    privacy: Privacy,
    timeout_s: float,
    deadline_ms: float | None,
    as_json: bool,
) -> None:
    """Classify files (IMAGES, or .txt, .wav or .npy), or measure the accuracy on --data, with the plan in use."""
    from device_sdk.data.kinds import IMAGE, kind_name
    from device_sdk.offload.remote_model import IMAGES, RemoteModel

    if bool(images) == (data is not None):
        raise UsageError("give image files or --data, one of them")
    require_permission(server, privacy, "activations")
    if server is not None and deadline_ms is not None:
        raise UsageError("with --deadline-ms no server is asked", hint="give --server or --deadline-ms, one of them")
    with open_model(
        bundle, trust=trust, token=token, threads=threads, homes=homes, state=state, as_json=as_json
    ) as model:
        if server is not None:
            images_only = kind_name(model.bundle.manifest.preprocessing) == IMAGE
            own = f"{model.bundle.manifest.name}{IMAGES if images_only else ''}"
            for name in [server_model] if server_model else model.plan.server_models or [own]:
                remote = RemoteModel(server=server, model=name, token=token, privacy=privacy, timeout_s=timeout_s)
                _require_model(remote)
                model.remote.connect(remote)
        if data is None:
            _run_files(model, images, deadline_ms, as_json=as_json)
            return
        dataset = load_data(model, data, limit=limit, as_json=as_json)
        result = {"plan": str(model.plan.subnet), **_evaluate(model, dataset, deadline_ms, as_json=as_json)}
    emit(result, as_json=as_json, text=lambda: _print_evaluation(result))


def _run_files(model: AdaptiveModel, images: tuple[Path, ...], deadline_ms: float | None, *, as_json: bool) -> None:
    """Print an answer for each file; those that cannot be read come last, as an error."""
    answers, broken = [], []
    for path in images:
        try:
            answers.append(_classify(model, path, deadline_ms))
        except DataError as error:
            if len(images) == 1:
                raise
            broken.append(str(error))
    text = "\n".join(f"{a['image']}: {found_text(a['found']) if 'found' in a else _said(a)}" for a in answers)
    emit({"plan": str(model.plan.subnet), "answers": answers, "unread": broken}, as_json=as_json, text=text)
    if broken:
        for reason in broken:
            click.echo(f"error: {reason}", err=True)
        raise SystemExit(1)


def _require_model(remote: RemoteModel) -> None:
    """Raise UsageError where the server answers that it has no such model; one that does not answer may come back."""
    from device_sdk.offload.client import InferenceClient
    from device_sdk.offload.remote_calls import default_transport

    with contextlib.closing(default_transport(remote)) as transport:
        try:
            InferenceClient(remote.server, remote.model, transport).metadata(remote.timeout_s)
        except RefusedError as error:
            if error.status != 404:
                raise
            raise UsageError(
                f"{remote.server} has no model {remote.model}", hint="name one that it has with --server-model"
            ) from error
        except TransferError as error:
            click.echo(f"warning: {error}; samples are answered here until the server does", err=True)


def _said(answer: dict[str, Any]) -> str:
    if np.isnan(answer["confidence"]):
        return "no answer (its logits are not numbers)"
    return f"{answer['label'] or 'no answer'} ({answer['confidence']:.1%})"


def _classify(model: AdaptiveModel, path: Path, deadline_ms: float | None) -> dict[str, Any]:
    from device_sdk.data.kinds import KINDS, kind_name, preparer_of

    manifest = model.bundle.manifest
    task, preprocessing = manifest.task, manifest.preprocessing
    sample = KINDS[kind_name(preprocessing)].read(path, preprocessing)
    answer = model(sample, deadline_ms=deadline_ms)
    if task.kind != "classification":
        preparer = preparer_of(preprocessing, manifest.cut_points[0].tensors[0].shape, model.bundle.read_blob)
        found = found_in(answer, sample, preparer)
        return {"image": str(path), "found": found, "source": answer.source[0], "latency_ms": answer.latency_ms}
    return {
        "image": str(path),
        "label": answer.labels[0],
        "confidence": float(answer.confidence[0]),
        "source": answer.source[0],
        "latency_ms": answer.latency_ms,
    }


def _evaluate(
    model: AdaptiveModel, dataset: LabelledSamples | TargetDataset, deadline_ms: float | None, *, as_json: bool
) -> dict[str, Any]:
    from device_sdk.tasks import answer_task

    task = answer_task(model.bundle.manifest.task)
    return _right(model, dataset, deadline_ms, as_json) if task.classifies else _score(model, dataset, task, as_json)


def _score(
    model: AdaptiveModel, dataset: LabelledSamples | TargetDataset, task: AnswerTask, as_json: bool
) -> dict[str, Any]:
    """The score of a task whose answers are no classes."""
    outputs = []
    with progress(as_json).task("run", len(dataset)) as shown:
        for at in range(0, len(dataset), _BATCH):
            outputs.append(model(dataset.samples[at : at + _BATCH]).output)
            shown.advance(len(outputs[-1]))
    targets = task.checked(dataset.labels, len(dataset))
    return {"samples": len(dataset), "score": task.of(np.concatenate(outputs), targets), "score_name": task.name}


def _right(
    model: AdaptiveModel, dataset: LabelledSamples | TargetDataset, deadline_ms: float | None, as_json: bool
) -> dict[str, Any]:
    right = 0
    batch = _BATCH if deadline_ms is None else 1
    sources: Counter[str] = Counter()
    with progress(as_json).task("run", len(dataset)) as task:
        for at in range(0, len(dataset), batch):
            answer = model(dataset.samples[at : at + batch], deadline_ms=deadline_ms)
            answered = np.array([label is not None for label in answer.labels])
            right += int((answered & (answer.output.argmax(axis=1) == dataset.labels[at : at + batch])).sum())
            sources.update(source if has else ABSTAINED for source, has in zip(answer.source, answered, strict=True))
            task.advance(len(answer.output))
    answered_count = len(dataset) - sources[ABSTAINED]
    return {
        "samples": len(dataset),
        "accuracy": right / answered_count if answered_count else None,
        "coverage": answered_count / len(dataset),
        "sources": {source: count for source, count in sources.most_common() if count},
    }


def _print_evaluation(result: dict[str, Any]) -> None:
    if "score" in result:
        click.echo(f"{result['score_name']} {result['score']:.3f} on {result['samples']} samples with {result['plan']}")
        return
    answered = round(result["coverage"] * result["samples"])
    share = "none" if result["accuracy"] is None else f"{result['accuracy']:.2%}"
    click.echo(f"{share} of {answered} right with {result['plan']}")
    if set(result["sources"]) != {SUBNET}:
        shares = (f"{source} {count / result['samples']:.1%}" for source, count in result["sources"].items())
        click.echo("answered by " + ", ".join(shares))


@click.command()
@location_options
@click.option("--last", type=click.IntRange(min=1), default=20, show_default=True, help="How many events to show.")
@click.option(
    "--upload", metavar="URL", help="Send the whole log to this server instead. Repeating it stores no event twice."
)
@token_option
def logs(
    bundle: str, trust: ChosenTrust, state: Path | None, last: int, upload: str | None, token: str | None, as_json: bool
) -> None:
    """Show this device's adaptation log, or send it to a server."""
    import msgspec

    from device_sdk.logs.adaptation_log import read_log
    from device_sdk.session.device_state import default_state_folder, device_id, log_path
    from device_sdk.session.opening import bundle_at

    folder = state or default_state_folder()
    path = log_path(folder, bundle_at(bundle, trust=trust, state_folder=folder))
    if upload is not None:
        from device_sdk.delivery.log_upload import upload_log
        from device_sdk.transports import make_transport

        with contextlib.closing(make_transport(upload, token=token)) as transport:
            sent = upload_log(path, upload, transport, device=device_id(folder), progress=progress(as_json))
        summary = {"accepted": sent.accepted, "duplicates": sent.duplicates}
        emit(summary, as_json=as_json, text=f"{sent.accepted} new events, {sent.duplicates} were there already")
        return
    lines = list(read_log(path))[-last:]
    text = "\n".join(f"{line.time}  {_one_line(msgspec.to_builtins(line.event))}" for line in lines)
    emit({"log": str(path), "events": msgspec.to_builtins(lines)}, as_json=as_json, text=text)


def _one_line(event: dict[str, Any]) -> str:
    shown = (f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}" for key, value in event.items())
    return "  ".join(shown)
