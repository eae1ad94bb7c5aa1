from __future__ import annotations

import pytest
import torch
from torch import nn

from packager.fitting.last_map import last_map
from packager.fitting.refit import refitted
from packager.supernet.blocks.trainable import evaluated


class Residual(nn.Module):
    """x + bn(conv(relu(conv(x)))), perhaps rectified."""

    def __init__(self, *, rectified: bool, bounded: bool = False) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(4, 8, 3, padding=1, bias=False), nn.Conv2d(8, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.end = nn.ReLU6() if bounded else nn.ReLU() if rectified else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.end(x + self.norm(self.last(self.first(x).relu())))


class Tokens(nn.Module):
    """x + scale · linear(gelu(linear(x))) on [batch, tokens, width]."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 12), nn.Linear(12, 6)
        self.scale = nn.Parameter(torch.linspace(0.5, 2.0, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.scale * self.last(nn.functional.gelu(self.first(x)))


class ChannelsLast(nn.Module):
    """As in ConvNeXt: linear layers on [batch, height, width, channels] inside, channels first outside."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 9), nn.Linear(9, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.last(self.first(x.permute(0, 2, 3, 1)).relu()).permute(0, 3, 1, 2)


def made(build, seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = build()
        for part in module.modules():
            if isinstance(part, nn.BatchNorm2d):
                nn.init.uniform_(part.weight, 0.5, 2.0)
                nn.init.normal_(part.bias)
                nn.init.normal_(part.running_mean)
                nn.init.uniform_(part.running_var, 0.5, 2.0)
    return module.eval()


BLOCKS = {
    "residual": (lambda: Residual(rectified=False), (4, 6, 6)),
    "rectified": (lambda: Residual(rectified=True), (4, 6, 6)),
    "tokens": (Tokens, (10, 6)),
    "channels last": (ChannelsLast, (4, 5, 5)),
    "strided": (lambda: nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 6, 1, 2)), (4, 8, 8)),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_that_differs_in_its_last_map_only_is_fitted_to_the_teacher(name, noise):
    """The same block, its last layer drawn anew, finds the teacher's weights again."""
    build, shape = BLOCKS[name]
    teacher, student = made(build, 1), made(build, 1)
    inputs, unseen = noise(200, *shape), noise(20, *shape, seed=9)
    layer = student.get_submodule(last_map(student, inputs[:4]).layer)
    with torch.no_grad():
        layer.weight.copy_(noise(*layer.weight.shape, seed=5))
        target, wanted, before = teacher(inputs), teacher(unseen), student(unseen)
    fitted = refitted(student, last_map(student, inputs[:4]), inputs, target, seed=0)
    with torch.no_grad():
        error = (fitted(unseen) - wanted).square().mean() / wanted.var()
        assert (before - wanted).square().mean() / wanted.var() > 0.1
    assert error < (0.02 if name == "rectified" else 1e-3)


def test_both_modes_of_batch_norm_agree_after_a_fit(noise):
    teacher, student = made(lambda: Residual(rectified=False), 1), made(lambda: Residual(rectified=False), 2)
    inputs = noise(400, 4, 6, 6)
    with torch.no_grad():
        target = teacher(inputs)
    fitted = refitted(student, last_map(student, inputs[:4]), inputs, target, seed=0)
    with torch.no_grad():
        evaluating, training = fitted.eval()(inputs), fitted.train()(inputs)
    assert (evaluating - training).abs().max() < 0.05 * evaluating.abs().max()


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (Residual(rectified=True, bounded=True), (4, 6, 6)),  # ReLU6 cuts off above as well
        (nn.Sequential(nn.Conv2d(4, 4, 1), nn.Softmax(1)), (4, 6, 6)),
        (nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, groups=4)), (4, 6, 6)),
        (nn.Identity(), (4, 6, 6)),
    ],
)
def test_without_a_linear_end_there_is_no_last_map(module, shape, noise):
    assert last_map(module, 3 * noise(4, *shape)) is None


def test_finding_the_map_leaves_the_block_as_it_was(noise):
    module = made(lambda: Residual(rectified=True), 3).train()
    before = {key: value.clone() for key, value in module.state_dict().items()}
    last_map(module, noise(4, 4, 6, 6))
    assert module.training
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())
    with evaluated(module):
        assert torch.isfinite(module(noise(2, 4, 6, 6))).all()
