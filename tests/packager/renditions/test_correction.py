from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from packager.renditions.correction import as_rows, corrected_weights, from_rows
from packager.renditions.low_bit import large_weights, pack_weights


def weights(*shape, seed=0):
    return (np.random.default_rng(seed).normal(size=shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)


def model_of(nodes, initializers, shape):
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", *shape])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in initializers.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def answers(model, x):
    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]


def two_convolutions(**attributes):
    """A convolution with a bias, a ReLU, and one of other attributes without a bias."""
    groups = attributes.get("group", 1)
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["h"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Conv", ["r", "w2"], ["y"], **attributes),
    ]
    given = {
        "w1": weights(32, 3, 3, 3),
        "b1": weights(32, 1, seed=1)[:, 0],
        "w2": weights(32, 32 // groups, 3, 3, seed=2),
    }
    return model_of(nodes, given, (3, 12, 10))


def products(kind):
    added = [helper.make_node("Add", ["m", "b"], ["y"])] if kind == "MatMul" else []
    first = helper.make_node(kind, ["x", "w", *(["b"] if kind == "Gemm" else [])], ["m" if added else "y"])
    return model_of([first, *added], {"w": weights(40, 30), "b": weights(30, 1)[:, 0]}, (40,))


CASES = {
    "plain": lambda: two_convolutions(),
    "strided": lambda: two_convolutions(strides=[2, 3], pads=[1, 0, 0, 2]),
    "dilated": lambda: two_convolutions(dilations=[2, 1]),
    "grouped": lambda: two_convolutions(group=4),
    "depthwise": lambda: two_convolutions(group=32),
    "Gemm": lambda: products("Gemm"),
    "MatMul": lambda: products("MatMul"),
}


@pytest.mark.parametrize("bits", [2, 4])
@pytest.mark.parametrize("case", CASES)
def test_the_answer_to_other_samples_is_nearer_than_by_rounding_to_the_nearest(case, bits):
    model = CASES[case]()
    shape = [one.dim_value for one in model.graph.input[0].type.tensor_type.shape.dim[1:]]
    random = np.random.default_rng(3)
    mixing = random.normal(size=(int(np.prod(shape)),) * 2) / 8 + 0.3
    samples = (random.normal(size=(300, int(np.prod(shape)))) @ mixing).reshape(300, *shape).astype(np.float32)
    expected = answers(model, samples[200:])
    nearest, corrected = onnx.ModelProto(), onnx.ModelProto()
    nearest.CopyFrom(model)
    pack_weights(nearest.graph, bits)
    corrected.CopyFrom(model)
    axes = large_weights(corrected.graph)
    found = corrected_weights(corrected, axes, bits, samples[:200], batch=64)
    assert pack_weights(corrected.graph, bits, found) == len(axes) > 0
    mine, theirs = (np.square(answers(one, samples[200:]) - expected).mean() for one in (corrected, nearest))
    assert mine < 0.7 * theirs


def test_a_bias_that_something_else_reads_stays():
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["y"]),
    ]
    model = model_of(nodes, {"w": weights(40, 30), "b": weights(30, 1)[:, 0]}, (40,))
    corrected_weights(model, {"w": 1}, 2, weights(100, 40, seed=3) + 1, batch=64)
    stored = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}
    np.testing.assert_array_equal(stored["b"], weights(30, 1)[:, 0])


def test_a_weight_of_two_nodes_is_rounded_to_the_nearest():
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("MatMul", ["m", "w"], ["y"])]
    model = model_of(nodes, {"w": weights(30, 30)}, (30,))
    found = corrected_weights(model, {"w": -1}, 4, weights(100, 30, seed=3), batch=64)
    nearest = model_of(nodes, {"w": weights(30, 30)}, (30,))
    pack_weights(nearest.graph, 4)
    pack_weights(model.graph, 4, found)
    x = weights(5, 30, seed=4)
    np.testing.assert_allclose(answers(model, x), answers(nearest, x), atol=1e-5)


@pytest.mark.parametrize(("shape", "axis"), [((4, 3, 2, 5), 0), ((4, 3), 1), ((4, 3), -1)])
def test_rows_are_output_channels_and_come_back(shape, axis):
    whole = weights(*shape)
    rows = as_rows(whole, axis)
    assert len(rows) == shape[axis]
    np.testing.assert_array_equal(from_rows(rows, shape, axis), whole)
