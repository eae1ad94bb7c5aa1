"""Memory per sample that modules need, measured by running them once. It determines batch sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from device_sdk.supernet.blocks import TensorSpec
from packager.supernet.expansion import Expansion

WORKING_BYTES = 256_000_000  # working set of a batch: larger batches are no faster on a CPU
LARGEST_BATCH = 64
_LIVE = 1.5  # memory of a runtime relative to an operator's tensors: other layouts, padding, prefetched outputs


@dataclass(frozen=True)
class Footprint:
    """Bytes per sample. ``widest``: inputs and outputs of the largest operator; ``written``: all outputs."""

    widest: int
    written: int

    @classmethod
    def largest(cls, footprints: Iterable[Footprint]) -> Footprint:
        """The elementwise maximum."""
        found = list(footprints)
        return cls(max(footprint.widest for footprint in found), max(footprint.written for footprint in found))


def footprints(expansion: Expansion) -> dict[str, Footprint]:
    """The footprint of every block and exit, by its id."""
    cuts = expansion.traced.cuts
    found = {
        block.id: module_footprint(block.module, [spec for k in (*block.taps, block.start) for spec in cuts[k]])
        for block in expansion.blocks
    }
    return found | {exit_.id: module_footprint(exit_.module, cuts[exit_.position]) for exit_ in expansion.exits}


def module_footprint(module: nn.Module, read: Sequence[TensorSpec]) -> Footprint:
    """The footprint of ``module`` in evaluation mode, which takes the tensors ``read``."""
    inputs = [torch.zeros(1, *spec.shape, dtype=getattr(torch, spec.dtype)) for spec in read]
    weights = {tensor.data_ptr() for tensor in [*module.parameters(), *module.buffers()]}
    with torch.no_grad(), _Counting(weights) as counting:
        module.eval()(*inputs)
    given = sum(tensor.nbytes for tensor in inputs)
    return Footprint(max(counting.widest, given), counting.written)


def batch_within(footprint: Footprint, *, room_bytes: int = WORKING_BYTES, most: int = LARGEST_BATCH) -> int:
    """The largest batch within ``room_bytes``; at least 1."""
    return max(1, min(most, int(room_bytes / (_LIVE * max(footprint.widest, 1)))))


class _Counting(TorchDispatchMode):
    """Sums the bytes of the tensors that operators read and write, weights excluded."""

    def __init__(self, weights: set[int]) -> None:
        super().__init__()
        self._weights = weights
        self.widest = self.written = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        answer = function(*args, **(kwargs or {}))
        read = {tensor.data_ptr(): tensor.nbytes for tensor in self._activations((args, kwargs or {}))}
        written = {tensor.data_ptr(): tensor.nbytes for tensor in self._activations(answer)}
        self.widest = max(self.widest, sum((read | written).values()))
        self.written += sum(size for pointer, size in written.items() if pointer not in read)
        return answer

    def _activations(self, values: Any) -> list[torch.Tensor]:
        found = [tensor for tensor in tree_leaves(values) if isinstance(tensor, torch.Tensor)]
        return [tensor for tensor in found if tensor.data_ptr() not in self._weights]
