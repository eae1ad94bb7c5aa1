from __future__ import annotations

import copy

import torch
from torch import nn

from packager.supernet.blocks.narrowing import Narrowing, narrowing_between


def chain(inner: int, *, norm: bool = False) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(4, inner), nn.LayerNorm(inner) if norm else nn.GELU(), nn.Linear(inner, 4), nn.Linear(4, 2)
    )


def test_a_chain_of_linear_layers_lost_channels_between_two():
    assert narrowing_between(chain(8), chain(6)) == Narrowing({"0": 1}, "2")


def test_what_reaches_beyond_two_linear_layers_is_not_known():
    assert narrowing_between(chain(8, norm=True), chain(6, norm=True)) is None
    assert narrowing_between(chain(8), chain(8)) is None
    both = nn.ModuleList([chain(8), chain(8)]), nn.ModuleList([chain(6), chain(6)])
    assert narrowing_between(*both) is None


def test_other_channels_are_taken_with_their_biases():
    wide, narrow = chain(8), chain(3)
    units = torch.tensor([1, 4, 7])
    narrowing_between(wide, narrow).take(units, of=wide, into=narrow)
    assert torch.equal(narrow[0].weight, wide[0].weight[units])
    assert torch.equal(narrow[0].bias, wide[0].bias[units])
    assert torch.equal(narrow[2].weight, wide[2].weight[:, units])
    before = copy.deepcopy(narrow[2].bias)
    assert torch.equal(narrow[2].bias, before)  # what the reader adds by itself is not of these channels
