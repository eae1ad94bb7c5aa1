from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from device_sdk.errors import PathweaveError
from packager.errors import TraceError
from packager.inputs.model_loader import load_model
from packager.supernet.expansion import expand
from packager.tracing.cut_points import LONG
from packager.tracing.traced_model import parameter_count, trace


def assert_reproduced(model: nn.Module, traced, inputs: Tensor) -> None:
    with torch.no_grad():
        expected, found = model.eval()(inputs), traced.features(inputs)[-1]
    assert found.shape == expected.shape
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-5)


# Cut points


def test_resnet20_is_cut_before_and_after_every_residual_block(zoo_traced):
    traced = zoo_traced("resnet20_cifar10")
    stages = [(16, 32, 32)] * 4 + [(32, 16, 16)] * 3 + [(64, 8, 8)] * 3
    assert [spec.shape for spec in traced.tensors] == [(3, 32, 32), *stages, (10,)]
    assert [spec.name for spec in traced.tensors] == [f"cut_{k}" for k in range(12)]
    assert len(traced.blocks) == 11


@pytest.mark.parametrize(
    ("name", "inner"),
    [
        ("resnet18", 9),
        ("mobilenet_v2", 32),
        pytest.param("swin_t", 28, marks=pytest.mark.slow),
        pytest.param("vit_b_16", 25, marks=pytest.mark.slow),
    ],
)
def test_torchvision_models_have_the_published_cut_points(name, inner, noise):
    pytest.importorskip("torchvision")
    model = load_model(f"torchvision:{name}")
    assert len(trace(model.module, noise(1, 3, 224, 224)).tensors) == inner + 2


def test_cut_points_state_the_range_of_real_values(noise):
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    inputs = noise(500, 4)
    spec = trace(model, inputs).tensors[1]
    hidden = model[1](model[0](inputs)).detach()
    assert spec.low == 0.0
    assert hidden.quantile(0.98) < spec.high < hidden.max()


@pytest.mark.parametrize("gamma", [0.0, 0.1, 0.2, 0.4])
def test_gamma_joins_neighbours_up_to_that_share_of_the_parameters(zoo_traced, noise, gamma):
    whole = zoo_traced("resnet20_cifar10")
    joined = trace(whole.whole, noise(2, 3, 32, 32), gamma=gamma)
    limit = max(gamma * sum(whole.parameters), max(whole.parameters))
    assert sum(joined.parameters) == sum(whole.parameters)
    assert max(joined.parameters) <= limit
    assert (joined.parameters[0], joined.parameters[-1]) == (whole.parameters[0], whole.parameters[-1])
    pairs = [a + b for a, b in itertools.pairwise(joined.parameters[1:-1])]
    assert all(pair > gamma * sum(whole.parameters) for pair in pairs)
    assert len(joined.blocks) == {0.0: 11, 0.1: 9, 0.2: 7, 0.4: 6}[gamma]


# Blocks


@pytest.mark.parametrize("batch", [1, 3, 64])
def test_blocks_together_compute_what_the_model_computes(zoo_traced, noise, batch):
    traced = zoo_traced("resnet20_cifar10")
    assert_reproduced(traced.whole, traced, noise(batch, 3, 32, 32, seed=batch))


def test_a_copied_block_trains_and_the_original_stays_bit_identical(zoo_traced, noise):
    original = zoo_traced("resnet20_cifar10").blocks[1]
    before = copy.deepcopy(original.state_dict())
    block = copy.deepcopy(original).requires_grad_(True).train()
    norms = [module for module in block.modules() if isinstance(module, nn.BatchNorm2d)]
    assert len(norms) == 2
    block(noise(8, 16, 32, 32) + 1).square().mean().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in block.parameters())
    assert all(not torch.equal(value, before[name]) for name, value in block.state_dict().items() if "running" in name)
    assert all(torch.equal(value, before[name]) for name, value in original.state_dict().items())


def test_tracing_leaves_the_model_as_it_was(noise):
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Conv2d(4, 2, 3)).train()
    before = copy.deepcopy(model.state_dict())
    trace(model, noise(3, 1, 9, 9))
    assert model.training
    assert model[2].inplace
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class InPlace(nn.Module):
    """Each layer's output is changed in place by what follows, as module, function and method."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(5, 5) for _ in range(4))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.layers[0](x))
        x = functional.relu(self.layers[1](x), inplace=True)
        x = self.layers[2](x).clamp_(min=0)
        return self.layers[3](x)


def test_operators_in_place_do_not_change_cached_features(noise):
    model, inputs = InPlace(), noise(6, 5)
    traced = trace(model, inputs)
    features = [inputs]
    with torch.no_grad():
        for block in traced.blocks:
            kept = features[-1].clone()
            features.append(block(features[-1]))
            assert torch.equal(features[-2], kept)
    assert len(traced.blocks) == 4
    assert_reproduced(model, traced, noise(3, 5, seed=1))


class Reshaping(nn.Module):
    """Sizes are read from the input and used blocks later; in between, a sample is two rows."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(6, 8), nn.Linear(4, 4), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        batch, double = x.shape[0], x.shape[0] * 2
        x = functional.relu(self.first(x))
        x = functional.relu(self.second(x.view(double, 4))).reshape(batch, 8)
        x = functional.relu(self.first(x[:, 2:]))
        return self.third(x.view(double, 4).reshape(batch, 8))


@pytest.mark.parametrize("batch", [1, 3, 64])
def test_sizes_are_recomputed_from_each_blocks_own_input(noise, batch):
    model = Reshaping()
    traced = trace(model, noise(4, 6))
    assert [spec.shape for spec in traced.tensors] == [(6,), (8,), (8,), (8,), (3,)]
    assert_reproduced(model, traced, noise(batch, 6, seed=batch))


def test_a_layer_used_twice_is_one_module_of_each_block(noise):
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shared, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.shared(self.shared(x).relu()).relu())

    model = Twice()
    traced = trace(model, noise(3, 4))
    assert [parameter_count(block) for block in traced.blocks] == [20, 20, 10]
    assert_reproduced(model, traced, noise(5, 4))


class UnderAutocast(nn.Module):
    """Linear attention in full precision, as EfficientViT computes it: a region of its own in the exported graph."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.layers = nn.Linear(6, 8), nn.ModuleList(nn.Linear(8, 24) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            with torch.autocast("cpu", enabled=False):
                query, key, value = layer(x.float()).chunk(3, dim=-1)
                x = x + query.relu() @ (key.relu().transpose(-1, -2) @ value)
        return x


def test_an_operator_under_a_context_manager_is_cut_like_others(noise):
    model = UnderAutocast()
    traced = trace(model, noise(4, 5, 6))
    assert [len(specs) for specs in traced.cuts] == [1] * 5
    assert_reproduced(model, traced, noise(3, 5, 6, seed=1))


class WithBias(nn.Module):
    """A bias from a small network of its own, computed once and added in every block."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("places", torch.linspace(0, 1, 6)[:, None])
        self.bias, self.layers = nn.Linear(1, 6), nn.ModuleList(nn.Linear(6, 6) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        bias = self.bias(self.places).relu().mean(0)
        for layer in self.layers:
            x = (layer(x) + bias).relu()
        return x


def test_what_no_input_changes_is_computed_again_where_it_is_needed(noise):
    model = WithBias()
    traced = trace(model, noise(4, 6))
    assert [len(specs) for specs in traced.cuts] == [1] * 5
    assert_reproduced(model, traced, noise(3, 6, seed=1))


class ParallelStreams(nn.Module):
    """Two streams of different width that exchange features: nowhere is a single tensor live."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(6, 8), nn.Linear(6, 4)
        self.wides, self.narrows = (nn.ModuleList(nn.Linear(n, n) for _ in range(3)) for n in (8, 4))
        self.down, self.up, self.last = nn.Linear(8, 4), nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        wide, narrow = self.wide(x), self.narrow(x)
        for layer in self.wides:
            wide = wide + layer(wide).relu()
        for layer in self.narrows:
            narrow = narrow + layer(narrow).relu()
        wide, narrow = wide + self.up(narrow), narrow + self.down(wide)
        return self.last(wide) + narrow.sum(1, keepdim=True)


def test_parallel_streams_are_cut_where_a_few_tensors_are_live(noise):
    model = ParallelStreams()
    traced = trace(model, noise(4, 6))
    streams = [[(8,), (4,)]] * 8
    assert [[spec.shape for spec in specs] for specs in traced.cuts] == [[(6,)], *streams, [(3,)]]
    assert [spec.name for spec in traced.cuts[2]] == ["cut_2", "cut_2_1"]
    for batch in (1, 3, 64):
        assert_reproduced(model, traced, noise(batch, 6, seed=batch))


def test_only_long_stretches_are_cut_where_several_tensors_are_live(noise):
    class Residual(nn.Module):
        def __init__(self, layers: int) -> None:
            super().__init__()
            self.layers = nn.Sequential(*(nn.Linear(6, 6) for _ in range(layers)))

        def forward(self, x: Tensor) -> Tensor:
            return x + self.layers(x)

    ends = nn.Linear(6, 6), nn.Linear(6, 6)
    short = trace(nn.Sequential(ends[0], Residual(LONG), ends[1]), noise(4, 6))
    long = trace(nn.Sequential(ends[0], Residual(LONG + 1), ends[1]), noise(4, 6))
    assert [len(specs) for specs in short.cuts] == [1] * 4
    assert [len(specs) for specs in long.cuts] == [1, 1, *[2] * LONG, 1, 1]


class SumsInAnotherOrder(nn.Module):
    """Computes a product in one piece where it is exported, else in two, and magnifies the difference."""

    def __init__(self, *, error: float = 0.0) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 8), nn.Linear(8, 3)
        self.error = error

    def forward(self, x: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            x = self.first(x) + self.error
        else:
            halves = [functional.linear(x[:, k::2], self.first.weight[:, k::2]) for k in range(2)]
            x = halves[0] + halves[1] + self.first.bias
        return self.last(torch.sin(x * 1e4))


def test_double_precision_tells_rounding_from_a_wrong_cut(noise):
    torch.manual_seed(0)
    model, inputs = SumsInAnotherOrder(), noise(4, 64)
    traced = trace(model, inputs)
    assert (traced.answer(inputs) - model(inputs)).abs().max() > 1e-4
    with pytest.raises(TraceError, match="the cut model differs from the model by"):
        trace(SumsInAnotherOrder(error=1e-5), inputs)


# Models that cannot be packaged


class TwoLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)


class DataDependent(TwoLayers):
    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        if x.sum() > 0:
            return self.b(x)
        return x


class FiveStreams(TwoLayers):
    """Streams that exchange features after every layer: five tensors are always live."""

    def forward(self, x: Tensor) -> Tensor:
        streams = [self.a(x) * factor for factor in range(1, 6)]
        for _ in range(2):
            streams = [
                self.b(stream).relu() + other for stream, other in zip(streams, streams[1:] + streams[:1], strict=True)
            ]
        return sum(streams)


class TwoInputs(TwoLayers):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.b(self.a(x).relu()) + y


class TwoOutputs(TwoLayers):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.a(x).relu()
        return hidden, self.b(hidden)


class InDictionary(TwoLayers):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": self.b(self.a(x).relu())}


class Number(TwoLayers):
    def forward(self, x: Tensor) -> int:
        return x.shape[0]


class Nothing(TwoLayers):
    def forward(self, x: Tensor) -> None:
        self.b(self.a(x))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (DataDependent, r"cannot be traced: .*data-dependent.*test_traced_model\.py.*in forward"),
        (FiveStreams, "no cut point: more than 4 tensors are live between any two layers"),
        (TwoInputs, "cannot be traced: .*argument.*y"),
        (TwoOutputs, "1 inputs and 2 outputs"),
        (InDictionary, "output is not a tensor but a dict"),
        (Number, "output is not a tensor"),
        (Nothing, "output is not a tensor"),
    ],
)
def test_models_that_cannot_be_cut_are_refused_in_one_line(model, message, noise, capfd):
    with pytest.raises(TraceError, match=message) as caught:
        trace(model(), noise(8, 4))
    assert isinstance(caught.value, PathweaveError)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_a_single_layer_has_no_cut_point(noise):
    with pytest.raises(TraceError, match="no cut point"):
        trace(nn.Linear(4, 2), noise(3, 4))


def test_a_chain_of_two_layers_is_the_smallest_that_can_be_packaged(noise):
    traced = trace(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), noise(3, 4))
    assert len(traced.blocks) == 2
    assert expand(traced, max_span=3).added == ()
