from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from packager.exporting.kept_axes import copy_kept_axes


def _model(given: list[int | str], target: list[int], result: list[int | str]) -> onnx.ModelProto:
    node = helper.make_node("Reshape", ["x", "shape"], ["y"], allowzero=1)
    graph = helper.make_graph(
        [node],
        "reshape",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, given)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, result)],
        [numpy_helper.from_array(np.array(target, dtype=np.int64), "shape")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


def _run(model: onnx.ModelProto, values: np.ndarray) -> np.ndarray:
    return ReferenceEvaluator(model).run(None, {"x": values})[0]


@pytest.mark.parametrize(
    ("given", "target", "other"),
    [
        (["n", 6, 8], [-1, 6, 2, 4], (3, 5, 8)),  # into heads
        (["n", 6, 2, 4], [-1, 6, 8], (2, 9, 2, 4)),  # out of heads
    ],
)
def test_a_reshape_runs_at_other_lengths_and_as_before_at_its_own(given, target, other):
    model = _model(given, target, ["n", *target[1:]])
    own = np.random.default_rng(0).normal(size=(3, *given[1:])).astype(np.float32)
    expected = _run(model, own)
    copy_kept_axes(model.graph)
    assert np.array_equal(_run(model, own), expected)
    longer = np.ones(other, np.float32)
    assert _run(model, longer).shape == (other[0], other[1], *target[2:])


@pytest.mark.parametrize(
    ("given", "target"),
    [
        (["n", 6, 4], [-1, 24]),  # a head reads all tokens
        (["n", 6, 4], [-1, 4, 6]),  # no axis is kept
        ([3, 6, 4], [3, 6, 2, 2]),  # no free batch
        (["n", "t", 4], [-1, 6, 2, 2]),
        (["n", 6, 4], [-1, 6, 8]),  # the batch changes
    ],
)
def test_other_reshapes_stay_as_they_are(given, target):
    model = _model(given, target, ["m", *target[1:]])
    before = model.SerializeToString()
    copy_kept_axes(model.graph)
    assert model.SerializeToString() == before
