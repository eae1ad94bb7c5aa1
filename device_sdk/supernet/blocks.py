"""The parts of a supernet: cut points and their tensors, blocks and their renditions, exits.

A pretrained model is cut where few tensors are live. Cut points are numbered 0 (input) to N (output); a block maps the
tensors at its start to those at its end. The manifest stores these types.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

import msgspec

IDENTIFIER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")  # names of bundles, blocks and exits

ITEM_BYTES = {"float32": 4, "float16": 2, "int64": 8, "int32": 4, "int8": 1, "uint8": 1, "bool": 1}
MAP_AXES = 3  # of a map: channels, rows, columns
ORIGINAL = "original"  # the kind of the pretrained blocks, which lead from the input to the output
STITCH = "stitch"  # the kind of the blocks that lead from one member of a family to another
ENCODER, DECODER = "encoder", "decoder"  # the kinds of the blocks to and from a bottleneck, a narrow cut point


class BlockKind(msgspec.Struct, frozen=True):
    """Properties of a kind of blocks.

    ``spans``: number of originals that a block replaces. ``weights``: there are some to train. ``skip``: the block
    passes its input on as it is.
    """

    spans: Literal["one", "several", "any"] = "any"
    weights: bool = True
    skip: bool = False


BLOCK_KINDS: dict[str, BlockKind] = {
    ORIGINAL: BlockKind("one"),
    "merged": BlockKind("several"),
    "shrunk": BlockKind("one"),
    "identity": BlockKind(weights=False, skip=True),
    STITCH: BlockKind(),
    ENCODER: BlockKind(),
    DECODER: BlockKind(),
}


def kind_named(name: str) -> BlockKind:
    """The properties of a kind. An unknown one spans any number of originals, has weights and is no skip."""
    return BLOCK_KINDS.get(name, BlockKind())


class Quantization(msgspec.Struct, frozen=True):
    """Storage of a tensor in all int8 renditions that touch it: value = (q − zero_point) · scale, q from 0 to 255."""

    scale: float
    zero_point: int


class TensorSpec(msgspec.Struct, frozen=True):
    """One tensor at a cut point. ``shape`` leaves the batch axis out.

    ``low`` and ``high`` bound most of its values on real data; seeded golden inputs are drawn between them.
    ``quantization``: None where the bundle has no int8 renditions, or they leave the tensor as it is.
    """

    name: str
    shape: tuple[Annotated[int, msgspec.Meta(ge=1)], ...]
    dtype: str = "float32"
    low: float = 0.0
    high: float = 1.0
    quantization: Quantization | None = None

    @property
    def size(self) -> int:
        """Number of elements of one sample."""
        size = 1
        for extent in self.shape:
            size *= extent
        return size

    @property
    def nbytes(self) -> int:
        """Bytes of one sample."""
        return self.size * ITEM_BYTES[self.dtype]


class CutPoint(msgspec.Struct, frozen=True):
    """A position where the model can be cut. No block may jump over a ``mandatory`` one."""

    index: int
    tensors: tuple[TensorSpec, ...]
    mandatory: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes that are live here for one sample."""
        return sum(tensor.nbytes for tensor in self.tensors)

    def resized(self, shapes: Iterable[tuple[int, ...]]) -> CutPoint:
        """The same position where its tensors have other ``shapes``."""
        pairs = zip(self.tensors, shapes, strict=True)
        tensors = tuple(msgspec.structs.replace(spec, shape=shape) for spec, shape in pairs)
        return CutPoint(self.index, tensors, self.mandatory)


class InputSize(msgspec.Struct, frozen=True):
    """An input of another size than the model's own, at which the same fragments run.

    ``size``: height and width, or since 1.9 a length, such as of tokens; ``shapes[k][n]``: of tensor n at cut point k;
    ``golden``: answer of the original path to the golden input of this size. ``error``: mean distance of the original
    path's answers from those at the model's own size, on real samples, 0 to 1: total variation of the class
    probabilities, or as the packager's task compares answers; None where it was not measured.
    """

    size: Annotated[tuple[Annotated[int, msgspec.Meta(ge=1)], ...], msgspec.Meta(min_length=1, max_length=2)]
    shapes: tuple[tuple[tuple[Annotated[int, msgspec.Meta(ge=1)], ...], ...], ...]
    golden: Golden
    error: float | None = None


class Golden(msgspec.Struct, frozen=True):
    """Required answer of a rendition to the seeded golden input of its start (docs/bundle_format.md).

    ``samples[t]`` are drawn elements of output tensor t, flattened; ``tolerance`` is absolute.
    """

    samples: tuple[tuple[float, ...], ...]
    tolerance: float


class RefusedNodes(msgspec.Struct, frozen=True):
    """Nodes of one ``operator`` that a provider leaves to the processor, and its ``reason``."""

    operator: Annotated[str, msgspec.Meta(max_length=128)]
    count: Annotated[int, msgspec.Meta(ge=1, lt=2**31)]
    reason: Annotated[str, msgspec.Meta(max_length=400)]


class CompiledFor(msgspec.Struct, frozen=True):
    """Record of compiling a rendition for a ``chip`` while packaging.

    ``compiler``: name and version; ``nodes``: that ``provider`` took there, 0 where it refused the whole.
    """

    chip: Annotated[str, msgspec.Meta(max_length=128)]
    provider: Annotated[str, msgspec.Meta(max_length=128)]
    compiler: Annotated[str, msgspec.Meta(max_length=128)]
    nodes: Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
    refused: Annotated[tuple[RefusedNodes, ...], msgspec.Meta(max_length=64)] = ()

    @property
    def share(self) -> float:
        """Share of the nodes that the provider takes, 0 to 1."""
        return self.nodes / max(1, self.nodes + sum(one.count for one in self.refused))


class Rendition(msgspec.Struct, frozen=True):
    """One executable form of a block. ``shared`` lists initializer-only blobs that it needs besides its own.

    ``providers`` of the runtime that it is for, where not for all of them. ``error``: mean squared distance from the
    block's training target over the variance of that target, on real samples; None where it is the same but for
    rounding. ``any_size``: it runs at every input size of the bundle, not only at the model's own.
    ``loaded_bytes`` (1.4): of its weights in memory, where they are stored in fewer. ``compiled`` (1.8): by a
    provider's own compiler, at most once for a chip.
    """

    name: str
    runtime: str
    blob: str
    size_bytes: int
    golden: Golden
    shared: tuple[str, ...] = ()
    opset: int | None = None
    entry_point: str | None = None
    providers: tuple[str, ...] = ()
    error: float | None = None
    any_size: bool = False
    loaded_bytes: Annotated[int, msgspec.Meta(ge=0, lt=2**40)] | None = None
    compiled: Annotated[tuple[CompiledFor, ...], msgspec.Meta(max_length=32)] = ()


class Block(msgspec.Struct, frozen=True):
    """An edge of the supernet from cut point ``start`` to cut point ``end``; ``kind``: see ``BLOCK_KINDS``."""

    id: str
    start: int
    end: int
    kind: str
    parameters: int
    macs: int
    renditions: tuple[Rendition, ...]
    distillation_error: float | None = None
    copied_from: str | None = None

    @property
    def is_original(self) -> bool:
        """True for a pretrained block."""
        return self.kind == ORIGINAL

    def fits_kind(self, replaced: int | None) -> bool:
        """True if its kind may replace so many originals of one member; None: its ends are not of one member."""
        spans = kind_named(self.kind).spans
        return spans == "any" or (replaced is not None and (replaced > 1) == (spans == "several"))


class Member(msgspec.Struct, frozen=True):
    """One pretrained network of a family.

    ``blocks``: ids of its original blocks, from the input to the output. ``accuracy``: on the data of the packager's
    validation; None where it was not measured.
    """

    name: str
    blocks: tuple[str, ...]
    accuracy: float | None = None


class Exit(msgspec.Struct, frozen=True):
    """A branch that answers early from cut point ``position``."""

    id: str
    position: int
    branch: str
    parameters: int
    macs: int
    renditions: tuple[Rendition, ...]
    accuracy: float | None = None
    weight_group: str | None = None


def free_axes(cut_points: Iterable[CutPoint], input_sizes: Sequence[InputSize]) -> dict[str, frozenset[int]]:
    """By tensor, the axes (0 is the batch) whose extents differ between the model's own input size and others."""
    found: dict[str, frozenset[int]] = {}
    for cut in cut_points if input_sizes else ():
        for number, spec in enumerate(cut.tensors):
            shapes = [spec.shape, *(one.shapes[cut.index][number] for one in input_sizes)]
            extents = enumerate(zip(*shapes, strict=True), start=1)
            found[spec.name] = frozenset(axis for axis, several in extents if len(set(several)) > 1)
    return found
