from __future__ import annotations

import contextlib
import timeit
from dataclasses import replace
from functools import partial

import numpy as np
import onnxruntime
import pytest

from device_sdk.errors import CompositionError, RuntimeFailedError, UsageError
from device_sdk.fragments.composition import Stretch, compose
from device_sdk.runtimes import make_runtime
from device_sdk.runtimes.onnx_runtime import OnnxRuntime
from device_sdk.supernet.blocks import TensorSpec


def test_the_identity_names_version_provider_and_threads():
    assert OnnxRuntime(threads=2).identity == f"onnxruntime-{onnxruntime.__version__}-CPUExecutionProvider-2t"


def test_a_lean_one_says_so_since_its_latencies_are_others():
    assert OnnxRuntime(threads=1, lean=True).identity == OnnxRuntime(threads=1).identity + "-lean"


def spinning(**settings):
    options = OnnxRuntime(**settings).session_options()
    found = {}
    for pool in ("intra_op", "inter_op"):
        found[pool] = options.get_session_config_entry(f"session.{pool}.allow_spinning")
    assert len(set(found.values())) == 1
    return found["intra_op"]


@pytest.mark.parametrize("settings", [{}, {"threads": 2}, {"threads": 4, "lean": True}, {"threads": 1, "spin_us": 50}])
def test_threads_that_wait_sleep_unless_it_is_said_otherwise(settings):
    assert spinning(**settings) == "0"
    assert "spin" not in OnnxRuntime(**settings).identity


def test_threads_spin_as_long_as_it_is_said_which_profiles_tell_apart():
    assert spinning(threads=2, spin_us=50) == "1"
    options = OnnxRuntime(threads=2, spin_us=50).session_options()
    assert options.get_session_config_entry("session.intra_op.spin_duration_us") == "50"
    identities = {OnnxRuntime(threads=2, spin_us=spin_us).identity for spin_us in (0, 50, 1000)}
    assert len(identities) == 3


@pytest.mark.parametrize("wrong", [-1, 1_000_001])
def test_a_spin_time_out_of_its_range_is_refused(wrong):
    with pytest.raises(UsageError, match="spin_us") as caught:
        make_runtime("onnxruntime", threads=2, spin_us=wrong)
    assert "microseconds" in caught.value.hint


def test_a_spinning_runtime_gives_the_same_answer(bundle):
    samples = [np.random.default_rng(0).random((3, 3, 20, 20), dtype=np.float32)]
    original = bundle.stretch(bundle.supernet.original.edges)
    sleeps, spins = (OnnxRuntime(threads=2, spin_us=spin_us).load(original).run(samples)[0] for spin_us in (0, 50))
    np.testing.assert_array_equal(sleeps, spins)


def test_more_threads_give_the_same_answer(bundle):
    samples = [np.random.default_rng(0).random((3, 3, 20, 20), dtype=np.float32)]
    original = bundle.stretch(bundle.supernet.original.edges)
    one, two = (OnnxRuntime(threads=threads).load(original).run(samples)[0] for threads in (1, 2))
    np.testing.assert_allclose(one, two, atol=1e-5)


def test_fragments_that_do_not_make_one_model_are_refused(bundle, runtime):
    stretch = bundle.stretch(bundle.supernet.original.edges[:2])
    with pytest.raises(CompositionError, match="two fragments define"):
        runtime.load(replace(stretch, fragments=stretch.fragments * 2))


@pytest.mark.alone
def test_quantised_neighbours_meet_without_going_through_floats(runtime):
    """Two int8 fragments end and begin with the same scale: ten more such pairs change nothing in what is computed."""
    onnx = pytest.importorskip("onnx")
    made = onnx.numpy_helper.from_array
    initializers = [made(np.array(0.5, np.float32), "s"), made(np.array(0, np.int8), "z")]

    def chain(pairs):
        nodes, live = [], "cut_0"
        for number in range(pairs):
            nodes.append(onnx.helper.make_node("QuantizeLinear", [live, "s", "z"], [f"q{number}"]))
            live = "cut_1" if number == pairs - 1 else f"d{number}"
            nodes.append(onnx.helper.make_node("DequantizeLinear", [f"q{number}", "s", "z"], [live]))
        fragment = onnx.GraphProto(node=nodes, initializer=initializers).SerializeToString()
        return Stretch((fragment,), (TensorSpec("cut_0", (64, 64, 64)),), (TensorSpec("cut_1", (64, 64, 64)),), 10, 20)

    tensor = [np.random.default_rng(0).random((4, 64, 64, 64), dtype=np.float32)]
    one, many = (runtime.load(chain(pairs)) for pairs in (1, 41))
    assert np.array_equal(one.run(tensor)[0], many.run(tensor)[0])
    seconds = [min(timeit.repeat(partial(loaded.run, tensor), number=1, repeat=5)) for loaded in (one, many)]
    assert seconds[1] < 10 * seconds[0]


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


def test_a_provider_that_runs_no_node_is_refused(bundle):
    onnxruntime = pytest.importorskip("onnxruntime")
    idle = "AzureExecutionProvider"  # forwards whole models to a service, and runs no operator
    if idle not in onnxruntime.get_available_providers():
        pytest.skip(f"this build of ONNX Runtime has no {idle}")
    with pytest.raises(RuntimeFailedError, match="runs none of the 11 nodes") as caught:
        OnnxRuntime(provider=idle).load(bundle.stretch(bundle.supernet.original.edges))
    assert "CPUExecutionProvider" in caught.value.hint
