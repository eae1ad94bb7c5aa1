from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from device_sdk.runtimes import OnnxRuntime
from packager.exporting.export import export_blocks
from packager.renditions.fp16 import PROVIDERS, make_fp16
from packager.supernet.blocks.trainable import TrainableBlock
from packager.supernet.expansion import expand

HALF, SINGLE = onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT


def graph_of(data):
    return onnx.GraphProto.FromString(data)


@pytest.fixture
def tiny_fp16(tiny_exported, calibrate, recorded, work):
    return make_fp16(tiny_exported, calibrate(tiny_exported.expansion), recorded, work)


def test_weights_are_half_and_cut_points_single_precision(tiny_exported, tiny_fp16, recorded):
    assert tiny_fp16.own.keys() == tiny_exported.own.keys()
    assert tiny_fp16.providers == PROVIDERS
    for block in tiny_exported.expansion.blocks:
        graph = graph_of(tiny_fp16.own[block.id])
        assert SINGLE not in {tensor.data_type for tensor in graph.initializer}
        casts = [node for node in graph.node if node.op_type == "Cast"]
        into = {attribute.i for node in casts if f"cut_{block.start}" in node.input for attribute in node.attribute}
        out = {attribute.i for node in casts if f"cut_{block.end}" in node.output for attribute in node.attribute}
        assert (into, out) == ({HALF}, {SINGLE})
    assert len(tiny_fp16.own["o4"]) < 0.6 * (len(tiny_exported.own["o4"]) + 4 * 16 * 16 * 9)
    assert recorded.tasks == {"convert to fp16": 0}


def test_a_path_of_fp16_blocks_answers_nearly_like_fp32(tiny_exported, tiny_fp16, in_place_of, noise):
    runtime, path = OnnxRuntime(threads=1), ["o0", "m1-3", "o3", "o4", "o5"]
    images = noise(3, 1, 8, 8).numpy()
    (expected,) = runtime.load(tiny_exported.stretch(path)).run([images])
    (found,) = runtime.load(in_place_of(tiny_exported, tiny_fp16).stretch(path)).run([images])
    np.testing.assert_allclose(found, expected, atol=0.02 * np.abs(expected).max())
    assert not np.array_equal(found, expected)


def test_large_weights_of_several_blocks_are_stored_once(tiny_exported, tiny_fp16):
    users = [name for needed in tiny_fp16.needs.values() for name in needed]
    assert users
    assert set(users) == tiny_fp16.shared.keys()
    assert not tiny_fp16.shared.keys() & tiny_exported.shared.keys()  # a path may hold fragments of both


def test_a_block_beyond_the_range_of_half_precision_is_left_out_and_named(tiny_traced, calibrate, recorded, work):
    large = nn.Conv2d(8, 8, 1, bias=False)
    with torch.no_grad():
        large.weight.copy_(2e5 * torch.eye(8)[:, :, None, None])
    expansion = expand(tiny_traced, max_span=1)
    block = TrainableBlock("m1-3", 1, 3, "merged", large, macs=1)
    expansion = replace(expansion, blocks=(*expansion.blocks, block))
    made = make_fp16(export_blocks(expansion), calibrate(expansion), recorded, work)
    assert made.own.keys() == {f"o{index}" for index in range(6)}
    (note,) = made.notes
    assert note.startswith("m1-3 has no fp16 rendition: ")
