from __future__ import annotations

from collections.abc import Sequence
from unittest.mock import Mock

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from torch import Tensor, nn

from device_sdk.fragments.composition import Stretch
from device_sdk.runtimes import OnnxRuntime
from device_sdk.supernet.blocks import TensorSpec
from packager.errors import TraceError
from packager.exporting import part_graphs
from packager.exporting.onnx_exporter import IR_VERSION, OPSET, refuse_custom_operators
from packager.exporting.part_graphs import Part


class Scaled(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).relu() * self.factor


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4, bias=False)
        self.second = self.first

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu())


def part(number: int, module: nn.Module, *, shape: tuple[int, ...] = (4,)) -> Part:
    read = TensorSpec(f"cut_{number}", shape, "float32")
    return Part(f"o{number}", module.eval(), (read,), (TensorSpec(f"cut_{number + 1}", shape, "float32"),))


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> list[nn.Module]:
    """The modules that torch's exporter gets to see."""
    seen: list[nn.Module] = []
    real = part_graphs.export_side_by_side

    def watched(modules: Sequence[nn.Module], *args, **named):
        seen.extend(modules)
        return real(modules, *args, **named)

    monkeypatch.setattr(part_graphs, "export_side_by_side", watched)
    return seen


def assert_right(parts: Sequence[Part], noise) -> None:
    graphs = part_graphs.part_graphs(parts)
    assert list(graphs) == [part.id for part in parts]
    runtime = OnnxRuntime(threads=1)
    for one in parts:
        fragment = graphs[one.id].SerializeToString()
        session = runtime.load(Stretch((fragment,), one.read, one.end, ir_version=IR_VERSION, opset=OPSET))
        for batch in (1, 3):
            inputs = noise(batch, *one.read[0].shape)
            with torch.no_grad():
                expected = one.module(inputs).numpy()
            np.testing.assert_allclose(session.run([inputs.numpy()])[0], expected, atol=1e-5)


def test_parts_of_one_structure_are_exported_once_and_keep_their_own_weights(exported, noise):
    parts = [part(number, Scaled(2.0)) for number in range(4)]
    assert_right(parts, noise)
    assert exported == [parts[0].module]


def test_parts_that_differ_in_a_value_or_in_what_they_read_are_exported_apart(exported, noise):
    parts = [part(0, Scaled(2.0)), part(1, Scaled(3.0)), part(2, Scaled(2.0), shape=(5, 4)), part(3, Scaled(3.0))]
    assert_right(parts, noise)
    assert exported == [part.module for part in parts[:3]]


def test_weights_that_parts_have_in_common_reach_each_of_them(exported, noise):
    common, other = Scaled(2.0), Scaled(2.0)
    mixed = Scaled(2.0)
    mixed.inner.weight = common.inner.weight
    assert_right([part(number, module) for number, module in enumerate([common, other, mixed, common])], noise)
    assert exported == [common]


def test_a_weight_that_a_part_uses_twice_is_its_own_in_both_places(exported, noise):
    assert_right([part(number, Tied()) for number in range(3)], noise)
    assert len(exported) == 1


def test_buffers_are_each_parts_own(exported, noise):
    norms = [nn.BatchNorm1d(4) for _ in range(3)]
    for number, norm in enumerate(norms):
        norm.running_mean += number
        norm.running_var *= number + 1
    assert_right([part(number, norm) for number, norm in enumerate(norms)], noise)
    assert len(exported) == 1


def test_a_part_that_does_nothing_is_one_identity():
    graphs = part_graphs.part_graphs([part(0, nn.Identity()), part(1, nn.Dropout())])
    for number in (0, 1):
        (node,) = graphs[f"o{number}"].node
        assert (node.op_type, list(node.input), list(node.output)) == (
            "Identity",
            [f"cut_{number}"],
            [f"cut_{number + 1}"],
        )


def test_models_with_other_than_onnx_operators_are_refused():
    node = helper.make_node("Mystery", ["x"], ["y"], domain="com.example")
    graph = helper.make_graph([node], "graph", [], [])
    with pytest.raises(TraceError, match="outside ONNX's own set"):
        refuse_custom_operators(onnx.ModelProto(graph=graph))


def test_what_torch_cannot_export_is_said_in_one_line(monkeypatch):
    monkeypatch.setattr(torch.onnx, "export", Mock(side_effect=RuntimeError("no such operator\nmany more lines")))
    with pytest.raises(TraceError, match=r"cannot be exported to ONNX: no such operator$"):
        part_graphs.part_graphs([part(0, Scaled(2.0))])
