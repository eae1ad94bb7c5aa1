"""From torch blocks to ONNX graph fragments (docs/bundle_format.md, design of fragments in docs/adr/0002)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx

from device_sdk.fragments.composition import Stretch
from device_sdk.runtimes.onnx_runtime import WORTHWHILE_BYTES, give_back_freed_memory
from device_sdk.supernet.blocks import TensorSpec
from packager.exporting.onnx_exporter import IR_VERSION, OPSET
from packager.exporting.part_graphs import Part, part_graphs
from packager.supernet.expansion import Expansion

SHARED_MIN_BYTES = 4096  # smaller weights are copied into each part that uses them


@dataclass(frozen=True)
class ExportedBlocks:
    """The supernet as serialized fragments. ``needs``: names in ``shared`` by block or exit."""

    expansion: Expansion
    own: Mapping[str, bytes]
    shared: Mapping[str, bytes]
    needs: Mapping[str, tuple[str, ...]]

    def stretch(self, block_ids: Sequence[str], exit_id: str | None = None) -> Stretch:
        """Consecutive blocks, an exit, or blocks with the exit at their end (last output) as one executable model."""
        positions: list[int] = []
        outputs: tuple[TensorSpec, ...] = ()
        if block_ids:
            blocks = {block.id: block for block in self.expansion.blocks}
            positions = [blocks[block_ids[0]].start, blocks[block_ids[-1]].end]
            outputs = self.expansion.cut_points[positions[-1]].tensors
        if exit_id is not None:
            exit_ = next(exit_ for exit_ in self.expansion.exits if exit_.id == exit_id)
            positions.append(exit_.position)
            outputs += (self.expansion.exit_tensor(exit_),)
        parts = [*block_ids, *([exit_id] if exit_id else [])]
        shared = dict.fromkeys(name for part in parts for name in self.needs[part])
        return Stretch(
            fragments=tuple([self.shared[name] for name in shared] + [self.own[part] for part in parts]),
            inputs=self.expansion.cut_points[positions[0]].tensors,
            outputs=outputs,
            ir_version=IR_VERSION,
            opset=OPSET,
        )


def _parts(expansion: Expansion) -> list[Part]:
    cuts = expansion.traced.cuts
    blocks = [
        Part(
            block.id, block.module, tuple(spec for k in (*block.taps, block.start) for spec in cuts[k]), cuts[block.end]
        )
        for block in expansion.blocks
    ]
    exits = [Part(e.id, e.module, cuts[e.position], (expansion.exit_tensor(e),)) for e in expansion.exits]
    return blocks + exits


def export_blocks(expansion: Expansion) -> ExportedBlocks:
    """One fragment per block and per exit.

    A block maps ``cut_<start>`` to ``cut_<end>``, an exit ``cut_<position>`` to ``exit_<id>``; a head also reads the
    ``cut_<tap>`` of its taps. Additional tensors of a cut point are ``cut_<k>_1``, …. Inner names are ``<id>/…``.

    Raises:
        TraceError: torch cannot export the blocks or exits to ONNX.
    """
    return deduplicate_weights(expansion, part_graphs(_parts(expansion)))


def deduplicate_weights(expansion: Expansion, cut: dict[str, onnx.GraphProto]) -> ExportedBlocks:
    """Serialize the graphs of blocks and exits. Large weights used by several are stored once. Empties ``cut``."""
    shared = _shared_initializers(cut)
    needs = {
        name: tuple(sorted(shared.keys() & {tensor.name for tensor in graph.initializer}))
        for name, graph in cut.items()
    }
    for graph in cut.values():
        for index in reversed(range(len(graph.initializer))):
            if graph.initializer[index].name in shared:
                del graph.initializer[index]
    return ExportedBlocks(expansion=expansion, own=_serialized(cut), shared=_serialized(shared), needs=needs)


def _serialized(graphs: dict[str, onnx.GraphProto]) -> dict[str, bytes]:
    """The graphs as bytes. Each graph is deleted once serialized; clearing the message would not free its memory."""
    serialized: dict[str, bytes] = {}
    for name in list(graphs):
        serialized[name] = graphs.pop(name).SerializeToString(deterministic=True)
        if len(serialized[name]) >= WORTHWHILE_BYTES:
            give_back_freed_memory()
    return serialized


def _shared_initializers(graphs: Mapping[str, onnx.GraphProto]) -> dict[str, onnx.GraphProto]:
    """Move large weights that several parts share into one initializer-only graph each, and rename their uses."""
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
