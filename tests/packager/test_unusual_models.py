"""Models that are easily packaged wrongly: the original path stays the model, and every path that is shipped runs."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from device_sdk.paths import sample_uniformly
from device_sdk.random_source import SplitMix64
from device_sdk.runtimes import OnnxRuntime
from packager.exits import attach_exits
from packager.expansion import expand
from packager.exporting.export import export_blocks
from packager.exporting.verification import Verifier
from packager.tracing.traced_model import trace
from packager.training.batches import BatchSource


class Cells(nn.Module):
    """Flat digits through four hidden layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 16), nn.Linear(16, 10)
        self.cells = nn.ModuleList(nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 16)) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x.flatten(1)).relu()
        for cell in self.cells:
            x = x + self.cell(cell, x)
        return self.last(x)

    def cell(self, cell: nn.Module, x: Tensor) -> Tensor:
        return cell(x)


class SharedModules(Cells):
    """One cell used four times."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.ModuleList([self.cells[0]] * 4)


class UnusedParameters(Cells):
    """Layers and a parameter that no answer depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.never_called, self.never_read = nn.Linear(16, 16), nn.Parameter(torch.ones(5))
        self.result_dropped = nn.Linear(16, 16)

    def cell(self, cell: nn.Module, x: Tensor) -> Tensor:
        self.result_dropped(x)
        return cell(x)


class InPlaceSurprises(Cells):
    """Writes into its own input, into a view, and into what a skip connection still reads."""

    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x.clone().mul_(0.5))
        return x.add_(1.0)

    def cell(self, cell: nn.Module, x: Tensor) -> Tensor:
        y = functional.relu(cell(x), inplace=True)
        y[:, :4] *= 2.0
        return y.sub_(0.1)


class ActivatingLinear(nn.Linear):
    """A layer with an activation of its own, as normalisations of timm have one."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.activation = nn.Hardswish()

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(super().forward(x))


class LayersThatDoMore(Cells):
    """Subclasses of torch's layers whose ``forward`` is more than that of the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.ModuleList(nn.Sequential(ActivatingLinear(16, 24), nn.Linear(24, 16)) for _ in range(4))


@pytest.mark.parametrize("build", [SharedModules, UnusedParameters, InPlaceSurprises, LayersThatDoMore])
def test_unusual_models_are_packaged_right(build, digits, digits_preprocessing, run_training, noise):
    torch.manual_seed(0)
    model = build().eval().requires_grad_(False)
    before, images = copy.deepcopy(model.state_dict()), noise(3, 1, 8, 8)
    answers = model(images)
    traced = trace(model, noise(4, 1, 8, 8), gamma=0.3)
    expansion = attach_exits(expand(traced, max_span=2, shrink_rates=(0.5,), identity=True), count=1)
    assert {block.kind for block in expansion.added} == {"merged", "shrunk", "identity"}
    source = BatchSource(digits("train", limit=64), digits_preprocessing, batch=32, seed=0)
    run_training(expansion, source, steps=6)

    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    exported, supernet, runtime = export_blocks(expansion), expansion.supernet(), OnnxRuntime(threads=1)
    (found,) = runtime.load(exported.stretch(supernet.original.block_ids)).run([images.numpy()])
    np.testing.assert_allclose(found, answers.numpy(), atol=1e-4)
    verifier = Verifier(exported)
    for block in expansion.blocks:
        verifier.block_golden(block.id)
    for subnet in sample_uniformly(supernet, count=5, random=SplitMix64(0)):
        (found,) = runtime.load(exported.stretch(subnet.block_ids)).run([images.numpy()])
        assert found.shape == (3, 10)
        assert np.isfinite(found).all()
