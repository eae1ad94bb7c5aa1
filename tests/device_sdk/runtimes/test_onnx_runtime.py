from __future__ import annotations

import contextlib

import numpy as np
import onnxruntime
import pytest

from device_sdk.bundles.composition import compose
from device_sdk.errors import RuntimeFailedError
from device_sdk.runtimes.onnx_runtime import OnnxRuntime


def test_the_identity_names_version_provider_and_threads():
    assert OnnxRuntime(threads=2).identity == f"onnxruntime-{onnxruntime.__version__}-CPUExecutionProvider-2t"


def test_a_provider_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(RuntimeFailedError, match="no MagicExecutionProvider here") as caught:
        OnnxRuntime(provider="MagicExecutionProvider")
    assert "CPUExecutionProvider" in caught.value.hint


def test_a_model_in_one_piece_runs_as_its_composition_does(bundle, runtime):
    stretch = bundle.stretch(bundle.supernet.original.edges)
    samples = [np.ones((2, 3, 20, 20), np.float32)]
    assert np.array_equal(runtime.load(stretch).run(samples)[0], runtime.load_model(compose(stretch)).run(samples)[0])


@pytest.mark.parametrize("model", [b"", b"no model", b"\x08\x0a"])
def test_bytes_that_are_no_model_are_refused_in_one_line(runtime, model):
    with pytest.raises(RuntimeFailedError, match="refused the model") as caught:
        runtime.load_model(model)
    assert "\n" not in str(caught.value)


def test_weights_outside_the_model_are_refused_even_where_the_composer_does_not_look(runtime, tmp_path):
    onnx = pytest.importorskip("onnx")
    (tmp_path / "secret").write_bytes(np.arange(3, dtype=np.float32).tobytes())
    tensor = onnx.TensorProto(data_type=onnx.TensorProto.FLOAT, dims=[3], data_location=onnx.TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="secret")
    nodes = [
        onnx.helper.make_node("Constant", [], ["c"], value=tensor),
        onnx.helper.make_node("Add", ["i", "c"], ["o"]),
    ]
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [3]) for name in "io"]
    graph = onnx.helper.make_graph(nodes, "g", ends[:1], ends[1:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10)
    with contextlib.chdir(tmp_path), pytest.raises(RuntimeFailedError):
        runtime.load_model(model.SerializeToString())
