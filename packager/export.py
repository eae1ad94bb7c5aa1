"""From torch blocks to ONNX graph fragments (docs/bundle_format.md, design of fragments in docs/adr/0002).

Blocks and exits are exported side by side, many in one graph, then that graph is cut: much quicker than one export for
each. Not all in one: above some size, time and memory grow faster than what is exported.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import onnx
import torch
from torch import nn

from device_sdk.bundles.composition import Stretch
from device_sdk.graph import TensorSpec
from device_sdk.runtimes.allocator import WORTHWHILE_BYTES, give_back_freed_memory
from packager.errors import TraceError
from packager.expansion import Expansion, TrainableExit
from packager.graph_rewrites import select_by_convolution
from packager.torch_noise import torch_silenced

OPSET = 20
IR_VERSION = 10
SHARED_MIN_BYTES = 4096  # smaller weights that several parts use are copied into each
_EXAMPLE_BATCH = 2
_MOST_MODULES = 500  # side by side in one graph; a model of 1,067 took 240 s in one, 140 s in three
_MOST_BYTES = 400_000_000  # of weights side by side, which are in memory three times meanwhile


@dataclass(frozen=True)
class ExportedBlocks:
    """The supernet as serialized fragments: one per block or exit, and shared ones with what needs them, by name."""

    expansion: Expansion
    own: Mapping[str, bytes]
    shared: Mapping[str, bytes]
    needs: Mapping[str, tuple[str, ...]]

    def stretch(self, block_ids: Sequence[str], exit_id: str | None = None) -> Stretch:
        """Consecutive blocks as one model to run; with the exit at their end, whose answer comes last, or it alone."""
        positions: list[int] = []
        outputs: tuple[TensorSpec, ...] = ()
        if block_ids:
            blocks = {block.id: block for block in self.expansion.blocks}
            positions = [blocks[block_ids[0]].start, blocks[block_ids[-1]].end]
            outputs = self.expansion.cut_points[positions[-1]].tensors
        if exit_id is not None:
            exit_ = next(exit_ for exit_ in self.expansion.exits if exit_.id == exit_id)
            positions.append(exit_.position)
            outputs += (_exit_tensor(self.expansion, exit_),)
        parts = [*block_ids, *([exit_id] if exit_id else [])]
        shared = dict.fromkeys(name for part in parts for name in self.needs[part])
        return Stretch(
            fragments=tuple([self.shared[name] for name in shared] + [self.own[part] for part in parts]),
            inputs=self.expansion.cut_points[positions[0]].tensors,
            outputs=outputs,
            ir_version=IR_VERSION,
            opset=OPSET,
        )


@dataclass(frozen=True)
class _Part:
    """What becomes one fragment: a module, what it reads and what it puts out."""

    id: str
    module: nn.Module
    read: tuple[TensorSpec, ...]
    end: TensorSpec

    @property
    def inputs(self) -> dict[str, str]:
        """The names of what it reads, in the graph of all parts side by side, and in its fragment."""
        return {f"{self.id}/input_{number}": spec.name for number, spec in enumerate(self.read)}


def _parts(expansion: Expansion) -> list[_Part]:
    tensors = expansion.traced.tensors
    blocks = [
        _Part(block.id, block.module, tuple(tensors[k] for k in (*block.taps, block.start)), tensors[block.end])
        for block in expansion.blocks
    ]
    exits = [_Part(e.id, e.module, (tensors[e.position],), _exit_tensor(expansion, e)) for e in expansion.exits]
    return blocks + exits


def _exit_tensor(expansion: Expansion, exit_: TrainableExit) -> TensorSpec:
    return msgspec.structs.replace(expansion.traced.tensors[-1], name=f"exit_{exit_.id}")


def export_blocks(expansion: Expansion) -> ExportedBlocks:
    """One fragment per block and per exit.

    A block leads from ``cut_<start>`` to ``cut_<end>``, an exit from ``cut_<position>`` to ``exit_<id>``; a head reads
    the ``cut_<tap>`` of its taps as well. Inner names are ``<id>/…``.

    Raises:
        TraceError: torch cannot export the blocks or exits to ONNX.
    """
    cut: dict[str, onnx.GraphProto] = {}
    for parts in _groups(_parts(expansion)):
        cut |= _export_side_by_side(parts)
        give_back_freed_memory()
    return share(expansion, cut)


def _groups(parts: Sequence[_Part]) -> Iterator[list[_Part]]:
    """Consecutive parts, as many as go well into one graph."""
    group: list[_Part] = []
    modules = size_bytes = 0
    for part in parts:
        more = sum(1 for _ in part.module.modules())
        more_bytes = sum(tensor.nbytes for tensor in part.module.state_dict().values())
        if group and (modules + more > _MOST_MODULES or size_bytes + more_bytes > _MOST_BYTES):
            yield group
            group, modules, size_bytes = [], 0, 0
        group.append(part)
        modules, size_bytes = modules + more, size_bytes + more_bytes
    if group:
        yield group


def _export_side_by_side(parts: Sequence[_Part]) -> dict[str, onnx.GraphProto]:
    """The graph of each part, by its id."""
    model = _export(
        _SideBySide([part.module for part in parts], [len(part.read) for part in parts]),
        [spec for part in parts for spec in part.read],
        inputs=[name for part in parts for name in part.inputs],
        outputs=[f"{part.id}/output" for part in parts],
        own_batches=[number for number, part in enumerate(parts) for _ in part.read],
    )
    select_by_convolution(model.graph)
    cutter = _Cutter(model.graph, parts)
    return {part.id: cutter.fragment(part) for part in parts}


def share(expansion: Expansion, cut: dict[str, onnx.GraphProto]) -> ExportedBlocks:
    """Serialize the graphs of blocks and exits, large weights that several have in common apart; empties ``cut``."""
    shared = _shared_initializers(cut)
    needs = {name: tuple(sorted(shared.keys() & _initializer_names(graph))) for name, graph in cut.items()}
    for graph in cut.values():
        for index in reversed(range(len(graph.initializer))):
            if graph.initializer[index].name in shared:
                del graph.initializer[index]
    return ExportedBlocks(expansion=expansion, own=_serialized(cut), shared=_serialized(shared), needs=needs)


def _serialized(graphs: dict[str, onnx.GraphProto]) -> dict[str, bytes]:
    """The graphs as bytes. Each is dropped after its turn: emptied, a message would keep its memory."""
    found: dict[str, bytes] = {}
    for name in list(graphs):
        found[name] = graphs.pop(name).SerializeToString(deterministic=True)
        if len(found[name]) >= WORTHWHILE_BYTES:
            give_back_freed_memory()
    return found


def export_whole(model: nn.Module, spec: TensorSpec) -> bytes:
    """The model exported in one piece, to compare composed models with."""
    return _export(model, [spec], inputs=["input"], outputs=["output"]).SerializeToString()


class _SideBySide(nn.Module):
    """Runs every part on its own inputs, as many as ``counts`` says."""

    def __init__(self, parts: Sequence[nn.Module], counts: Sequence[int]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts).eval()
        self._counts = tuple(counts)

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        left = iter(inputs)
        return tuple(
            part(*(next(left) for _ in range(count))) for part, count in zip(self.parts, self._counts, strict=True)
        )


def _export(
    model: nn.Module,
    specs: Sequence[TensorSpec],
    *,
    inputs: Sequence[str],
    outputs: Sequence[str],
    own_batches: Sequence[int] = (0,),
) -> onnx.ModelProto:
    """``own_batches``: for each input the number of its batch size."""
    examples = tuple(torch.zeros(_EXAMPLE_BATCH, *spec.shape, dtype=getattr(torch, spec.dtype)) for spec in specs)
    # one symbol per part: with a common one the exporter would measure the batch of one on the input of another
    symbols = {number: torch.export.Dim(f"batch_{number}", min=1, max=65536) for number in own_batches}
    batches = [{0: symbols[number]} for number in own_batches]
    dynamic = (tuple(batches),) if isinstance(model, _SideBySide) else tuple(batches)
    try:
        with torch_silenced(), torch.no_grad():
            program = torch.export.export(model.eval(), examples, dynamic_shapes=dynamic)
            exported = torch.onnx.export(
                program,
                dynamo=True,
                opset_version=OPSET,
                input_names=list(inputs),
                output_names=list(outputs),
                verbose=False,
            )
    except Exception as error:  # the exporter raises many unrelated types
        reason = (str(error).splitlines() or [type(error).__name__])[0][:300]
        raise TraceError(f"the model cannot be exported to ONNX: {reason}") from error
    assert exported is not None
    proto = exported.model_proto
    proto.ir_version = IR_VERSION
    if proto.functions or any(opset.domain for opset in proto.opset_import):
        raise TraceError("the exported model uses operators outside ONNX's own set")
    return proto


class _Cutter:
    """Cuts the graph of parts side by side into one graph per part. What only one part needs moves there."""

    def __init__(self, graph: onnx.GraphProto, parts: Sequence[_Part]) -> None:
        self._nodes = list(graph.node)
        self._producer = {output: index for index, node in enumerate(self._nodes) for output in node.output}
        self._initializers = {tensor.name: tensor for tensor in graph.initializer}
        self._needed = {part.id: self._needed_by(part) for part in parts}

    def fragment(self, part: _Part) -> onnx.GraphProto:
        """The nodes and initializers that the part's output needs, renamed."""
        names = {**part.inputs, f"{part.id}/output": part.end.name}
        nodes, weights = self._needed[part.id]

        def renamed(name: str) -> str:
            return names.get(name) or (f"{part.id}/{name}" if name else "")

        graph = onnx.GraphProto()
        for index in nodes:
            node = graph.node.add()
            node.CopyFrom(self._nodes[index])
            _strip(node)
            node.name = f"{part.id}/{node.name or index}"
            node.input[:] = [renamed(name) for name in node.input]
            node.output[:] = [renamed(name) for name in node.output]
        for name in weights:
            tensor = graph.initializer.add()
            tensor.CopyFrom(self._initializers[name])
            tensor.name = renamed(name)
            tensor.ClearField("doc_string")
        return graph

    def _needed_by(self, part: _Part) -> tuple[list[int], list[str]]:
        """The nodes, in order, and the initializers that the part's output needs."""
        nodes: set[int] = set()
        weights: dict[str, None] = {}
        waiting = [f"{part.id}/output"]
        while waiting:
            name = waiting.pop()
            if name in part.inputs or not name:
                continue
            if name in self._initializers:
                weights[name] = None
            elif name not in self._producer:
                raise TraceError(f"what is exported from {part.id} reads {name}, which is not its own")
            elif self._producer[name] not in nodes:
                nodes.add(self._producer[name])
                waiting.extend(self._nodes[self._producer[name]].input)
        return sorted(nodes), sorted(weights)


def _strip(node: onnx.NodeProto) -> None:
    """Drop what names source files of the machine that exported."""
    del node.metadata_props[:]
    node.ClearField("doc_string")


def _shared_initializers(graphs: Mapping[str, onnx.GraphProto]) -> dict[str, onnx.GraphProto]:
    """Move large equal weights of several parts out into one initializer-only graph each; users are renamed."""
    users: dict[str, list[tuple[onnx.GraphProto, onnx.TensorProto]]] = {}
    for graph in graphs.values():
        for tensor in graph.initializer:
            if len(tensor.raw_data) >= SHARED_MIN_BYTES:
                users.setdefault(_content_name(tensor), []).append((graph, tensor))
    shared: dict[str, onnx.GraphProto] = {}
    for name, owners in users.items():
        if len({id(graph) for graph, _ in owners}) < 2:
            continue
        shared[name] = onnx.GraphProto()
        shared[name].initializer.add().CopyFrom(owners[0][1])
        shared[name].initializer[0].name = name
        for graph, tensor in owners:
            for node in graph.node:
                node.input[:] = [name if value == tensor.name else value for value in node.input]
            tensor.name = name
    return shared


def _content_name(tensor: onnx.TensorProto) -> str:
    digest = hashlib.sha256(f"{tensor.data_type}{list(tensor.dims)}".encode())
    digest.update(tensor.raw_data)
    return f"shared/{digest.hexdigest()[:24]}"


def _initializer_names(graph: onnx.GraphProto) -> set[str]:
    return {tensor.name for tensor in graph.initializer}
