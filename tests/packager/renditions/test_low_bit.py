from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from device_sdk.fragments.fragment import read_fragment
from packager.renditions.low_bit import BITS, pack_weights, packed_planes
from packager.renditions.rounding import quantise

WIDTHS = sorted(BITS.values())


def weights(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def graph_of(kind, weight, **attributes):
    """One node that multiplies its input by ``weight``."""
    starts = {"Conv": ["n", weight.shape[1], 5, 5]}.get(kind, ["n", weight.shape[attributes.get("transB", 0)]])
    nodes = [helper.make_node(kind, ["x", "w"], ["y"], **attributes)]
    ends = (
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, starts)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    return helper.make_graph(nodes, "g", *ends, [numpy_helper.from_array(weight, "w")])


def answers(graph, x):
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize(
    ("kind", "shape", "attributes"),
    [
        ("Conv", (16, 3, 3, 3), {}),
        ("Conv", (9, 5, 3, 3), {}),  # counts that fill no whole byte
        ("Gemm", (33, 17), {"transB": 1}),
        ("Gemm", (17, 33), {}),
        ("MatMul", (31, 19), {}),
    ],
)
def test_the_runtime_expands_what_was_packed(bits, kind, shape, attributes):
    whole = weights(*shape)
    graph = graph_of(kind, whole, **attributes)
    axis = {"Conv": 0, "MatMul": 1}.get(kind, 0 if attributes else 1)
    rows = np.moveaxis(whole, axis, 0)
    expected = quantise(rows.reshape(len(rows), -1), bits).expanded().reshape(rows.shape)
    expected = np.moveaxis(expected, 0, axis)
    x = weights(2, shape[1], 5, 5, seed=1) if kind == "Conv" else weights(2, shape[1 if attributes else 0], seed=1)
    wanted = answers(graph_of(kind, np.ascontiguousarray(expected), **attributes), x)
    assert pack_weights(graph, bits) == 1
    np.testing.assert_allclose(answers(graph, x), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bits", WIDTHS)
def test_packed_weights_take_as_many_bits_as_they_say(bits):
    graph = graph_of("Gemm", weights(64, 1000), transB=1)
    pack_weights(graph, bits)
    size = sum(one.ByteSize() for one in graph.initializer)
    assert 64 * 1000 * bits / 8 <= size < 64 * 1000 * bits / 8 + 2000


@given(st.integers(1, 40), st.integers(1, 5), st.sampled_from(WIDTHS), st.integers(0, 2**32 - 1))
def test_planes_hold_every_value_in_the_order_of_their_bits(count, channels, bits, seed):
    values = np.random.default_rng(seed).integers(0, 2**bits, (channels, count)).astype(np.uint8)
    planes = packed_planes(values, bits)
    padded = count + -count % {2: 4, 4: 2, 6: 4, 8: 1}[bits]
    assert sum(plane.size for plane in planes) == channels * padded * bits // 8
    widths = {6: (4, 2)}.get(bits, (bits,))
    found, done = np.zeros((channels, padded), np.int64), 0
    for plane, width in zip(planes, widths, strict=True):
        size = plane.shape[2]
        for place in range(padded):
            part, byte = divmod(place, size)
            found[:, place] |= (plane[:, 0, byte].astype(np.int64) >> width * part & (2**width - 1)) << done
        done += width
    assert (found[:, :count] == values).all()


@pytest.mark.parametrize("bits", WIDTHS)
def test_more_bits_are_never_worse_and_clipping_never_harms(bits):
    whole = weights(8, 400)
    whole[0, 0] = 40.0  # an outlier
    error = np.square(quantise(whole, bits).expanded() - whole).sum()
    plain = np.square(unclipped(whole, bits) - whole).sum()
    assert error <= plain * (1 + 1e-6)
    if bits < 8:
        assert np.square(quantise(whole, bits + 2).expanded() - whole).sum() < error


def unclipped(whole, bits):
    low, high = whole.min(axis=1, keepdims=True), whole.max(axis=1, keepdims=True)
    scale = (high - low) / (2**bits - 1)
    return np.rint((whole - low) / scale) * scale + low


def test_a_channel_of_equal_weights_stays_what_it_is():
    whole = np.full((2, 300), 0.25, np.float32)
    assert np.array_equal(quantise(whole, 4).expanded(), whole)


def test_small_weights_and_those_that_something_else_reads_stay():
    graph = graph_of("Gemm", weights(4, 4), transB=1)
    assert pack_weights(graph, 4) == 0
    graph = graph_of("Gemm", weights(64, 64), transB=1)
    graph.node.append(helper.make_node("Relu", ["w"], ["z"]))
    assert pack_weights(graph, 4) == 0
    assert [one.name for one in graph.initializer] == ["w"]


def test_packed_models_pass_the_checks_of_the_device():
    graph = graph_of("Conv", weights(16, 3, 3, 3))
    pack_weights(graph, 6)
    fragment = onnx.GraphProto(node=graph.node, initializer=graph.initializer)
    assert {node.operator for node in read_fragment(fragment.SerializeToString()).nodes} >= {"BitShift", "Conv"}
