from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, fx, nn

from packager.exporting.part_graphs import structure_of
from packager.tracing.traced_model import trace


class Scaled(nn.Module):
    """Holds a value that no shape shows."""

    def __init__(self, factor: object) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * self.factor


class Tied(nn.Module):
    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4, bias=False)
        self.second = self.first if tied else nn.Linear(4, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu())


def same(one: nn.Module, other: nn.Module) -> bool:
    return structure_of(one.eval()).key == structure_of(other.eval()).key


def residual() -> nn.Module:
    return nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU())


@pytest.mark.parametrize(
    "build",
    [
        residual,
        lambda: Scaled(2.0),
        lambda: Scaled((1, "two", [None], {"three": slice(1, 2)}, {4}, nn.GELU, partial(torch.add, alpha=2))),
        lambda: Tied(tied=True),
        lambda: nn.MultiheadAttention(8, 2),
    ],
)
def test_modules_that_differ_in_weights_alone_have_one_structure(build):
    assert same(build(), build())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (nn.Linear(4, 4), nn.Linear(4, 5)),
        (nn.Linear(4, 4), nn.Linear(4, 4, bias=False)),
        (nn.Linear(4, 4), nn.Linear(4, 4).double()),
        (nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3, stride=2)),
        (nn.BatchNorm2d(4), nn.BatchNorm2d(4, eps=1e-3)),
        (nn.ReLU(), nn.GELU()),
        (nn.GELU(), nn.GELU(approximate="tanh")),
        (Scaled(2.0), Scaled(3.0)),
        (Scaled(2.0), Scaled(2)),
        (Scaled(0.0), Scaled(-0.0)),
        (Scaled((1, 2)), Scaled([1, 2])),
        (Scaled({"a": 1}), Scaled({"b": 1})),
        (Scaled(partial(torch.add, alpha=2)), Scaled(partial(torch.add, alpha=3))),
        (nn.Sequential(nn.ReLU(), nn.GELU()), nn.Sequential(nn.GELU(), nn.ReLU())),
        (Tied(tied=True), Tied(tied=False)),
    ],
)
def test_modules_that_compute_otherwise_have_another_structure(one, other):
    assert not same(one, other)


def with_hook() -> nn.Module:
    module = nn.Linear(4, 4)
    module.register_forward_hook(lambda *_: None)
    return module


def with_own_forward() -> nn.Module:
    module = nn.Linear(4, 4)
    module.forward = module.forward  # type: ignore[method-assign]
    return module


def graph_with_plain_tensor() -> nn.Module:
    root = nn.Module()
    root.table = torch.zeros(4)
    graph = fx.Graph()
    graph.output(graph.call_function(torch.add, (graph.placeholder("x"), graph.get_attr("table"))))
    module = fx.GraphModule(root, graph)
    del module.table  # which it made a buffer
    module.table = torch.zeros(4)
    return module


@pytest.mark.parametrize(
    "build",
    [
        lambda: Scaled(torch.zeros(3)),
        lambda: Scaled(object()),
        lambda: Scaled([nn.Linear(4, 4)]),
        with_hook,
        with_own_forward,
        graph_with_plain_tensor,
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
    ],
)
def test_modules_with_what_cannot_be_compared_are_like_no_other(build):
    assert not same(build(), build())


def test_equal_structures_have_their_tensors_in_the_same_order():
    one, other = structure_of(residual().eval()), structure_of(residual().eval())
    shapes = [[tuple(tensor.shape) for tensor in structure.tensors] for structure in (one, other)]
    assert shapes[0] == shapes[1]
    assert not {id(tensor) for tensor in one.tensors} & {id(tensor) for tensor in other.tensors}


def test_a_tensor_that_is_used_twice_is_noted_once():
    assert len(structure_of(Tied(tied=True).eval()).tensors) == 1
    assert len(structure_of(Tied(tied=False).eval()).tensors) == 2


class Stage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.layers = nn.Sequential(*(nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU()) for _ in range(2)))
        self.wide = nn.Sequential(nn.Conv2d(4, 4, 5, padding=2), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.wide(self.layers(self.stem(x))).mean((2, 3))


def test_traced_blocks_are_compared_by_their_graphs_without_names(noise):
    traced = trace(Stage(), noise(2, 1, 8, 8))
    structures = [structure_of(block) for block in traced.blocks]
    keys = [structure.key for structure in structures]
    assert len(keys) - len(set(keys)) == 1
    twice = [structure for structure in structures if keys.count(structure.key) == 2]
    names = {id(tensor): name for name, tensor in traced.whole.named_parameters()}
    found = [[names[id(tensor)] for tensor in structure.tensors] for structure in twice]
    assert found == [[f"layers.{number}.0.weight", f"layers.{number}.0.bias"] for number in (0, 1)]


def test_a_graph_that_calls_one_layer_twice_is_not_one_that_calls_two():
    def graph(names: tuple[str, str]) -> nn.Module:
        root = nn.Module()
        for name in dict.fromkeys(names):
            root.add_module(name, nn.Linear(4, 4))
        built = fx.Graph()
        first = built.call_module(names[0], (built.placeholder("x"),))
        built.output(built.call_module(names[1], (first,)))
        return fx.GraphModule(root, built)

    assert same(graph(("a", "b")), graph(("c", "d")))
    assert same(graph(("a", "a")), graph(("b", "b")))
    assert not same(graph(("a", "a")), graph(("a", "b")))
