"""Builds the manifest of a bundle (docs/bundle_format.md) from the results of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import metadata

import msgspec
import torch

from device_sdk import __version__
from device_sdk.bundles.manifest import (
    FORMAT_VERSION,
    TASK_OUTPUTS,
    Manifest,
    Metrics,
    Onnx,
    Provenance,
    SelfTest,
    Task,
)
from device_sdk.policies.gathering import fit_temperature
from device_sdk.supernet.blocks import CutPoint, InputSize
from packager.assembly.validation import Validation
from packager.assembly.verified import Verified
from packager.exporting.onnx_exporter import IR_VERSION, OPSET
from packager.exporting.verification import SELF_TEST_BATCH, SELF_TEST_SEED
from packager.inputs.job import Job
from packager.output.bundle_folder import BundleWriter
from packager.renditions.rendition_set import RenditionSet
from packager.supernet.expansion import Expansion
from packager.training.phases import DISTIL, EXITS, TUNE

_CALIBRATED, _CALIBRATED_TOGETHER = 256, 8  # validation samples that the temperature is fitted to, and of a batch


def stored_manifest(
    job: Job,
    expansion: Expansion,
    kinds: Sequence[RenditionSet],
    sizes: Sequence[InputSize],
    verified: Verified,
    validated: Validation,
    steps_done: Mapping[str, int],
    writer: BundleWriter,
) -> Manifest:
    """Store all blobs and build the manifest.

    Args:
        sizes: input sizes besides the model's own.
        steps_done: training steps by phase.
    """
    for data in job.model.blobs.values():
        writer.add_blob(data)
    stored = [kind.stored(writer) for kind in kinds]
    renditions = {part: [kind[part] for kind in stored if part in kind] for part in stored[0]}
    return Manifest(
        format_version=FORMAT_VERSION,
        name=job.name,
        version=job.version,
        task=Task(
            kind=job.task.kind,
            class_names=job.training.class_names,
            output=TASK_OUTPUTS[job.task.kind],
            class_ids=job.model.class_ids,
        ),
        preprocessing=job.model.preprocessing,
        cut_points=_quantised(expansion.cut_points, kinds),
        blocks=tuple(
            block.described(renditions[block.id], distillation_error=verified.distillation_errors.get(block.id))
            for block in expansion.blocks
        ),
        exits=tuple(
            exit_.described(renditions[exit_.id], accuracy=validated.exit_accuracy[exit_.id])
            for exit_ in expansion.exits
        ),
        input_sizes=tuple(sizes),
        onnx=Onnx(ir_version=IR_VERSION, opset=max(OPSET, *(kind.opset or OPSET for kind in kinds))),
        self_test=SelfTest(seed=SELF_TEST_SEED, batch=SELF_TEST_BATCH, original=verified.original_golden),
        metrics=_metrics(job, steps_done, verified, validated),
        provenance=_provenance(job),
        notes=(*expansion.notes, *(note for kind in kinds for note in kind.notes)),
        shared_sizes=writer.sizes_of(name for kind in stored for one in kind.values() for name in one.shared),
    )


def _metrics(job: Job, steps_done: Mapping[str, int], verified: Verified, validated: Validation) -> Metrics:
    return Metrics(
        data=job.validation_reference,
        samples=validated.samples,
        original_accuracy=validated.original_accuracy,
        range_accuracy=validated.range_accuracy,
        max_abs_diff=verified.max_abs_diff,
        distil_steps=steps_done[DISTIL],
        tune_steps=steps_done[TUNE],
        exit_steps=steps_done[EXITS],
        temperature=_temperature(job),
    )


def _temperature(job: Job) -> float | None:
    """The temperature of the model's logits on validation samples; None for other tasks than classification."""
    if job.task.kind != "classification":
        return None
    images, labels = job.held_out(_CALIBRATED)
    with torch.no_grad():
        logits = torch.cat([job.model.module(some) for some in images.split(_CALIBRATED_TOGETHER)])
    return round(fit_temperature(logits.float().numpy(), labels.numpy()), 4)


def _quantised(cuts: Sequence[CutPoint], kinds: Sequence[RenditionSet]) -> tuple[CutPoint, ...]:
    """The cut points, their tensors with the quantisation of int8 renditions: a tap's wherever it is live."""
    quantization = next((kind.quantization for kind in kinds if kind.quantization), {})
    by_name = {cuts[index].tensors[0].name: found for index, found in quantization.items()}
    return tuple(
        CutPoint(
            cut.index,
            tuple(msgspec.structs.replace(spec, quantization=by_name.get(spec.name)) for spec in cut.tensors),
            cut.mandatory,
        )
        for cut in cuts
    )


def _provenance(job: Job) -> Provenance:
    return Provenance(
        model=job.model.name,
        source=job.model.source,
        licence=job.model.licence,
        weights_sha256=job.weights_sha256,
        training_data=job.training_reference,
        recipe=job.recipe.choices(),
        tools={"pathweave": __version__} | {name: metadata.version(name) for name in ("torch", "onnx", "onnxruntime")},
    )
