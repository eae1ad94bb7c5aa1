"""From torch blocks to ONNX graph fragments (docs/bundle_format.md, design of fragments in docs/adr/0002).

All blocks are exported in one go, side by side in one graph, then that graph is cut: much quicker than one export
per block.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx
import torch
from torch import nn

from device_sdk.composition import Stretch
from device_sdk.graph import TensorSpec
from packager.errors import TraceError
from packager.expansion import Expansion
from packager.torch_noise import torch_silenced

OPSET = 20
IR_VERSION = 10
SHARED_MIN_BYTES = 4096  # smaller weights that several blocks use are copied into each
_EXAMPLE_BATCH = 2


@dataclass(frozen=True)
class ExportedBlocks:
    """The supernet as serialized fragments: one per block, and shared ones by name with the blocks that need them."""

    expansion: Expansion
    own: Mapping[str, bytes]
    shared: Mapping[str, bytes]
    needs: Mapping[str, tuple[str, ...]]

    def stretch(self, block_ids: Sequence[str]) -> Stretch:
        """Consecutive blocks as one model to run."""
        blocks = {block.id: block for block in self.expansion.blocks}
        shared = dict.fromkeys(name for block_id in block_ids for name in self.needs[block_id])
        own = [self.own[block_id] for block_id in block_ids]
        return Stretch(
            fragments=tuple([self.shared[name] for name in shared] + own),
            inputs=self.expansion.cut_points[blocks[block_ids[0]].start].tensors,
            outputs=self.expansion.cut_points[blocks[block_ids[-1]].end].tensors,
            ir_version=IR_VERSION,
            opset=OPSET,
        )


def export_blocks(expansion: Expansion) -> ExportedBlocks:
    """One fragment per block: input ``cut_<start>``, output ``cut_<end>``, inner names ``<block id>/…``.

    Raises:
        TraceError: torch cannot export the blocks to ONNX.
    """
    wrapper = _SideBySide([block.module for block in expansion.blocks])
    tensors = expansion.traced.tensors
    names = [block.id for block in expansion.blocks]
    model = _export(
        wrapper,
        [tensors[block.start] for block in expansion.blocks],
        inputs=[f"{name}/input" for name in names],
        outputs=[f"{name}/output" for name in names],
    )
    cutter = _Cutter(model.graph)
    cut = {
        block.id: cutter.fragment(block.id, start=tensors[block.start].name, end=tensors[block.end].name)
        for block in expansion.blocks
    }
    shared = _shared_initializers(cut)
    needs = {name: tuple(sorted(shared.keys() & _initializer_names(graph))) for name, graph in cut.items()}
    for graph in cut.values():
        kept = [tensor for tensor in graph.initializer if tensor.name not in shared]
        del graph.initializer[:]
        graph.initializer.extend(kept)
    return ExportedBlocks(
        expansion=expansion,
        own={name: graph.SerializeToString(deterministic=True) for name, graph in cut.items()},
        shared={name: graph.SerializeToString(deterministic=True) for name, graph in shared.items()},
        needs=needs,
    )


def export_whole(model: nn.Module, spec: TensorSpec) -> bytes:
    """The model exported in one piece, to compare composed models with."""
    return _export(model, [spec], inputs=["input"], outputs=["output"]).SerializeToString()


class _SideBySide(nn.Module):
    """Runs every block on its own input."""

    def __init__(self, blocks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks).eval()

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(block(value) for block, value in zip(self.blocks, inputs, strict=True))


def _export(
    model: nn.Module, specs: Sequence[TensorSpec], *, inputs: Sequence[str], outputs: Sequence[str]
) -> onnx.ModelProto:
    examples = tuple(torch.zeros(_EXAMPLE_BATCH, *spec.shape, dtype=getattr(torch, spec.dtype)) for spec in specs)
    # one symbol per block: with a common one the exporter would measure the batch of one block on the input of another
    batches = [{0: torch.export.Dim(f"batch_{number}", min=1, max=65536)} for number in range(len(specs))]
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
    """Cuts the graph of blocks side by side into one graph per block."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._nodes = list(graph.node)
        self._producer = {output: index for index, node in enumerate(self._nodes) for output in node.output}
        self._initializers = {tensor.name: tensor for tensor in graph.initializer}

    def fragment(self, block_id: str, *, start: str, end: str) -> onnx.GraphProto:
        """The nodes and initializers that block's output needs, renamed."""
        names = {f"{block_id}/input": start, f"{block_id}/output": end}
        nodes, weights = self._needed(f"{block_id}/output", f"{block_id}/input")

        def renamed(name: str) -> str:
            return names.get(name) or (f"{block_id}/{name}" if name else "")

        graph = onnx.GraphProto()
        for index in nodes:
            node = graph.node.add()
            node.CopyFrom(self._nodes[index])
            _strip(node)
            node.name = f"{block_id}/{node.name or index}"
            node.input[:] = [renamed(name) for name in node.input]
            node.output[:] = [renamed(name) for name in node.output]
        for name in weights:
            tensor = graph.initializer.add()
            tensor.CopyFrom(self._initializers[name])
            tensor.name = renamed(name)
            tensor.ClearField("doc_string")
        return graph

    def _needed(self, output: str, own_input: str) -> tuple[list[int], list[str]]:
        nodes: set[int] = set()
        weights: dict[str, None] = {}
        waiting = [output]
        while waiting:
            name = waiting.pop()
            if name == own_input or not name:
                continue
            if name in self._initializers:
                weights[name] = None
            elif name not in self._producer:
                raise TraceError(f"the exported block of {own_input} reads {name}, which is not its own")
            elif self._producer[name] not in nodes:
                nodes.add(self._producer[name])
                waiting.extend(self._nodes[self._producer[name]].input)
        return sorted(nodes), sorted(weights)


def _strip(node: onnx.NodeProto) -> None:
    """Drop what names source files of the machine that exported."""
    del node.metadata_props[:]
    node.ClearField("doc_string")


def _shared_initializers(graphs: Mapping[str, onnx.GraphProto]) -> dict[str, onnx.GraphProto]:
    """Move large equal weights of several blocks out into one initializer-only graph each; users are renamed."""
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
    digest = hashlib.sha256(f"{tensor.data_type}{list(tensor.dims)}".encode() + tensor.raw_data)
    return f"shared/{digest.hexdigest()[:24]}"


def _initializer_names(graph: onnx.GraphProto) -> set[str]:
    return {tensor.name for tensor in graph.initializer}
