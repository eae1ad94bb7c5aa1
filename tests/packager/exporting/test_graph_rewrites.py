from __future__ import annotations

import collections

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from packager.exporting.export import export_blocks
from packager.exporting.onnx_exporter import select_by_convolution
from packager.supernet.expansion import expand
from packager.torch_noise import torch_silenced

CHANNELS = 4


class Shortcut(nn.Module):
    """Every n-th position, with channels of zeros around: what a small ResNet adds to its first block of a stage."""

    def __init__(self, *, strides=(2, 2), channels=(1, 3), rows=(0, 0), value=0.0, first=0):
        super().__init__()
        self.strides, self.padding = strides, (0, 0, *rows, *channels)
        self.value, self.first = value, first

    def forward(self, x):
        taken = x[:, :, self.first :: self.strides[0], self.first :: self.strides[1]]
        return functional.pad(taken, self.padding, value=self.value)


def exported(module, *shape):
    with torch_silenced(), torch.no_grad():
        batch = {0: torch.export.Dim("batch", min=1, max=64)}
        model = torch.onnx.export(
            module.eval(), (torch.zeros(2, *shape),), dynamo=True, dynamic_shapes=(batch,), opset_version=20
        )
    return model.model_proto


def operators(model):
    return collections.Counter(node.op_type for node in model.graph.node)


def answer(model, features):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: features})[0]


@settings(max_examples=2, deadline=None)
@given(
    strides=st.tuples(st.integers(1, 3), st.integers(2, 3)),
    channels=st.tuples(st.integers(0, 3), st.integers(1, 3)),
    batch=st.integers(1, 3),
)
def test_a_subsampling_shortcut_becomes_one_convolution_with_equal_answers(strides, channels, batch):
    model = exported(Shortcut(strides=strides, channels=channels), CHANNELS, 7, 6)
    features = np.random.default_rng(batch).normal(size=(batch, CHANNELS, 7, 6)).astype(np.float32)
    before = answer(model, features)
    select_by_convolution(model.graph)
    assert operators(model) == {"Conv": 1}
    onnx.checker.check_model(model)
    np.testing.assert_array_equal(answer(model, features), before)


@pytest.mark.parametrize(
    "module",
    [
        Shortcut(rows=(1, 0)),
        Shortcut(value=1.0),
        Shortcut(first=1),
        Shortcut(channels=(-1, 2)),
        Shortcut(channels=(0, 200 * CHANNELS * CHANNELS * 64)),
    ],
    ids=["pads rows", "pads with ones", "cuts off a row and a column", "drops a channel", "would be too large"],
)
def test_anything_else_stays_as_it_is(module):
    model = exported(module, CHANNELS, 4, 4)
    before = operators(model)
    select_by_convolution(model.graph)
    assert "Conv" not in before
    assert operators(model) == before


def test_what_others_read_as_well_stays():
    class Twice(nn.Module):
        def forward(self, x):
            taken = x[:, :, ::2, ::2]
            return functional.pad(taken, (0, 0, 0, 0, 1, 1)).sum(1, keepdim=True) + taken

    model = exported(Twice(), CHANNELS, 4, 4)
    features = np.ones((1, CHANNELS, 4, 4), dtype=np.float32)
    before = answer(model, features)
    select_by_convolution(model.graph)
    np.testing.assert_array_equal(answer(model, features), before)


@pytest.mark.slow
def test_blocks_of_a_small_resnet_are_packaged_with_convolutions_only(zoo_traced):
    own = export_blocks(expand(zoo_traced("resnet20_cifar10"), max_span=2)).own
    found = collections.Counter()
    for fragment in own.values():
        graph = onnx.GraphProto()
        graph.ParseFromString(fragment)
        found.update(node.op_type for node in graph.node)
    assert found["Conv"]
    assert not found["Slice"] + found["Pad"]
