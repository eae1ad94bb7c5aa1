from __future__ import annotations

import itertools

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from packager.branch_zoo.plain import PLAIN, attach_exits, exit_positions, without_untrained_exits
from packager.supernet.expansion import expand
from packager.tracing.traced_model import trace

# Positions


def test_exits_lie_near_even_shares_of_the_work():
    assert exit_positions([1] * 20, count=3) == (5, 10, 15)
    assert exit_positions([1] * 20, count=1) == (10,)
    assert exit_positions([10, 1, 1, 1, 1, 10], count=3) == (1, 3, 5)


def test_resnet20_gets_its_exits_at_a_quarter_a_half_and_three_quarters(zoo_traced):
    macs = [block.macs for block in expand(zoo_traced("resnet20_cifar10"), max_span=1).originals]
    done = [0.0, *itertools.accumulate(share / sum(macs) for share in macs)]
    positions = exit_positions(macs, count=3)
    assert positions == (3, 5, 8)
    assert [round(done[k], 2) for k in positions] == [0.24, 0.45, 0.77]


def test_where_almost_nothing_is_left_no_exit_is_worth_its_cost():
    assert exit_positions([40, 40, 17, 3], count=3) == (1, 2)
    assert exit_positions([100, 1], count=3) == ()
    assert exit_positions([0, 0, 0], count=3) == ()


@given(macs=st.lists(st.integers(0, 1000), min_size=1, max_size=30), count=st.integers(0, 8))
def test_positions_are_inner_distinct_in_order_and_no_more_than_asked(macs, count):
    positions = exit_positions(macs, count=count)
    assert len(positions) <= count
    assert list(positions) == sorted(set(positions))
    assert all(0 < position < len(macs) for position in positions)
    worth = [k for k in range(1, len(macs)) if sum(macs[k:]) > 0.05 * sum(macs)]
    assert len(positions) == min(count, len(worth))


# What is attached


def test_every_branch_is_attached_at_every_position(tiny_expansion):
    expansion = attach_exits(tiny_expansion, count=3)
    assert [exit_.id for exit_ in expansion.exits] == [f"x{k}-{name}" for k in (2, 3, 4) for name in PLAIN]
    assert {exit_.position for exit_ in attach_exits(tiny_expansion, count=2).exits} == {2, 4}
    assert expansion.blocks == tiny_expansion.blocks
    assert expansion.notes == tiny_expansion.notes


def test_exits_answer_like_the_model_with_one_number_per_class(tiny_expansion, noise):
    features = tiny_expansion.traced.features(noise(3, 1, 8, 8))
    for exit_ in attach_exits(tiny_expansion, count=3).exits:
        assert exit_.module(features[exit_.position]).shape == features[-1].shape
        assert exit_.parameters == sum(p.numel() for p in exit_.module.parameters())
        assert exit_.macs > 0


def test_exits_of_a_convolution_are_richer_than_pooled_ones_and_still_cheap(zoo_traced):
    expansion = attach_exits(expand(zoo_traced("resnet20_cifar10"), max_span=1), count=3)
    whole = sum(block.macs for block in expansion.originals)
    for pooled, conv in zip(expansion.exits[::2], expansion.exits[1::2], strict=True):
        assert (pooled.branch, conv.branch) == ("pooled", "conv")
        assert pooled.macs < conv.macs < 0.03 * whole


def test_exits_are_the_same_in_every_run(tiny_expansion):
    first, second = (attach_exits(tiny_expansion, count=3) for _ in range(2))
    for a, b in zip(first.exits, second.exits, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a.module.parameters(), b.module.parameters(), strict=True))


def test_token_features_get_exits_too(noise):
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(32, 32), nn.ReLU())])
            self.head = nn.Linear(32, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.layers(x.flatten(2).transpose(1, 2)).mean(1))

    expansion = attach_exits(expand(trace(Tokens(), noise(3, 32, 6, 6)), max_span=1), count=2)
    assert {expansion.traced.tensors[exit_.position].shape for exit_ in expansion.exits} == {(36, 32)}
    assert [exit_.branch for exit_ in expansion.exits] == [
        "pooled",
        "pooled",
    ]  # a hidden layer costs as much as a block


# Where there are none


def test_no_exits_are_attached_unless_asked_for(tiny_expansion):
    assert attach_exits(tiny_expansion, count=0) == tiny_expansion


def test_a_model_with_nothing_left_after_its_first_block_says_so(noise):
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2))
    expansion = attach_exits(expand(trace(model, noise(3, 1, 16, 16)), max_span=1), count=3)
    assert expansion.exits == ()
    assert "no exits: no branch structure fits any inner cut point" in expansion.notes


def test_exits_without_a_training_step_are_left_out_and_noted(tiny_expansion):
    expansion = attach_exits(tiny_expansion, count=3)
    assert without_untrained_exits(expansion, steps=1) is expansion
    assert without_untrained_exits(tiny_expansion, steps=0) is tiny_expansion
    left = without_untrained_exits(expansion, steps=0)
    assert left.exits == ()
    assert left.notes == (*tiny_expansion.notes, "no exits: the training had no step for them")
