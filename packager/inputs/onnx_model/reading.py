"""Reads an ``.onnx`` file as untrusted input, and refuses what has no import."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import onnx
import torch
from google.protobuf.message import DecodeError
from onnx import external_data_helper, helper, numpy_helper
from onnx.inliner import inline_local_functions
from torch import Tensor

from packager.errors import ModelLoadError
from packager.inputs.onnx_model.operators.port import OnnxNode

MOST_BYTES = 4_000_000_000  # of the file, and of the weights beside it
_LEAST_OPSET = 10
_PROTO = onnx.TensorProto
_INPUTS = {
    _PROTO.FLOAT: torch.float32,
    _PROTO.FLOAT16: torch.float32,
    _PROTO.INT64: torch.int64,
    _PROTO.INT32: torch.int32,
}
_QUANTISED = frozenset(
    {
        *("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul"),
        *("ConvInteger", "MatMulInteger"),
    }
)
_FLOAT_MODEL = "give the float model: packaging makes int8 renditions itself (--rendition int8)"
_OWN = ("", "ai.onnx")


@dataclass(frozen=True)
class OnnxModel:
    """A checked ONNX model. ``batch``: fixed batch size, or None; ``input_shape``: without the batch.

    ``constants``: tensors of the file by name, half precision in single; ``half``: it had some.
    """

    proto: onnx.ModelProto
    name: str
    nodes: tuple[OnnxNode, ...]
    constants: dict[str, Tensor]
    input_name: str
    output_name: str
    input_shape: tuple[int, ...]
    batch: int | None
    dtype: torch.dtype
    half: bool
    metadata: dict[str, str]


def read_onnx(path: Path, *, input_shape: tuple[int, ...] | None = None) -> OnnxModel:
    """The model in ``path``; ``input_shape``, without batch, is needed if the file leaves it open.

    Weights in other files are read if these lie in the same folder.

    Raises:
        ModelLoadError: not an ONNX file; or quantised, with operators of other domains, several inputs or outputs, no
            batch axis, or an open shape.
    """
    proto = _parsed(path)
    _require_float(proto, path)
    _load_external(proto, path)
    if proto.functions:
        proto = inline_local_functions(proto)
    opset = _opset(proto, path)
    graph = proto.graph
    constants = {one.name: as_tensor(one) for one in graph.initializer}
    entries = [one for one in graph.input if one.name not in constants]
    if len(entries) != 1 or len(graph.output) != 1:
        raise ModelLoadError(
            f"{path.name} has {len(entries)} inputs ({_names(entries)}) and {len(graph.output)} outputs"
            f" ({_names(graph.output)}); one of each is supported",
            hint="export a module whose forward takes the images alone and returns the logits alone",
        )
    (entry,) = entries
    batch, shape = _extents(entry, path, input_shape)
    half = any(one.data_type in (_PROTO.FLOAT16, _PROTO.BFLOAT16) for one in graph.initializer)
    return OnnxModel(
        proto=proto,
        name=path.name,
        nodes=tuple(_node(node, opset, path) for node in graph.node),
        constants=constants,
        input_name=entry.name,
        output_name=graph.output[0].name,
        input_shape=shape,
        batch=batch,
        dtype=_INPUTS[entry.type.tensor_type.elem_type],
        half=half or entry.type.tensor_type.elem_type == _PROTO.FLOAT16,
        metadata={one.key: one.value for one in proto.metadata_props},
    )


def as_tensor(constant: onnx.TensorProto) -> Tensor:
    """A constant, in single precision if it is in half."""
    array = numpy_helper.to_array(constant)
    if constant.data_type in (_PROTO.FLOAT16, _PROTO.BFLOAT16):
        array = array.astype("float32")
    return torch.from_numpy(array.copy())


def _parsed(path: Path) -> onnx.ModelProto:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ModelLoadError(f"{path.name} is larger than {MOST_BYTES / 1e9:g} GB")
        proto = onnx.ModelProto.FromString(path.read_bytes())
    except OSError as error:
        raise ModelLoadError(f"cannot read {path.name}: {error.strerror or error}") from error
    except DecodeError as error:
        raise ModelLoadError(f"{path.name} is not an ONNX file", hint="torch.onnx.export writes one") from error
    if not proto.graph.node:
        raise ModelLoadError(f"{path.name} is not an ONNX file with a graph", hint="torch.onnx.export writes one")
    if proto.graph.sparse_initializer:
        raise ModelLoadError(f"{path.name} has sparse weights", hint="export it with dense ones")
    return proto


def _require_float(proto: onnx.ModelProto, path: Path) -> None:
    nodes = [node for part in (proto.graph, *proto.functions) for node in part.node]
    found = next((node for node in nodes if node.op_type in _QUANTISED), None)
    if found is not None:
        raise ModelLoadError(f"{path.name} is quantised ({found.op_type} at {_where(found)})", hint=_FLOAT_MODEL)
    for node in nodes:
        local = any((node.domain, node.op_type) == (one.domain, one.name) for one in proto.functions)
        if node.domain not in _OWN and not local:
            raise ModelLoadError(
                f"{path.name} uses the operator {node.op_type} of {node.domain} at {_where(node)}, which is not ONNX's"
                " own",
                hint="export it with ONNX's operators alone, before any optimiser of a runtime",
            )


def _where(node: onnx.NodeProto) -> str:
    return node.name or next(iter(node.output), "a node without a name")


def _load_external(proto: onnx.ModelProto, path: Path) -> None:
    """Load weights that lie in files beside ``path``, and nowhere else."""
    tensors = [one for one in _tensors(proto) if external_data_helper.uses_external_data(one)]
    places = {entry.value for one in tensors for entry in one.external_data if entry.key == "location"}
    total = 0
    for place in sorted(places):
        file = path.parent / place
        if PurePosixPath(place).name != place or file.is_symlink() or not file.is_file():
            raise ModelLoadError(
                f"{path.name} has weights in {place[:80]!r}, which is no file in the same folder",
                hint="keep the file that the exporter wrote beside the .onnx file, or export with external_data=False",
            )
        total += file.stat().st_size
    if total > MOST_BYTES:
        raise ModelLoadError(f"the weights beside {path.name} are larger than {MOST_BYTES / 1e9:g} GB")
    try:
        for one in tensors:
            external_data_helper.load_external_data_for_tensor(one, str(path.parent))
            one.data_location = _PROTO.DEFAULT
            del one.external_data[:]
    except Exception as error:  # onnx raises several types on offsets that do not fit
        raise ModelLoadError(f"the weights beside {path.name} cannot be read: {error}") from error


def _tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    yield from proto.graph.initializer
    for part in (proto.graph, *proto.functions):
        for node in part.node:
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    yield attribute.t


def _opset(proto: onnx.ModelProto, path: Path) -> int:
    found = next((one.version for one in proto.opset_import if one.domain in _OWN), 0)
    if found < _LEAST_OPSET:
        raise ModelLoadError(
            f"{path.name} is of opset {found}; {_LEAST_OPSET} and later are imported",
            hint="convert it with onnx.version_converter, or export it again",
        )
    return int(found)


def _extents(
    entry: onnx.ValueInfoProto, path: Path, given: tuple[int, ...] | None
) -> tuple[int | None, tuple[int, ...]]:
    """The fixed batch size, or None, and the shape without it."""
    kind = entry.type.tensor_type
    if kind.elem_type not in _INPUTS:
        name = _PROTO.DataType.Name(kind.elem_type).lower()
        raise ModelLoadError(f"{path.name} takes {name} inputs", hint="the input is float32, int64 or int32")
    if not kind.HasField("shape"):
        raise ModelLoadError(
            f"{path.name} does not say how many axes its input has", hint="export it with a fixed rank"
        )
    dims = [dim.dim_value or None for dim in kind.shape.dim]
    if len(dims) < 2 or (len(dims) == 3 and dims[0] in (1, 3) and kind.elem_type == _PROTO.FLOAT):
        shown = "×".join("?" if dim is None else str(dim) for dim in dims)
        raise ModelLoadError(
            f"the input of {path.name} is {shown}: there is no batch axis",
            hint="export it with a batch of inputs, the batch as first axis of what goes in and out",
        )
    own = dims[1:]
    if given is not None:
        if len(given) != len(own) or any(one not in (None, other) for one, other in zip(own, given, strict=False)):
            shown = "×".join("?" if dim is None else str(dim) for dim in own)
            raise ModelLoadError(
                f"{path.name} takes inputs of shape {shown}", hint="leave --input-shape out, or give that shape"
            )
        return dims[0], tuple(given)
    if None in own:
        raise ModelLoadError(
            f"{path.name} leaves the extents of its input open",
            hint="--input-shape says which to package, for example 3x224x224",
        )
    return dims[0], tuple(extent for extent in own if extent is not None)


def _names(values: Any) -> str:
    listed = [value.name for value in values]
    return ", ".join(listed[:3]) + (", …" if len(listed) > 3 else "")


def _node(node: onnx.NodeProto, opset: int, path: Path) -> OnnxNode:
    attributes: dict[str, Any] = {}
    for attribute in node.attribute:
        value = helper.get_attribute_value(attribute)
        if isinstance(value, onnx.GraphProto):
            raise ModelLoadError(
                f"{path.name} has control flow ({node.op_type} at {_where(node)})",
                hint="export it without branches and loops that depend on the input",
            )
        if isinstance(value, bytes):
            value = value.decode(errors="replace")
        if isinstance(value, onnx.TensorProto):
            value = as_tensor(value)
            value = value.item() if node.op_type == "ConstantOfShape" and value.numel() == 1 else value
        attributes[attribute.name] = value
    return OnnxNode(node.op_type, _where(node), tuple(node.input), tuple(node.output), opset, attributes)
