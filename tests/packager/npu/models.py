"""Small models, made without torch."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper


def model_of(*operators: str, size: tuple[int, ...] = (8, 4, 4)) -> bytes:
    """A chain of element-wise operators from ``cut_0`` to ``cut_1`` [batch, *size], behind a convolution."""
    weights = np.linspace(-1, 1, size[0] * size[0], dtype=np.float32).reshape(size[0], size[0], 1, 1)
    nodes = [helper.make_node("Conv", ["cut_0", "w"], ["t0"], name="conv")]
    names = [f"t{at}" for at in range(len(operators))] + ["cut_1"]
    nodes[0].output[:] = [names[0]]
    for at, operator in enumerate(operators):
        nodes.append(helper.make_node(operator, [names[at]], [names[at + 1]], name=f"n{at}"))
    shape = ["batch", *size]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("cut_0", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("cut_1", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return model.SerializeToString()
