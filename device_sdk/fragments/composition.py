"""Models of any path: fragments concatenated as protobuf fields of one graph."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from device_sdk.errors import CompositionError
from device_sdk.fragments import protobuf
from device_sdk.fragments.fragment import Fragment, read_fragment
from device_sdk.fragments.sizes import check_sizes
from device_sdk.supernet.blocks import TensorSpec

VARINT, FIXED64, LENGTH_DELIMITED, FIXED32 = 0, 1, 2, 5


# field numbers of onnx.proto
_MODEL_IR_VERSION, _MODEL_GRAPH, _MODEL_OPSET_IMPORT = 1, 7, 8
_OPSET_VERSION = 2
_GRAPH_NAME, _GRAPH_INPUT, _GRAPH_OUTPUT = 2, 11, 12
_VALUE_NAME, _VALUE_TYPE = 1, 2
_TYPE_TENSOR, _TENSOR_TYPE_ELEMENT, _TENSOR_TYPE_SHAPE = 1, 1, 2
_SHAPE_DIMENSION, _DIMENSION_VALUE, _DIMENSION_SYMBOL = 1, 1, 2
_ELEMENT_TYPES = {"float32": 1, "uint8": 2, "int8": 3, "int32": 6, "int64": 7, "bool": 9, "float16": 10}


COMPOSED = "onnxruntime"  # the runtime whose renditions are ONNX fragments, which become one model


@dataclass(frozen=True)
class Stretch:
    """Consecutive blocks that run as one model: their fragments, inputs and outputs.

    ``runtime``: the runtime of their renditions. If it is not ``COMPOSED``, ``fragments`` are whole programs, one per
    block, that run one after the other, and ``entry_points`` the method of each. With ``branch`` the last program is an
    exit's: its input is the output of the blocks, and both outputs are returned. ``free_axes``: by tensor, the axes (0
    is the batch) that stay symbolic in the composed model, so that one session runs at several input sizes.
    ``owners``: the block or exit of each fragment, for errors; empty where unknown. ``home``: where it runs; empty for
    the first home that may run it. ``providers``: those that its renditions are for; empty for all. ``parts``: of
    blocks at several homes, the stretches of equal home in order; all else but inputs and outputs is theirs.
    """

    fragments: Sequence[bytes]  # may be read from disk on access
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    ir_version: int
    opset: int
    runtime: str = COMPOSED
    entry_points: tuple[str, ...] = ()
    branch: bool = False
    free_axes: Mapping[str, frozenset[int]] = field(default_factory=dict)
    owners: tuple[str, ...] = ()
    home: str = ""
    providers: tuple[str, ...] = ()
    parts: tuple[Stretch, ...] = ()


def compose(stretch: Stretch) -> bytes:
    """The serialized ONNX model of ``stretch``, its batch axis symbolic.

    Raises:
        CompositionError: a fragment is malformed or holds what it may not hold (``fragment``, ``sizes``), two define
            the same name, or the stretch holds programs of another runtime.
    """
    if stretch.parts:
        raise CompositionError("blocks at several homes are separate models and cannot be composed")
    if stretch.runtime != COMPOSED:
        raise CompositionError(f"blocks for {stretch.runtime} are separate programs and cannot be composed")
    fragments = tuple(stretch.fragments)  # read once
    graphs = read_fragments(fragments, stretch.owners)
    refuse_duplicates(graphs)
    check_sizes(graphs, stretch.inputs, stretch.outputs, stretch.owners)
    opset = protobuf.integer_field(_OPSET_VERSION, stretch.opset)
    parts = [
        protobuf.integer_field(_MODEL_IR_VERSION, stretch.ir_version),
        protobuf.bytes_field(_MODEL_OPSET_IMPORT, opset),
    ]
    for fragment in fragments:  # joined below: weights are copied once
        parts += [protobuf.bytes_head(_MODEL_GRAPH, len(fragment)), fragment]
    boundary = protobuf.text_field(_GRAPH_NAME, "pathweave")
    for number, specs in ((_GRAPH_INPUT, stretch.inputs), (_GRAPH_OUTPUT, stretch.outputs)):
        for spec in specs:
            free = stretch.free_axes.get(spec.name, frozenset())
            boundary += protobuf.bytes_field(number, _value_info(spec, free))
    parts.append(protobuf.bytes_field(_MODEL_GRAPH, boundary))
    return b"".join(parts)


def read_fragments(fragments: Sequence[bytes], owners: Sequence[str] = ()) -> list[Fragment]:
    """Read and check all fragments; an error names the owner of the fragment, or its number."""
    found = []
    for number, data in enumerate(fragments):
        try:
            found.append(read_fragment(data))
        except CompositionError as error:
            owner = owners[number] if number < len(owners) else f"number {number}"
            raise CompositionError(f"the fragment of {owner} is refused: {error}", hint=_PACKAGE_AGAIN) from error
    return found


_PACKAGE_AGAIN = "docs/bundle_format.md says what a fragment may contain; package the model again"


def refuse_duplicates(fragments: Iterable[Fragment]) -> None:
    """Raise CompositionError if two initializers or node outputs share a name (the runtime only warns)."""
    seen: set[bytes] = set()
    for fragment in fragments:
        for name in fragment.defined_names():
            if name in seen:
                raise CompositionError(f"two fragments define {name.decode(errors='replace')!r}")
            seen.add(name)


def _value_info(spec: TensorSpec, free_axes: Collection[int]) -> bytes:
    shape = protobuf.bytes_field(_SHAPE_DIMENSION, protobuf.text_field(_DIMENSION_SYMBOL, "batch"))
    for axis, extent in enumerate(spec.shape, start=1):
        dimension = b"" if axis in free_axes else protobuf.integer_field(_DIMENSION_VALUE, extent)
        shape += protobuf.bytes_field(_SHAPE_DIMENSION, dimension)
    tensor = protobuf.integer_field(_TENSOR_TYPE_ELEMENT, _ELEMENT_TYPES[spec.dtype])
    tensor += protobuf.bytes_field(_TENSOR_TYPE_SHAPE, shape)
    kind = protobuf.bytes_field(_TYPE_TENSOR, tensor)
    return protobuf.text_field(_VALUE_NAME, spec.name) + protobuf.bytes_field(_VALUE_TYPE, kind)
