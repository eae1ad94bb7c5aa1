"""Models that are easily packaged wrongly: the original path stays the model, and every path that is shipped runs."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from device_sdk.random_source import SplitMix64
from device_sdk.runtimes import OnnxRuntime
from device_sdk.supernet.paths import sample_uniformly
from packager.branch_zoo.plain import attach_exits
from packager.data.batches import BatchSource
from packager.exporting.export import export_blocks
from packager.exporting.verification import Verifier
from packager.supernet.expansion import expand
from packager.tracing.traced_model import trace


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
        verifier.golden([block.id])
    for subnet in sample_uniformly(supernet, count=5, random=SplitMix64(0)):
        (found,) = runtime.load(exported.stretch(subnet.block_ids)).run([images.numpy()])
        assert found.shape == (3, 10)
        assert np.isfinite(found).all()


class Convolution(nn.Sequential):
    """A convolution with what belongs to it: [batch, source, height, width] -> [batch, target, height / stride, …]."""

    def __init__(self, source: int, target: int, *, stride: int = 1) -> None:
        super().__init__(nn.Conv2d(source, target, 3, stride, 1), nn.BatchNorm2d(target), nn.ReLU())


class HighResolution(nn.Module):
    """Two streams that exchange features, as in HRNet (Wang et al. 2020): nowhere is a single tensor live."""

    def __init__(self) -> None:
        super().__init__()
        self.fine, self.coarse = Convolution(1, 8), Convolution(1, 12, stride=2)
        self.fines = nn.ModuleList(Convolution(8, 8) for _ in range(4))
        self.coarses = nn.ModuleList(Convolution(12, 12) for _ in range(4))
        self.ups, self.downs = (nn.ModuleList(make() for _ in range(2)) for make in (self.up, self.down))
        self.last = nn.Linear(20, 10)

    def up(self) -> nn.Module:
        return nn.Sequential(nn.Conv2d(12, 8, 1), nn.Upsample(scale_factor=2))

    def down(self) -> nn.Module:
        return nn.Conv2d(8, 12, 3, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        fine, coarse = self.fine(x), self.coarse(x)
        for stage in range(2):
            for layer in range(2 * stage, 2 * stage + 2):
                fine, coarse = fine + self.fines[layer](fine), coarse + self.coarses[layer](coarse)
            fine, coarse = fine + self.ups[stage](coarse), coarse + self.downs[stage](fine)
        return self.last(torch.cat([fine.mean((2, 3)), coarse.mean((2, 3))], 1))


@pytest.fixture
def streams(noise):
    torch.manual_seed(0)
    traced = trace(HighResolution().eval().requires_grad_(False), noise(4, 1, 8, 8))
    return attach_exits(expand(traced, max_span=2, shrink_rates=(0.5,), identity=True), count=1)


def test_parallel_streams_are_trained_packaged_and_skipped_like_a_chain(
    streams, digits, digits_preprocessing, run_training, noise
):
    assert {block.kind for block in streams.added} == {"merged", "identity"}
    assert [spec.name for spec in streams.cut_points[2].tensors] == ["cut_2", "cut_2_1"]
    run_training(streams, BatchSource(digits("train", limit=64), digits_preprocessing, batch=32, seed=0), steps=6)
    exported, supernet, runtime = export_blocks(streams), streams.supernet(), OnnxRuntime(threads=1)
    verifier, images = Verifier(exported), noise(3, 1, 8, 8)
    for block in streams.blocks:
        verifier.golden([block.id])
    verifier.sampled_subnets(seed=0)
    (found,) = runtime.load(exported.stretch(supernet.original.block_ids)).run([images.numpy()])
    np.testing.assert_allclose(found, streams.traced.whole(images).numpy(), atol=1e-4)


def test_a_skip_in_parallel_streams_hands_every_stream_on(streams, noise):
    exported, runtime = export_blocks(streams), OnnxRuntime(threads=1)
    skip = next(block for block in streams.added if block.kind == "identity")
    inputs = [noise(3, *spec.shape).numpy() for spec in streams.traced.cuts[skip.start]]
    found = runtime.load(exported.stretch([skip.id])).run(inputs)
    assert all(np.array_equal(one, other) for one, other in zip(found, inputs, strict=True))


class WindowedAttention(nn.Module):
    """Attention within windows on five dimensions [batch, windows, heads, tokens, channels], as in Hiera and NesT."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 10)
        self.layers = nn.ModuleList(nn.Linear(8, 24) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x.flatten(1, 2))
        for layer in self.layers:
            windows = layer(x).view(-1, 2, 4, 3, 2, 4).permute(3, 0, 1, 4, 2, 5)
            x = x + functional.scaled_dot_product_attention(*windows.unbind(0)).transpose(2, 3).reshape(-1, 8, 8)
        return self.last(x.mean(1))


def test_attention_on_five_dimensions_is_exported(noise):
    torch.manual_seed(0)
    model, images = WindowedAttention().eval().requires_grad_(False), noise(3, 1, 8, 8)
    expansion = expand(trace(model, noise(4, 1, 8, 8)), max_span=2)
    assert expansion.added
    exported = export_blocks(expansion)
    (found,) = (
        OnnxRuntime(threads=1).load(exported.stretch([block.id for block in expansion.originals])).run([images.numpy()])
    )
    np.testing.assert_allclose(found, model(images).numpy(), atol=1e-5)
