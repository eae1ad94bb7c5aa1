from __future__ import annotations

import pytest
import torch
from torch import nn

from packager.renditions.xnnpack import rewritten


class Shortcut(nn.Module):
    """Every second pixel, and more channels: the shortcut of CIFAR's residual networks."""

    def forward(self, x):
        return nn.functional.pad(x[:, :, ::2, ::3], (0, 0, 0, 0, 2, 2))


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x):
        return self.linear(x.mean(dim=(2, 3)))


class Window(nn.Module):
    def forward(self, x):
        return x[:, :, 1:4].mean(dim=(2, 3), keepdim=True) + x[:, ::2].sum()


def targets(program):
    return {str(node.target) for node in program.graph.nodes if node.op == "call_function"}


@pytest.mark.parametrize("module", [Shortcut(), Head(), Window()])
def test_a_rewritten_block_computes_the_same(module, noise):
    example = noise(1, 4, 8, 7)
    program = rewritten(module, example)
    torch.testing.assert_close(program.module()(example), module(example))


def test_strided_slices_and_means_that_drop_their_axes_are_replaced(noise):
    example = noise(1, 4, 8, 7)
    assert "aten.slice.Tensor" not in targets(rewritten(Shortcut(), example))
    head = rewritten(Head(), example)
    kept = [node.args[2] for node in head.graph.nodes if str(node.target) == "aten.mean.dim"]
    assert kept == [True]


def test_other_slices_stay(noise):
    assert "aten.slice.Tensor" in targets(rewritten(Window(), noise(1, 4, 8, 7)))
