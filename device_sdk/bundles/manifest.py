"""manifest.json: its types. ``manifest_reading`` reads it from untrusted bytes.

The schema in docs/bundle_format.md is generated from these types. Unknown fields are ignored, missing ones refused.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from device_sdk.data.kinds import KINDS, decode_preprocessing
from device_sdk.data.preprocessing import AnyPreprocessing
from device_sdk.supernet.blocks import Block, CutPoint, Exit, Golden, InputSize, Member
from device_sdk.supernet.plan import Edge, Subnet
from device_sdk.supernet.supernet import Supernet

FORMAT_VERSION = "1.9"
BlobBytes = Annotated[int, msgspec.Meta(ge=0, le=2**31)]


TaskKind = Literal[
    "classification", "segmentation", "detection", "multilabel", "regression", "embedding", "token_classification"
]
TaskOutput = Literal["logits", "cells", "values", "vector"]
TASK_OUTPUTS: dict[TaskKind, TaskOutput] = {
    "classification": "logits",
    "segmentation": "logits",
    "detection": "cells",
    "multilabel": "logits",
    "regression": "values",
    "embedding": "vector",
    "token_classification": "logits",
}
"""The meaning of the output of each kind of task."""


class Task(msgspec.Struct, frozen=True):
    """Task of the model: its kind, its classes and the meaning of its output.

    classification, ``logits``: [batch, classes]. segmentation, ``logits``: [batch, classes, height, width]. detection,
    ``cells``: [batch, classes + 4, rows, columns]: logits of each class, then logarithms of the distances from the
    cell's centre to the left, top, right and bottom side of its box, in shares of the image. multilabel, ``logits``:
    [batch, classes], of labels that are there above 0. regression, ``values``: [batch, classes], of which the class
    names are the names. embedding, ``vector``: [batch, values], without classes. token_classification, ``logits``:
    [batch, classes, tokens], all equal at a token that a text does not have.

    ``class_ids``: further names of each class, such as WordNet ids, that image folders may use; empty: none.
    """

    kind: TaskKind
    class_names: tuple[str, ...]
    output: TaskOutput = "logits"
    class_ids: tuple[tuple[str, ...], ...] = ()


class Onnx(msgspec.Struct, frozen=True):
    """IR and operator set version of all ONNX fragments."""

    ir_version: Annotated[int, msgspec.Meta(ge=1)]
    opset: Annotated[int, msgspec.Meta(ge=1)]


class SelfTest(msgspec.Struct, frozen=True):
    """Seed and batch of the golden inputs, and the original path's expected output for the one at cut point 0."""

    seed: int
    batch: Annotated[int, msgspec.Meta(ge=1, le=1024)]
    original: Golden


class PublicNames(msgspec.Struct, frozen=True):
    """Public names of the tensors at the first and the last cut point."""

    inputs: tuple[str, ...] = ("input",)
    outputs: tuple[str, ...] = ("logits",)


class MacsRangeAccuracy(msgspec.Struct, frozen=True):
    """Mean accuracy of sampled subnets whose MACs lie in a range, relative to the original path (AdaptiveNet §4.2)."""

    macs_ratio_low: float
    macs_ratio_high: float
    accuracy: float
    subnets: int


class Metrics(msgspec.Struct, frozen=True):
    """The packager's validation results, on the part named in ``data``.

    ``temperature``: since 1.9, that by which a classifier's logits are divided for its probabilities to be right on
    these samples; None where it was not fitted.
    """

    data: str
    samples: int
    original_accuracy: float
    range_accuracy: tuple[MacsRangeAccuracy, ...]
    max_abs_diff: float
    distil_steps: int
    tune_steps: int
    exit_steps: int = 0
    temperature: float | None = None


class Provenance(msgspec.Struct, frozen=True):
    """Origin of the weights, and the recipe and tools that made the bundle."""

    model: str
    source: str
    licence: str | None
    weights_sha256: str | None
    training_data: str
    recipe: dict[str, str | int | float | bool | None]
    tools: dict[str, str]


class Hybrid(msgspec.Struct, frozen=True):
    """A bundle's part in a hybrid: the path that runs, and the partner bundle.

    ``path``: its edges as text; ``partner``: name of the other bundle; ``partner_path``: digest of that one's path
    (``path_digest``). ``plan``: of the base only, as JSON text of the format of plans.
    """

    role: Literal["base", "global"]
    path: tuple[str, ...]
    partner: str
    partner_path: str
    plan: str | None = None

    @property
    def subnet(self) -> Subnet:
        """The path."""
        return Subnet(tuple(Edge.parse(edge) for edge in self.path))


class Manifest(msgspec.Struct, frozen=True):
    """The bundle's graph, weights by digest, and metadata; the blobs themselves are separate files.

    ``shared_sizes``: bytes of every shared blob; not in manifests before 1.3. ``hybrid``: since 1.4.
    ``members``: of a family, the largest first; none for one network. Since 1.6.
    """

    format_version: str
    name: str
    version: int
    task: Task
    preprocessing: AnyPreprocessing  # since 1.9 of other samples than images too
    cut_points: tuple[CutPoint, ...]
    blocks: tuple[Block, ...]
    onnx: Onnx
    self_test: SelfTest
    metrics: Metrics
    provenance: Provenance
    exits: tuple[Exit, ...] = ()
    input_sizes: tuple[InputSize, ...] = ()  # besides the model's own
    public_names: PublicNames = PublicNames()
    notes: tuple[str, ...] = ()
    shared_sizes: dict[str, BlobBytes] = {}
    hybrid: Hybrid | None = None
    members: tuple[Member, ...] = ()

    def supernet(self) -> Supernet:
        """The graph of this bundle."""
        return Supernet(self.cut_points, self.blocks, self.exits, self.input_sizes, self.members)

    def blobs(self) -> dict[str, int | None]:
        """Every blob that the manifest names, with its size where it is stated."""
        sizes: dict[str, int | None] = {}
        renditions = [r for block in self.blocks for r in block.renditions]
        renditions += [r for exit_ in self.exits for r in exit_.renditions]
        for rendition in renditions:
            sizes.update((name, self.shared_sizes.get(name)) for name in rendition.shared)
            sizes[rendition.blob] = rendition.size_bytes
        return sizes | self.preprocessing.blobs()

    def loaded_bytes(self) -> dict[str, int]:
        """Bytes in memory of the blobs whose weights are stored in fewer."""
        found = [rendition for block in self.blocks for rendition in block.renditions]
        found += [rendition for exit_ in self.exits for rendition in exit_.renditions]
        return {one.blob: one.loaded_bytes for one in found if one.loaded_bytes is not None}

    @property
    def minor_version(self) -> int:
        """The minor format version; 0 where it is no number."""
        minor = self.format_version.partition(".")[2]
        return int(minor) if minor.isascii() and minor.isdigit() and len(minor) < 10 else 0


def decoding_hook(kind: type, value: Any) -> Any:
    """msgspec's hook for the one type in a manifest that it does not know."""
    if kind is AnyPreprocessing:
        return decode_preprocessing(value)
    raise NotImplementedError(f"a manifest has no {kind.__name__}")


def manifest_schema() -> dict[str, Any]:
    """The JSON schema of manifests."""
    found = msgspec.json.schema(Manifest, schema_hook=_schema_of)
    kinds = [kind.preprocessing for kind in KINDS.values()]
    _, components = msgspec.json.schema_components(kinds, ref_template=_DEFINITIONS + "{name}")
    found["$defs"] |= components
    return found


_DEFINITIONS = "#/$defs/"


def _schema_of(kind: type) -> dict[str, Any]:
    if kind is AnyPreprocessing:
        return {"anyOf": [{"$ref": _DEFINITIONS + one.preprocessing.__name__} for one in KINDS.values()]}
    raise NotImplementedError(f"a manifest has no {kind.__name__}")


def encode_manifest(manifest: Manifest) -> bytes:
    """Serialise ``manifest`` to the bytes that are stored and signed."""
    return msgspec.json.format(msgspec.json.encode(manifest, order="deterministic"), indent=1) + b"\n"
