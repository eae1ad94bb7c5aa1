from __future__ import annotations

from abc import ABC, abstractmethod

import pytest
import torch
from torch import Tensor, nn

from packager.branch_zoo.plain import attach_exits
from packager.data.batches import BatchSource
from packager.inputs.recipe import Recipe
from packager.supernet.expansion import expand
from packager.tracing.traced_model import trace
from packager.training import losses
from packager.training.losses import Losses, training_format

CPU = torch.device("cpu")


class Convolutions(nn.Module, ABC):
    """Three, then what ``between`` does with their features [batch, 4, 6, 6], then a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Conv2d(channels, 4, 3, padding=1) for channels in (3, 4, 4))
        self.last = nn.Linear(144, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.third(self.second(self.first(x).relu()).relu()).relu()
        return self.last(self.between(x))

    @abstractmethod
    def between(self, x: Tensor) -> Tensor: ...


class Pooled(Convolutions):
    def between(self, x: Tensor) -> Tensor:
        return x.mean((2, 3)).repeat(1, 36)


class Viewed(Convolutions):
    def between(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], 144)


class Strided(Convolutions):
    """Reads memory as it lies: other numbers, and no error, where it lies otherwise."""

    def between(self, x: Tensor) -> Tensor:
        return x.as_strided((x.shape[0], 144), (144, 1))


@pytest.mark.parametrize(
    ("model", "device", "expected"),
    [
        (Pooled, "cpu", torch.channels_last),
        (Pooled, "cuda", torch.contiguous_format),
        (Viewed, "cpu", torch.contiguous_format),
        (Strided, "cpu", torch.contiguous_format),
    ],
)
def test_channels_lie_last_on_a_processor_where_every_part_bears_it(noise, model, device, expected):
    expansion = expand(trace(model(), noise(2, 3, 6, 6)), max_span=2)
    assert expansion.added
    assert training_format(expansion, torch.device(device)) == expected


def test_what_is_no_image_stays_as_it_is(noise):
    layers = [layer for _ in range(4) for layer in (nn.Linear(8, 8), nn.ReLU())]
    assert (
        training_format(expand(trace(nn.Sequential(*layers), noise(2, 8)), max_span=2), CPU) == torch.contiguous_format
    )


def test_looking_at_an_expansion_does_not_change_it(tiny_traced):
    expansion = attach_exits(expand(tiny_traced, max_span=3), count=1)
    modules = [part.module for part in (*expansion.blocks, *expansion.exits)]
    before = [{name: value.clone() for name, value in module.state_dict().items()} for module in modules]
    training = [[inner.training for inner in module.modules()] for module in modules]
    assert any(map(any, training))
    assert training_format(expansion, CPU) == torch.channels_last
    assert [[inner.training for inner in module.modules()] for module in modules] == training
    for module, state in zip(modules, before, strict=True):
        assert all(torch.equal(value, state[name]) for name, value in module.state_dict().items())


def test_losses_are_the_same_in_both_formats(tiny_traced, digits, digits_preprocessing, monkeypatch):
    expansion = attach_exits(expand(tiny_traced, max_span=3), count=1)
    source = BatchSource(digits("train", limit=256), digits_preprocessing, batch=64, seed=5)
    recipe = Recipe(steps=10, precision="float32")

    def found() -> list[float]:
        one = Losses(expansion, source, recipe)
        return [loss(step).item() for loss in (one.distil, one.tune, one.exits) for step in range(3)]

    in_channels_last = found()
    monkeypatch.setattr(losses, "training_format", lambda *_: torch.contiguous_format)
    assert found() == pytest.approx(in_channels_last, rel=1e-3)
