from __future__ import annotations

import pytest
import torch
from torch import nn

from packager.supernet.blocks.heads import attentions, fewer_heads
from packager.supernet.blocks.shrunk import shrunk_blocks
from packager.supernet.blocks.trainable import original_block
from packager.tracing.traced_model import trace

CHANNELS, HEADS, TOKENS = 24, 6, 10


class Apart(nn.Module):
    """Queries, keys and values from a layer each; the number of heads, or of tokens, is left open."""

    def __init__(self, *, open_heads: bool) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(CHANNELS, CHANNELS) for _ in range(4))
        self.tokens_and_heads = (TOKENS, -1) if open_heads else (-1, HEADS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (self.heads(layer(x)) for layer in (self.query, self.key, self.value))
        mixed = nn.functional.scaled_dot_product_attention(query, key, value)
        return x + self.out(mixed.transpose(1, 2).flatten(2))

    def heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0], *self.tokens_and_heads, CHANNELS // HEADS).transpose(1, 2)


class Together(nn.Module):
    """Queries, keys and values from one layer, as in vision transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.all, self.out = nn.Linear(CHANNELS, 3 * CHANNELS, bias=False), nn.Linear(CHANNELS, CHANNELS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.all(x).reshape(x.shape[0], TOKENS, 3, HEADS, CHANNELS // HEADS).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        mixed = (query @ key.transpose(2, 3) * 0.5).softmax(-1) @ value
        return x + self.out(mixed.transpose(1, 2).reshape(x.shape[0], TOKENS, CHANNELS))


class WithBias(Together):
    """A number for each head is added to the scores: the graph holds it, and it is not narrowed."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(HEADS, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.all(x).reshape(x.shape[0], TOKENS, 3, HEADS, CHANNELS // HEADS).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        mixed = (query @ key.transpose(2, 3) * 0.5 + self.bias).softmax(-1) @ value
        return x + self.out(mixed.transpose(1, 2).reshape(x.shape[0], TOKENS, CHANNELS))


def block(attention: nn.Module, noise) -> tuple[nn.Module, tuple]:
    """The block of a traced network that holds ``attention``, and the tensors at the cut points."""
    ends = [nn.Sequential(nn.Linear(CHANNELS, CHANNELS), nn.ReLU()) for _ in range(2)]
    traced = trace(nn.Sequential(ends[0], attention, ends[1], nn.Linear(CHANNELS, 3)), noise(4, TOKENS, CHANNELS))
    [at] = [index for index, one in enumerate(traced.blocks) if attentions(one)]
    return original_block(traced.blocks[at], at, traced.cuts), traced.tensors


@pytest.mark.parametrize(
    "build", [lambda: Apart(open_heads=False), lambda: Apart(open_heads=True), Together], ids=["heads", "open", "one"]
)
def test_whole_heads_are_left_out_and_the_others_answer_as_before(build, noise):
    torch.manual_seed(3)
    original, _ = block(build(), noise)
    module, narrowing = fewer_heads(original.module, (TOKENS, CHANNELS), rate=0.5)
    assert narrowing.unit == CHANNELS // HEADS
    reader = module.get_submodule(narrowing.reader)
    assert reader.in_features == CHANNELS // 2
    for name, times in narrowing.layers.items():
        assert module.get_submodule(name).out_features == times * CHANNELS // 2
    kept = torch.arange(HEADS - 3, HEADS)
    narrowing.take(kept, of=original.module, into=module)
    wide = original.module.get_submodule(narrowing.reader)
    inputs = noise(3, TOKENS, CHANNELS)
    with torch.no_grad():
        found = module(inputs)
        wide.weight[:, : CHANNELS // 2] = 0
        assert torch.allclose(found, original.module(inputs), atol=1e-5)


def test_the_shrunk_block_is_named_after_its_heads(noise):
    original, tensors = block(Together(), noise)
    made = shrunk_blocks([original], tensors, rates=(0.5,))
    [shrunk] = made.blocks
    assert shrunk.id == f"s{original.start}-50"
    assert shrunk.macs < 0.7 * original.macs
    assert [one.unit for one in shrunk.narrowings] == [CHANNELS // HEADS]


def test_an_attention_that_is_not_understood_is_left_as_it_is(noise):
    original, _ = block(WithBias(), noise)
    assert attentions(original.module)
    assert fewer_heads(original.module, (TOKENS, CHANNELS), rate=0.5) is None


def test_all_heads_are_not_fewer(noise):
    original, _ = block(Together(), noise)
    assert fewer_heads(original.module, (TOKENS, CHANNELS), rate=0.95) is None
    assert fewer_heads(nn.Sequential(nn.Linear(4, 4)), (4,), rate=0.5) is None
