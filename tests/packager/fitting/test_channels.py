from __future__ import annotations

import pytest
import torch
from torch import nn

from packager.fitting.before_norm import aim_of
from packager.fitting.candidates import FITTED, candidates
from packager.fitting.channels import channel_effects, with_best_channels
from packager.supernet.blocks.shrunk import shrunk_blocks
from packager.supernet.blocks.trainable import original_block
from packager.tracing.traced_model import trace
from tests.packager.fitting.test_before_norm import CHANNELS, PostNorm, PreNorm, made, padded


def test_a_channel_counts_by_how_much_it_varies_and_what_is_behind_it(noise):
    module = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 2))
    with torch.no_grad():
        module[0].weight.copy_(torch.diag(torch.tensor([1.0, 2.0, 1.0])))
        module[1].weight.copy_(torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 0.0]]))
    features = noise(400, 5, 3)
    found = channel_effects(module, "1", features)
    assert found.tolist() == pytest.approx([1.0, 8.0, 0.0], rel=0.1)
    counted = torch.zeros(400, 5, dtype=torch.bool)
    counted[:, 0] = True
    features[:, 1:] *= 100
    assert channel_effects(module, "1", features, counted).tolist() == pytest.approx([1.0, 8.0, 0.0], rel=0.2)


def test_a_block_of_which_it_is_not_known_what_it_lost_is_left_alone(tiny_traced, noise):
    original = original_block(tiny_traced.blocks[1], 1, tiny_traced.cuts)
    [block] = shrunk_blocks([original], tiny_traced.tensors, rates=(0.5,)).blocks
    assert with_best_channels(block, original.module, noise(4, *tiny_traced.tensors[1].shape)) is None


@pytest.mark.parametrize("build", [PostNorm, PreNorm])
def test_a_narrow_block_is_fitted_with_the_channels_that_matter(build, noise):
    """Half of the inner channels do nothing, though their weights are the largest: the others make the teacher."""
    module = made(build)
    with torch.no_grad():
        module.inner.weight[:16] = 0
        module.inner.bias[:16] = 20.0  # a constant, whose weights are large
        module.outer.weight[:, :16] *= 3
    network = nn.Sequential(made(PreNorm, 5), module, nn.Linear(CHANNELS, 3))
    inputs = padded(noise, 120) if build is PostNorm else noise(120, 6, CHANNELS)
    traced = trace(network, inputs[:4])
    features = traced.features(inputs)
    [at] = [index for index, one in enumerate(traced.blocks) if "1_inner" in dict(one.named_modules())]
    original = original_block(traced.blocks[at], at, traced.cuts)
    [block] = shrunk_blocks([original], traced.tensors, rates=(0.5,)).blocks
    aim = aim_of(original.module, features[at].detach())
    copied, fitted = candidates([block], original.module, features[at].detach(), aim, seed=0)
    assert fitted.how == FITTED
    with torch.no_grad():
        wanted = features[at + 1]
        errors = [float((one.block.module(features[at]) - wanted).square().mean()) for one in (copied, fitted)]
    assert errors[0] > 0.05
    assert errors[1] < 1e-4
