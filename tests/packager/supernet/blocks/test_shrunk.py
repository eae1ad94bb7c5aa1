from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from device_sdk.supernet.blocks import TensorSpec
from packager.supernet.blocks.shrunk import shrink, shrunk_blocks
from packager.supernet.blocks.trainable import original_block
from packager.supernet.expansion import expand
from packager.tracing.traced_model import TracedModel, trace


def inner(traced: TracedModel):
    return [original_block(module, index, traced.cuts) for index, module in enumerate(traced.blocks)][1:-1]


def shrunk(traced: TracedModel, *rates: float):
    return shrunk_blocks(inner(traced), traced.tensors, rates=rates)


def test_every_block_is_shrunk_at_every_rate_and_keeps_its_boundary(tiny_traced, noise):
    made = shrunk(tiny_traced, 0.5, 0.25)
    assert [block.id for block in made.blocks] == [f"s{k}-{percent}" for k in (1, 2, 3, 4) for percent in (50, 25)]
    assert made.notes == ()
    originals = {block.id: block for block in inner(tiny_traced)}
    for block in made.blocks:
        source = originals[block.copied_from]
        share = 0.5 if block.id.endswith("50") else 0.25
        assert (block.kind, block.end) == ("shrunk", block.start + 1)
        assert block.macs == pytest.approx(share * source.macs, rel=0.05)
        assert block.parameters == pytest.approx(share * source.parameters, rel=0.15)
        for batch in (1, 3):
            found = block.module.eval()(noise(batch, *tiny_traced.tensors[block.start].shape))
            assert found.shape == (batch, *tiny_traced.tensors[block.end].shape)


def test_what_is_kept_are_the_most_important_weights_of_the_block_that_is_replaced(tiny_traced):
    source = inner(tiny_traced)[0].module
    names = [name for name, _ in source.named_parameters()]
    (block,) = shrunk_blocks(inner(tiny_traced)[:1], tiny_traced.tensors, rates=(0.5,)).blocks
    first = next(name for name in names if "conv1" in name)
    rows, whole = dict(block.module.named_parameters())[first], dict(source.named_parameters())[first]
    kept = [k for k in range(len(whole)) if any(torch.equal(row, whole[k]) for row in rows)]
    assert rows.shape == (4, *whole.shape[1:])
    assert len(kept) == 4
    parameters = dict(source.named_parameters())
    second = next(name for name in names if "conv2" in name)
    norms = whole.square().sum((1, 2, 3)).sqrt() * parameters[second].square().sum((0, 2, 3)).sqrt()
    left_out = [k for k in range(len(whole)) if k not in kept]
    assert norms[kept].sum() > norms[left_out].sum()


def test_the_originals_stay_as_they_are(tiny_traced):
    before = [value.clone() for block in tiny_traced.blocks for value in block.state_dict().values()]
    shrunk(tiny_traced, 0.5)
    after = [value for block in tiny_traced.blocks for value in block.state_dict().values()]
    assert all(map(torch.equal, before, after))
    assert not any(parameter.requires_grad for block in tiny_traced.blocks for parameter in block.parameters())


@pytest.mark.parametrize(("channels", "rate", "kept"), [(48, 0.5, 24), (48, 0.25, 8), (16, 0.25, 4), (4, 0.25, 1)])
def test_channels_remain_in_round_numbers(channels, rate, kept):
    block = nn.Sequential(nn.Conv2d(4, channels, 3, padding=1), nn.ReLU(), nn.Conv2d(channels, 4, 1))
    made = shrink(block, (4, 6, 6), (4, 6, 6), rate=rate)
    assert made is not None
    assert [tuple(layer.weight.shape[:2]) for layer in made if isinstance(layer, nn.Conv2d)] == [(kept, 4), (4, kept)]


@pytest.mark.parametrize(("channels", "rate", "percent"), [(16, 0.75, 50), (32, 0.75, 75), (48, 0.25, 17)])
def test_blocks_are_named_after_the_channels_that_they_kept(channels, rate, percent):
    block = nn.Sequential(nn.Conv2d(4, channels, 3, padding=1), nn.ReLU(), nn.Conv2d(channels, 4, 1))
    tensors = [TensorSpec("ends", (4, 6, 6))] * 2
    (made,) = shrunk_blocks([original_block(block, 0, [(spec,) for spec in tensors])], tensors, rates=(rate,)).blocks
    assert made.id == f"s0-{percent}"


def test_depthwise_layers_lose_channels_with_their_neighbours():
    block = nn.Sequential(
        *(nn.Conv2d(8, 32, 1), nn.BatchNorm2d(32), nn.ReLU6()),
        *(nn.Conv2d(32, 32, 3, padding=1, groups=32), nn.BatchNorm2d(32), nn.ReLU6(), nn.Conv2d(32, 8, 1)),
    )
    made = shrink(block, (8, 4, 4), (8, 4, 4), rate=0.5)
    assert made is not None
    assert [layer.weight.shape[0] for layer in made if isinstance(layer, nn.Conv2d)] == [16, 16, 8]


def test_cells_that_were_joined_are_shrunk_as_one(zoo_traced, noise):
    model = zoo_traced("resnet20_cifar10").whole
    joined = trace(model, noise(2, 3, 32, 32), gamma=0.2)
    assert len(joined.blocks) < len(zoo_traced("resnet20_cifar10").blocks)
    for block in shrunk(joined, 0.5).blocks:
        source = joined.blocks[block.start]
        convolutions = sum(isinstance(part, nn.Conv2d) for part in source.modules())
        assert sum(isinstance(part, nn.Conv2d) for part in block.module.modules()) == convolutions
        assert block.parameters < 0.9 * sum(parameter.numel() for parameter in source.parameters())


class Heads(nn.Module):
    """Channels that a fixed shape holds together, and a hidden layer that is free."""

    def __init__(self) -> None:
        super().__init__()
        self.split, self.join = nn.Linear(8, 16), nn.Linear(16, 8)
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.join(self.split(x).view(-1, 4, 4).softmax(-1).flatten(1))
        return x + self.down(self.up(x).relu())


def test_groups_that_cannot_lose_channels_are_left_alone(noise):
    made = shrink(Heads(), (8,), (8,), rate=0.5)
    assert made is not None
    assert (made.split.out_features, made.up.out_features, made.down.in_features) == (16, 16, 16)
    assert made(noise(3, 8)).shape == (3, 8)


def test_blocks_without_channels_inside_are_noted_together(noise):
    layers = [part for _ in range(4) for part in (nn.Linear(8, 8), nn.ReLU())]
    expansion = expand(trace(nn.Sequential(*layers[:-1]), noise(3, 8)), max_span=1, shrink_rates=(0.5,))
    assert expansion.added == ()
    assert expansion.notes == ("blocks 1, 2 not shrunk to 50 %: no inner channels can be removed",)


def test_a_rate_that_saves_nothing_more_than_the_one_before_is_noted():
    block = nn.Sequential(nn.Conv2d(4, 2, 1), nn.ReLU(), nn.Conv2d(2, 4, 1))
    traced = trace(
        nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU(), block, nn.ReLU(), nn.Conv2d(4, 4, 1)),
        torch.zeros(2, 4, 5, 5),
        gamma=0.6,
    )
    made = shrunk(traced, 0.5, 0.4)
    assert [found.id for found in made.blocks] == ["s1-50"]
    assert made.notes == ("block 1 not shrunk to 40 %: below 10 % of the MACs would be saved",)
