"""A model repository for Triton and KServe: the models that a bundle offers for tensors, each as one ONNX model.

REPOSITORY/NAME/config.pbtxt, REPOSITORY/NAME/labels.txt and REPOSITORY/NAME/VERSION/model.onnx, as Triton's "Model
Repository" and "Model Configuration" describe them. Images, JPEGs and tails are not exported: they need this server's
preprocessing and packets.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from device_sdk.bundles.bundle import Bundle
from device_sdk.errors import UsageError
from device_sdk.files.atomic import make_folder, write_atomically
from device_sdk.fragments import protobuf
from device_sdk.fragments.composition import compose
from server.inference.offers import OfferedModel, OfferedTensor, offered, offers

MAX_BATCH, QUEUE_DELAY_MS = 32, 2.0
ORIGIN = "pathweave.json"  # in a version's folder: the bundle that its model comes from
_MODEL, _CONFIG, _LABELS = "model.onnx", "config.pbtxt", "labels.txt"
_NODE, _NODE_INPUT, _NODE_OUTPUT, _NODE_OPERATOR = 1, 1, 2, 4  # field numbers of onnx.proto
_TYPES = {
    "FP32": "TYPE_FP32",
    "FP16": "TYPE_FP16",
    "INT64": "TYPE_INT64",
    "INT32": "TYPE_INT32",
    "INT8": "TYPE_INT8",
    "UINT8": "TYPE_UINT8",
    "BOOL": "TYPE_BOOL",
}


@dataclass(frozen=True)
class Batching:
    """Triton's dynamic batching: of at most ``max_batch`` rows, for which a request waits up to ``queue_delay_ms``.

    Raises:
        UsageError: a batch below 1, or a negative delay.
    """

    max_batch: int = MAX_BATCH
    queue_delay_ms: float = QUEUE_DELAY_MS

    def __post_init__(self) -> None:
        if self.max_batch < 1:
            raise UsageError(f"the largest batch is {self.max_batch}; it must be at least 1")
        if not 0 <= self.queue_delay_ms < float("inf"):
            raise UsageError(f"the queue's delay is {self.queue_delay_ms:g} ms; it must not be negative")


@dataclass(frozen=True)
class Exported:
    """A model in the repository. ``new``: its version was not there; ``config_kept``: another configuration was."""

    name: str
    version: str
    folder: Path
    model_bytes: int
    new: bool
    config_kept: bool


def write_repository(
    bundle: Bundle,
    repository: Path,
    *,
    paths: Sequence[str] = (),
    batching: Batching | None = None,
    replace_config: bool = False,
) -> list[Exported]:
    """Write the bundle's full model, or the models of ``paths`` as they are named (NAME@PATH), into ``repository``.

    Versions that are there stay. A version is complete before Triton sees its folder's model; its configuration and
    labels are written first. A configuration that differs is kept, unless ``replace_config``.

    Raises:
        UsageError: the bundle offers no such model, or the repository has this version from another bundle.
        BundleError, StorageError: a blob does not verify; a file cannot be written.
    """
    models = [_named(bundle, path) for path in paths] or [one for one in offers(bundle) if one.takes_tensors]
    if not models:
        raise UsageError(f"{bundle.manifest.name} offers no model for tensors")
    return [_write(one, repository, batching or Batching(), replace_config=replace_config) for one in models]


def _named(bundle: Bundle, path: str) -> OfferedModel:
    name = path if path.startswith(bundle.manifest.name) else f"{bundle.manifest.name}@{path}"
    found = offered(bundle, name)
    if found is None or not found.takes_tensors:
        raise UsageError(f"{bundle.manifest.name} offers no model {name} for tensors")
    return found


def _write(model: OfferedModel, repository: Path, batching: Batching, *, replace_config: bool) -> Exported:
    folder = repository / model.name
    version = folder / model.version
    origin = json.dumps({"bundle": model.bundle.digest, "model": model.name}, indent=1).encode() + b"\n"
    known, path = version / ORIGIN, version / _MODEL
    if known.exists() and known.read_bytes() != origin:
        raise UsageError(f"{version} comes from another bundle", hint="export to another folder, or remove that one")
    data = None if path.exists() else onnx_of(model)  # refused before anything is written
    config, kept = config_of(model, batching).encode(), folder / _CONFIG
    differs = kept.exists() and kept.read_bytes() != config
    make_folder(version)
    if not differs or replace_config:
        write_atomically(kept, config)
    if labels := _labels(model):
        write_atomically(folder / _LABELS, "".join(f"{name}\n" for name in labels).encode())
    write_atomically(known, origin)
    if data is not None:
        write_atomically(path, data)
    kept_config = differs and not replace_config
    return Exported(model.name, model.version, version, path.stat().st_size, data is not None, kept_config)


def onnx_of(model: OfferedModel) -> bytes:
    """The model's path as one ONNX model whose inputs and outputs have the names of the protocol.

    Raises:
        BundleError: as ``Bundle.stretch`` and ``compose``.
    """
    stretch = model.bundle.stretch(model.edges)
    named_inputs = list(zip(stretch.inputs, model.inputs, strict=True))
    named_outputs = list(zip(stretch.outputs, model.outputs, strict=True))
    before = b"".join(_renaming(public.name, tensor.name) for tensor, public in named_inputs)
    after = b"".join(_renaming(tensor.name, public.name) for tensor, public in named_outputs)
    return compose(
        dataclasses.replace(
            stretch,
            fragments=(before, *stretch.fragments, after),
            inputs=tuple(msgspec.structs.replace(one, name=public.name) for one, public in named_inputs),
            outputs=tuple(msgspec.structs.replace(one, name=public.name) for one, public in named_outputs),
            owners=("", *stretch.owners, "") if stretch.owners else (),
        )
    )


def _renaming(before: str, after: str) -> bytes:
    """A fragment with one node that gives a tensor its other name; an empty one for the same name."""
    if before == after:
        return b""
    node = protobuf.text_field(_NODE_INPUT, before) + protobuf.text_field(_NODE_OUTPUT, after)
    return protobuf.bytes_field(_NODE, node + protobuf.text_field(_NODE_OPERATOR, "Identity"))


def config_of(model: OfferedModel, batching: Batching) -> str:
    """Triton's configuration of a model (``ModelConfig`` in model_config.proto, as text)."""
    return "\n".join(
        [
            f"name: {_quoted(model.name)}",
            'platform: "onnxruntime_onnx"',
            f"max_batch_size: {batching.max_batch}",
            *_tensors("input", model.inputs),
            *_tensors("output", model.outputs, labels=bool(_labels(model))),
            "dynamic_batching {",
            f"  max_queue_delay_microseconds: {round(1000 * batching.queue_delay_ms)}",
            "}",
            "version_policy { all { } }",
            "",
        ]
    )


def _tensors(kind: str, tensors: Sequence[OfferedTensor], *, labels: bool = False) -> Iterator[str]:
    for tensor in tensors:
        dims = ", ".join(map(str, tensor.shape[1:]))  # Triton adds the batch axis
        yield f"{kind} {{"
        yield f"  name: {_quoted(tensor.name)}"
        yield f"  data_type: {_TYPES[tensor.datatype]}"
        yield f"  dims: [ {dims} ]"
        if labels:
            yield f'  label_filename: "{_LABELS}"'
        yield "}"


def _labels(model: OfferedModel) -> tuple[str, ...]:
    """The classes of a model with one output of a value per class; lines of a file, so none with a line break."""
    names = tuple(model.bundle.manifest.task.class_names)
    fits = len(model.outputs) == 1 and model.outputs[0].shape[1:] == (len(names),)
    return names if fits and all(name == " ".join(name.split()) for name in names) else ()


def _quoted(text: str) -> str:
    return json.dumps(text)  # protobuf's text format has the same escapes
