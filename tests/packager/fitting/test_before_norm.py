from __future__ import annotations

import torch
from torch import nn

from packager.fitting.before_norm import BeforeNorm, aim_of, last_norm

CHANNELS = 8


class PostNorm(nn.Module):
    """norm(x + feed-forward(x)), zero where x is zero: [n, t, c] → the same shape."""

    def __init__(self, inner: int = 32) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(CHANNELS, inner), nn.Linear(inner, CHANNELS)
        self.norm = nn.LayerNorm(CHANNELS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        present = (x.abs().amax(-1, keepdim=True) > 0).to(x.dtype)
        return self.norm(x + self.outer(nn.functional.gelu(self.inner(x)))) * present


class PreNorm(PostNorm):
    """x + feed-forward(norm(x))."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.outer(nn.functional.gelu(self.inner(self.norm(x))))


def made(build, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    module = build()
    nn.init.uniform_(module.norm.weight, 0.5, 2.0)
    nn.init.normal_(module.norm.bias)
    return module.eval()


def padded(noise, count: int, tokens: int = 6, *, seed: int = 0) -> torch.Tensor:
    features = noise(count, tokens, CHANNELS, seed=seed)
    features[:, tokens // 2 :] = 0
    return features


def test_the_norm_that_makes_the_output_is_found_and_no_other(noise):
    assert last_norm(made(PostNorm), padded(noise, 4)) == "norm"
    assert last_norm(made(PreNorm), noise(4, 6, CHANNELS)) is None
    assert last_norm(nn.Sequential(nn.LayerNorm(CHANNELS), nn.ReLU()), noise(4, 6, CHANNELS)) is None
    assert last_norm(nn.Linear(CHANNELS, CHANNELS), noise(4, 6, CHANNELS)) is None


def test_the_aim_is_what_the_norm_reads_where_it_counts(noise):
    original, features = made(PostNorm), padded(noise, 20)
    aim = aim_of(original, features)
    with torch.no_grad():
        assert torch.allclose(original.norm(aim.values) * aim.counted[..., None], original(features), atol=1e-6)
    assert aim.counted.sum() == 20 * 3
    assert aim_of(made(PreNorm), features).norm is None


def test_a_block_takes_the_norm_of_the_original_that_ends_there(noise):
    first, second = made(PostNorm, 1), made(PostNorm, 2)
    stripped = aim_of(second, padded(noise, 8)).stripped(first, padded(noise, 8))
    assert isinstance(stripped, BeforeNorm)
    assert torch.equal(stripped.block.norm.weight, second.norm.weight)
    assert not torch.equal(first.norm.weight, second.norm.weight)
    assert aim_of(second, padded(noise, 8)).stripped(made(PreNorm), noise(8, 6, CHANNELS)) is None
