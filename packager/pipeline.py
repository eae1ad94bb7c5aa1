"""``package(…)``: a pretrained model becomes a signed bundle. Read it top to bottom; each step is a module.

trace → expand → train (distil, tune, exits) → export → verify → validate → write and sign
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from device_sdk import __version__
from device_sdk.atomic import write_atomically
from device_sdk.bundles import signing
from device_sdk.bundles.bundle import MANIFEST, SIGNATURE, Bundle
from device_sdk.bundles.manifest import FORMAT_VERSION, Manifest, Metrics, Onnx, Provenance, SelfTest, Task
from device_sdk.data.datasets import ImageDataset
from device_sdk.data.preprocessing import prepare
from device_sdk.errors import DataError, PathweaveError, UsageError
from device_sdk.graph import Golden, Rendition
from device_sdk.progress import Progress, SilentProgress
from packager.batches import BatchSource
from packager.branch_weights import BranchWeights, load_branches, write_branches
from packager.bundle_writer import BundleWriter
from packager.checkpoints import Checkpoints, encode_description, require_same_run
from packager.errors import PackagingError, ResumeError
from packager.exits import attach_exits, without_untrained_exits
from packager.expansion import expand
from packager.export import IR_VERSION, OPSET, ExportedBlocks, export_blocks
from packager.model_loader import LoadedModel
from packager.phases import DISTIL, EXITS, TUNE, distillation_errors
from packager.recipe import Recipe
from packager.tracing import trace
from packager.training import Trainer
from packager.validation import Validation, validate
from packager.verification import SELF_TEST_BATCH, SELF_TEST_SEED, Verifier

REPORT = "packaging.json"  # beside the manifest: how the bundle was made and how long it took; not part of it
_EXAMPLES = 64  # real samples that describe the cut points and check the original path


@dataclass(frozen=True)
class Job:
    """What to package: the model, its data, the recipe and how the bundle is called.

    ``training`` and ``validation`` carry the reference that the caller used for them.
    """

    model: LoadedModel
    training: ImageDataset
    training_reference: str
    validation: ImageDataset
    validation_reference: str
    recipe: Recipe
    name: str
    version: int = 1
    weights_sha256: str | None = None
    branch_weights: BranchWeights | None = None

    def description(self) -> dict[str, Any]:
        """Everything that the bundle depends on: two jobs with equal descriptions make the same bundle."""
        return {
            "name": self.name,
            "version": self.version,
            "model": self.model.name,
            "module": _module_digest(self.model.module),
            "weights": self.weights_sha256,
            "training data": _digest(self.training),
            "validation data": _digest(self.validation),
            "recipe": self.recipe.choices(),
            "branch weights": _tensors_digest(self.branch_weights or {}),
            "pathweave": __version__,
        }


@dataclass(frozen=True)
class Packaged:
    """A finished bundle. ``seconds`` counts interrupted runs as well; ``fresh`` is False if it was there already."""

    folder: Path
    manifest: Manifest
    seconds: float
    fresh: bool


def package(
    job: Job,
    out: Path,
    *,
    private_key: Path | None = None,
    restart: bool = False,
    save_branches: Path | None = None,
    progress: Progress | None = None,
) -> Packaged:
    """Turn a job into a bundle in the folder ``out``; ``save_branches``: a file for the weights of what was added.

    A run that is killed at any point goes on from its last saved state when it is called again with the same job; its
    work lies in ``<out>.work``. With ``recipe.steps`` the bundle depends on nothing but the job.

    Raises:
        TraceError, TrainingError, VerificationError: the model cannot be packaged (kinds of PackagingError).
        DataError: the model does not answer with one number per class of the data.
        ResumeError: ``out`` or its work folder belongs to another run.
        SignatureError: the key cannot be used.
        StorageError: the disk is full.
    """
    progress = progress or SilentProgress()
    if not out.name:
        raise UsageError(f"{out} cannot be the folder of a bundle", hint="name a folder that packaging may make")
    if private_key is not None:
        signing.sign(b"", private_key=private_key)  # a key that cannot sign is told now, not after the training
    description = job.description()
    if restart:
        _clear(out)
    elif out.exists():
        return _already_there(out, description, private_key=private_key)
    checkpoints = Checkpoints(_work_folder(out), description)
    with _step(progress, "trace and expand"):
        examples = _prepared(job, count=_EXAMPLES)
        traced = trace(job.model.module, torch.from_numpy(examples), gamma=job.recipe.gamma)
        _require_logits(traced.tensors[-1].shape, job.training.class_names)
        expansion = expand(traced, max_span=job.recipe.max_span)
        expansion = attach_exits(expansion, count=job.recipe.exit_positions)
        if job.branch_weights is not None:
            load_branches(expansion, job.branch_weights)
    checkpoints.begin()
    trainer = Trainer(expansion, _batches(job), job.recipe, checkpoints, progress)
    trainer.train()
    if save_branches is not None:
        write_branches(expansion, save_branches)
    if job.branch_weights is None:
        expansion = without_untrained_exits(expansion, steps=trainer.steps_done[EXITS])
    with _step(progress, "export"):
        exported = export_blocks(expansion)
    with _step(progress, "verify"):
        verified = _verify(exported, examples, seed=job.recipe.seed)
    with _step(progress, "validate"):
        validated = _validate(job, exported)
    with _step(progress, "write"), BundleWriter(out) as writer:
        metrics = _metrics(job, trainer, verified, validated)
        manifest = _manifest(job, exported, verified, validated, metrics, writer)
        writer.add_note(REPORT, encode_description(description | {"seconds": checkpoints.seconds}))
        writer.finish(manifest, private_key=private_key)
    checkpoints.remove()
    return Packaged(out, manifest, checkpoints.seconds, fresh=True)


def _work_folder(out: Path) -> Path:
    return out.with_name(f"{out.name}.work")


def _clear(out: Path) -> None:
    """Forget unfinished work, and a finished bundle if that is what ``out`` is."""
    if out.exists() and not (out / MANIFEST).exists():
        raise PackagingError(f"{out} exists and is not a bundle", hint="choose another --out folder")
    shutil.rmtree(_work_folder(out), ignore_errors=True)


def _already_there(out: Path, description: Mapping[str, Any], *, private_key: Path | None) -> Packaged:
    """The bundle that an earlier run of the same job has finished, or an error: nothing is overwritten unasked.

    A key that was not given then signs it now.
    """
    if not (out / REPORT).exists():
        raise PackagingError(
            f"{out} already exists", hint="choose another --out folder, or add --restart to replace it"
        )
    require_same_run(out / REPORT, description)
    try:
        bundle = Bundle.open(out)
        bundle.verify()
    except PathweaveError as error:
        raise ResumeError(f"{out} is damaged: {error}", hint="add --restart to package it again") from error
    if private_key is not None:
        _sign_again(out, private_key)
    shutil.rmtree(_work_folder(out), ignore_errors=True)  # left by a run that was killed just before its end
    seconds = json.loads((out / REPORT).read_bytes())["seconds"]
    return Packaged(out, bundle.manifest, seconds, fresh=False)


def _sign_again(out: Path, private_key: Path) -> None:
    signature = signing.sign((out / MANIFEST).read_bytes(), private_key=private_key)
    if not (out / SIGNATURE).exists() or (out / SIGNATURE).read_bytes() != signature:
        write_atomically(out / SIGNATURE, signature)


def _require_logits(shape: tuple[int, ...], class_names: tuple[str, ...]) -> None:
    if shape != (len(class_names),):
        raise DataError(
            f"the model answers with {'×'.join(map(str, shape))} numbers, the data has {len(class_names)} classes",
            hint="a classifier gives one logit per class, in the order of the class folders' names",
        )


@contextmanager
def _step(progress: Progress, name: str) -> Iterator[None]:
    with progress.task(name, 1) as task:
        yield
        task.advance()


def _module_digest(module: nn.Module) -> str:
    """Layers and weights, so that a model that changes under its name is another one."""
    layers = [(name, type(layer).__qualname__) for name, layer in module.named_modules()]
    return hashlib.sha256(f"{layers}{_tensors_digest(module.state_dict())}".encode()).hexdigest()


def _tensors_digest(tensors: Mapping[str, torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for name, tensor in tensors.items():
        digest.update(name.encode() + tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _digest(dataset: ImageDataset) -> str:
    digest = hashlib.sha256(repr((dataset.images.shape, dataset.class_names)).encode())
    digest.update(dataset.images.data)
    digest.update(dataset.labels.tobytes())
    return digest.hexdigest()


def _batches(job: Job) -> BatchSource:
    recipe = job.recipe
    return BatchSource(
        job.training,
        job.model.preprocessing,
        batch=recipe.batch,
        seed=recipe.seed,
        flip=recipe.flip,
        crop=recipe.crop,
        variants=recipe.variants,
    )


def _prepared(job: Job, *, count: int | None = None) -> npt.NDArray[np.float32]:
    """Validation images as the model takes them, [count, *input]; spread evenly when only some are wanted."""
    images = job.validation.images
    if count is not None:
        images = images[np.linspace(0, len(images) - 1, min(count, len(images)), dtype=np.int64)]
    return prepare(images, job.model.preprocessing, input_shape=job.model.input_shape)


@dataclass(frozen=True)
class _Verified:
    golden: Mapping[str, Golden]  # of blocks and exits, by their ids
    original_golden: Golden
    max_abs_diff: float
    distillation_errors: Mapping[str, float]


def _verify(exported: ExportedBlocks, examples: npt.NDArray[np.float32], *, seed: int) -> _Verified:
    verifier = Verifier(exported)
    golden = {block.id: verifier.block_golden(block.id) for block in exported.expansion.blocks}
    golden |= {exit_.id: verifier.exit_golden(exit_.id) for exit_ in exported.expansion.exits}
    verifier.sampled_subnets(seed=seed)
    samples = torch.from_numpy(examples)
    return _Verified(
        golden=golden,
        original_golden=verifier.original_golden(),
        max_abs_diff=verifier.original_difference(samples),
        distillation_errors=distillation_errors(exported.expansion, samples),
    )


def _validate(job: Job, exported: ExportedBlocks) -> Validation:
    labels = job.validation.labels
    return validate(exported, _prepared(job), labels, seed=job.recipe.seed, threads=torch.get_num_threads())


def _metrics(job: Job, trainer: Trainer, verified: _Verified, validated: Validation) -> Metrics:
    return Metrics(
        data=job.validation_reference,
        samples=len(job.validation),
        original_accuracy=validated.original_accuracy,
        range_accuracy=validated.range_accuracy,
        max_abs_diff=verified.max_abs_diff,
        distil_steps=trainer.steps_done[DISTIL],
        tune_steps=trainer.steps_done[TUNE],
        exit_steps=trainer.steps_done[EXITS],
    )


def _manifest(
    job: Job,
    exported: ExportedBlocks,
    verified: _Verified,
    validated: Validation,
    metrics: Metrics,
    writer: BundleWriter,
) -> Manifest:
    """Store all blobs and describe the bundle."""
    expansion = exported.expansion
    renditions = _renditions(exported, verified, writer)
    return Manifest(
        format_version=FORMAT_VERSION,
        name=job.name,
        version=job.version,
        task=Task(kind="classification", class_names=job.training.class_names),
        preprocessing=job.model.preprocessing,
        cut_points=expansion.cut_points,
        blocks=tuple(
            block.described([renditions[block.id]], distillation_error=verified.distillation_errors.get(block.id))
            for block in expansion.blocks
        ),
        exits=tuple(
            exit_.described([renditions[exit_.id]], accuracy=validated.exit_accuracy[exit_.id])
            for exit_ in expansion.exits
        ),
        onnx=Onnx(ir_version=IR_VERSION, opset=OPSET),
        self_test=SelfTest(seed=SELF_TEST_SEED, batch=SELF_TEST_BATCH, original=verified.original_golden),
        metrics=metrics,
        provenance=_provenance(job),
        notes=expansion.notes,
    )


def _renditions(exported: ExportedBlocks, verified: _Verified, writer: BundleWriter) -> dict[str, Rendition]:
    """Store all blobs; returns the rendition of each block and exit, by its id."""
    shared = {name: writer.add_blob(data) for name, data in exported.shared.items()}
    return {
        name: Rendition(
            name="fp32",
            runtime="onnxruntime",
            blob=writer.add_blob(data),
            size_bytes=len(data),
            golden=verified.golden[name],
            shared=tuple(shared[needed] for needed in exported.needs[name]),
            opset=OPSET,
        )
        for name, data in exported.own.items()
    }


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
