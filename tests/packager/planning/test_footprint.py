from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from device_sdk.supernet.blocks import TensorSpec
from packager.planning.estimate import Footprint, batch_within, footprints, module_footprint
from packager.supernet.expansion import expand
from packager.tracing.traced_model import trace


class Streams(nn.Module):
    """Two streams, fine and coarse, that meet at the end: everywhere between two tensors are live."""

    def __init__(self) -> None:
        super().__init__()
        self.fine, self.coarse = nn.Conv2d(1, 4, 3, 1, 1), nn.Conv2d(1, 6, 3, 2, 1)
        self.fines, self.coarses = (nn.ModuleList(nn.Conv2d(n, n, 3, 1, 1) for _ in range(8)) for n in (4, 6))
        self.last = nn.Linear(10, 5)

    def forward(self, x: Tensor) -> Tensor:
        fine, coarse = self.fine(x), self.coarse(x)
        for one, other in zip(self.fines, self.coarses, strict=True):
            fine, coarse = fine + one(fine).relu(), coarse + other(coarse).relu()
        return self.last(torch.cat([fine.mean((2, 3)), coarse.mean((2, 3))], 1))


def test_the_widest_operator_and_all_that_is_written_are_counted():
    module = nn.Sequential(nn.Conv2d(3, 16, 1), nn.ReLU(), nn.Conv2d(16, 4, 1))
    found = module_footprint(module, [TensorSpec("input", (3, 10, 10))])
    assert found.widest == 4 * (16 + 16) * 100  # ReLU reads and writes 16 channels
    assert found.written == 4 * (16 + 16 + 4) * 100


def test_a_wide_inner_tensor_counts_though_no_cut_point_shows_it():
    narrow = module_footprint(nn.Conv2d(8, 8, 1), [TensorSpec("input", (8, 4, 4))])
    wide = module_footprint(nn.Sequential(nn.Conv2d(8, 64, 1), nn.Conv2d(64, 8, 1)), [TensorSpec("input", (8, 4, 4))])
    assert wide.widest > 4 * narrow.widest


def test_weights_are_no_activations():
    found = module_footprint(nn.Linear(1000, 2), [TensorSpec("input", (1000,))])
    assert found.widest == 4 * 1002


def test_batches_fit_into_the_room():
    footprint = Footprint(widest=1_000_000, written=5_000_000)
    assert batch_within(footprint, room_bytes=15_000_000) == 10
    assert batch_within(footprint, room_bytes=10) == 1
    assert batch_within(footprint, room_bytes=10**12) == 64


def test_every_block_and_exit_has_one(tiny_exported_with_exits):
    expansion = tiny_exported_with_exits.expansion
    found = footprints(expansion)
    assert found.keys() == {block.id for block in expansion.blocks} | {exit_.id for exit_ in expansion.exits}
    for block in expansion.blocks:
        assert found[block.id].widest >= 4 * math.prod(expansion.traced.tensors[block.end].shape)


def test_a_block_between_cut_points_of_several_tensors_has_one(noise):
    expansion = expand(trace(Streams().eval(), noise(4, 1, 8, 8)), max_span=2, identity=True)
    assert any(len(specs) > 1 for specs in expansion.traced.cuts)
    found = footprints(expansion)
    assert found.keys() == {block.id for block in expansion.blocks}
    for block in expansion.blocks:
        read = sum(spec.nbytes for spec in expansion.traced.cuts[block.start])
        assert found[block.id].widest >= read
