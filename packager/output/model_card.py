"""A bundle's model card: README.md with the front matter of the Hugging Face Hub, written from the manifest.

The card is informational and no part of the bundle. Its folder can be uploaded as it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from device_sdk.bundles.manifest import Manifest, Task, TaskKind
from device_sdk.data.kinds import kind_name
from device_sdk.files.atomic import storage_errors, write_atomically
from device_sdk.tasks.tokens import OUTSIDE
from packager.output.ownership import CARD, CARD_OPENS

# The Hub's names: classifiers by the kind of their samples, other tasks, and the metric that accuracy is there.
_CLASSIFIERS = {"image": "image", "text": "text", "sound": "audio", "tensor": "tabular"}
_TASKS: Mapping[TaskKind, str] = {
    "segmentation": "image-segmentation",
    "detection": "object-detection",
    "token_classification": "token-classification",
    "regression": "tabular-regression",
    "embedding": "feature-extraction",
}
_METRICS: Mapping[TaskKind, str] = {
    "classification": "accuracy",
    "segmentation": "pixel_accuracy",
    "detection": "detection_score",
    "multilabel": "f1",
    "regression": "relative_agreement",
    "embedding": "cosine_similarity",
}
_LICENCES = frozenset(
    {
        *("Apache-2.0", "MIT", "BSD-2-Clause", "BSD-3-Clause", "CC-BY-4.0", "CC-BY-SA-4.0", "CC0-1.0", "ISC", "Zlib"),
        *("CC-BY-NC-4.0", "MPL-2.0", "LGPL-3.0", "GPL-3.0", "AGPL-3.0", "OpenRAIL"),
    }
)
_CLASSES_SHOWN = 20


def write_card(folder: Path, manifest: Manifest) -> Path:
    """Write the card into a bundle's folder; returns its path.

    Raises:
        StorageError: the disk is full or the folder cannot be written.
    """
    path = folder / CARD
    with storage_errors(path):
        write_atomically(path, model_card(manifest).encode())
    return path


def model_card(manifest: Manifest) -> str:
    """The card's text, the same for the same manifest."""
    parts = (_front_matter(manifest), _opening(manifest), _accuracies(manifest), _use(manifest), _provenance(manifest))
    return "\n".join((*parts, *_notes(manifest)))


def _front_matter(manifest: Manifest) -> str:
    kind = manifest.task.kind
    classifier = f"{_CLASSIFIERS[kind_name(manifest.preprocessing)]}-classification"
    task, metric = _TASKS.get(kind, classifier), _metric(manifest.task)
    licence, licence_name = _licence(manifest.provenance.licence)
    metrics = manifest.metrics
    result = {
        "task": {"type": task},
        "dataset": {"type": "private", "name": metrics.data, "args": {"samples": metrics.samples}},
        "metrics": [{"type": metric, "value": round(metrics.original_accuracy, 6), "name": "full model"}],
    }
    named = [f"license_name: {_quoted(licence_name)}"] if licence_name else []
    lines = (
        f"license: {licence}",
        *named,
        f"pipeline_tag: {task}",
        "tags: [pathweave, onnx, on-device, early-exit]",
        f"model-index: {_quoted([{'name': manifest.name, 'results': [result]}])}",  # JSON is YAML
    )
    return CARD_OPENS + "\n".join(lines) + "\n---\n"


def _metric(task: Task) -> str:
    """The Hub's name of what the accuracies in the report are."""
    if task.kind == "token_classification":
        return "f1" if OUTSIDE in task.class_names else "accuracy"
    return _METRICS[task.kind]


def _licence(licence: str | None) -> tuple[str, str | None]:
    """The Hub's id of a licence, and its name where the Hub has no id for it."""
    if licence is None:
        return "unknown", None
    known = (
        licence if licence in _LICENCES else next((one for one in _LICENCES if one.lower() == licence.lower()), None)
    )
    return (known.lower(), None) if known else ("other", licence)


def _opening(manifest: Manifest) -> str:
    supernet, task = manifest.supernet(), manifest.task
    names = ", ".join(task.class_names[:_CLASSES_SHOWN])
    more = f" and {len(task.class_names) - _CLASSES_SHOWN} more" if len(task.class_names) > _CLASSES_SHOWN else ""
    shape = " × ".join(map(str, supernet.cut_points[0].tensors[0].shape))
    exits = f", {len(manifest.exits)} early exits" if manifest.exits else ""
    return (
        f"# {manifest.name}\n\n"
        f"A Pathweave bundle, version {manifest.version}, format {manifest.format_version}: {manifest.provenance.model}"
        f" as {len(manifest.blocks)} blocks{exits}. Each device measures them and runs those that suit it.\n\n"
        f"Task: {task.kind} of inputs {shape}, {len(task.class_names)} classes: {names}{more}.\n"
    )


def _accuracies(manifest: Manifest) -> str:
    metrics = manifest.metrics
    lines = [
        "## Accuracy",
        "",
        f"On {metrics.samples} samples of {metrics.data}, while packaging:",
        "",
        "| what runs | share of the full model's operations | accuracy |",
        "|---|---|---|",
        f"| the full model, unchanged | 100 % | {_percent(metrics.original_accuracy)} |",
    ]
    for found in sorted(metrics.range_accuracy, key=lambda one: -one.macs_ratio_high):
        share = f"{found.macs_ratio_low:.0%} to {found.macs_ratio_high:.0%}".replace("%", " %")
        lines.append(f"| mean of {found.subnets} sampled subnets | {share} | {_percent(found.accuracy)} |")
    lines += [f"| exit {one.id} | | {_percent(one.accuracy)} |" for one in manifest.exits if one.accuracy is not None]
    lines += [f"| member {one.name} | | {_percent(one.accuracy)} |" for one in manifest.members]
    return "\n".join(lines) + "\n"


def _use(manifest: Manifest) -> str:
    return (
        "## Use\n\n"
        "```python\n"
        "import pathweave\n"
        "from pathweave import Goal\n\n"
        f'with pathweave.open("{manifest.name}", trust="KEY.pub") as model:\n'
        "    model.adapt(images, Goal(latency_ms=10))\n"
        "    answer = model(images[0])\n"
        "```\n\n"
        "`trust` is the public key of the bundle's publisher; take it from them, not from this folder.\n"
    )


def _provenance(manifest: Manifest) -> str:
    provenance, metrics = manifest.provenance, manifest.metrics
    digest = provenance.weights_sha256
    lines = [
        "## Provenance",
        "",
        f"* Model: {provenance.source}",
        *([f"* Weights: sha256 `{digest}`"] if digest else []),
        f"* Licence: {provenance.licence or 'not stated by the model'}",
        f"* Training data of what was added: {provenance.training_data}; {metrics.distil_steps} steps of distillation,"
        f" {metrics.tune_steps} of tuning, {metrics.exit_steps} of exits. The model's own weights are unchanged.",
        f"* Largest difference between the blocks in ONNX Runtime and in torch: {metrics.max_abs_diff:.1e}",
        f"* Made by: {', '.join(f'{name} {version}' for name, version in provenance.tools.items())}",
    ]
    return "\n".join(lines) + "\n"


def _notes(manifest: Manifest) -> Iterator[str]:
    if manifest.notes:
        yield "## Notes\n\n" + "\n".join(f"* {note}" for note in manifest.notes) + "\n"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}".replace("%", " %")


def _quoted(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
