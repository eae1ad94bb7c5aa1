"""What every runtime adapter must do. A new adapter is one line in ``ADAPTERS``."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from device_sdk.bundles.composition import Stretch
from device_sdk.errors import CompositionError, RuntimeFailedError
from device_sdk.graph import TensorSpec
from device_sdk.runtimes import RUNTIMES, make_runtime

onnx = pytest.importorskip("onnx", reason="needs the extra: pip install 'pathweave[dev]'")

ADAPTERS = ("onnxruntime",)

WEIGHT = np.arange(12, dtype=np.float32).reshape(4, 3)
ONE = (TensorSpec("cut_0", (4,)),)
OTHER = (TensorSpec("cut_1", (3,)),)


def stretch(nodes, weights=(), *, inputs=ONE, outputs=OTHER) -> Stretch:
    initializers = [onnx.numpy_helper.from_array(value, name) for name, value in weights]
    fragment = onnx.GraphProto(node=nodes, initializer=initializers).SerializeToString()
    return Stretch((fragment,), inputs, outputs, ir_version=10, opset=20)


def matmul() -> Stretch:
    return stretch([onnx.helper.make_node("MatMul", ["cut_0", "a/w"], ["cut_1"])], [("a/w", WEIGHT)])


def sum_and_difference() -> Stretch:
    nodes = [
        onnx.helper.make_node("Add", ["cut_0_0", "cut_0_1"], ["cut_1_0"]),
        onnx.helper.make_node("Sub", ["cut_0_0", "cut_0_1"], ["cut_1_1"]),
    ]
    ends = [tuple(TensorSpec(f"cut_{index}_{n}", (2, 3)) for n in range(2)) for index in range(2)]
    return stretch(nodes, inputs=ends[0], outputs=ends[1])


def test_every_registered_runtime_is_tested_here():
    assert set(ADAPTERS) == set(RUNTIMES)


@pytest.mark.parametrize("name", ADAPTERS)
class TestRuntime:
    def test_any_batch_size_runs(self, name):
        loaded = make_runtime(name, threads=1).load(matmul())
        for batch in (1, 3, 64, 1):
            samples = np.random.default_rng(batch).random((batch, 4), dtype=np.float32)
            [output] = loaded.run([samples])
            assert output.dtype == np.float32
            np.testing.assert_allclose(output, samples @ WEIGHT, rtol=1e-5)

    def test_several_tensors_go_in_and_come_out_in_the_order_of_the_cut_point(self, name):
        loaded = make_runtime(name, threads=1).load(sum_and_difference())
        first, second = np.full((2, 2, 3), 5, np.float32), np.full((2, 2, 3), 3, np.float32)
        total, difference = loaded.run([first, second])
        assert (total == 8).all()
        assert (difference == 2).all()

    def test_threads_may_run_it_at_once(self, name):
        loaded = make_runtime(name, threads=1).load(matmul())
        samples = [np.full((64, 4), number, np.float32) for number in range(200)]
        with ThreadPoolExecutor(4) as pool:
            outputs = list(pool.map(lambda one: loaded.run([one])[0], samples))
        for sample, output in zip(samples, outputs, strict=True):
            np.testing.assert_allclose(output, sample @ WEIGHT)

    def test_what_it_answered_is_not_overwritten_by_the_next_run(self, name):
        loaded = make_runtime(name, threads=1).load(matmul())
        [first] = loaded.run([np.ones((1, 4), np.float32)])
        kept = first.copy()
        loaded.run([np.zeros((1, 4), np.float32)])
        assert np.array_equal(first, kept)

    def test_the_inputs_are_left_alone(self, name):
        samples = np.ones((2, 4), np.float32)
        make_runtime(name, threads=1).load(matmul()).run([samples])
        assert (samples == 1).all()

    def test_it_may_be_closed_twice_and_then_refuses_to_run(self, name):
        loaded = make_runtime(name, threads=1).load(matmul())
        loaded.close()
        loaded.close()
        with pytest.raises(RuntimeFailedError, match="closed"):
            loaded.run([np.ones((1, 4), np.float32)])

    def test_closing_one_leaves_others_of_the_same_stretch_alone(self, name):
        runtime = make_runtime(name, threads=1)
        first, second = runtime.load(matmul()), runtime.load(matmul())
        first.close()
        assert second.run([np.ones((1, 4), np.float32)])[0].shape == (1, 3)

    @pytest.mark.parametrize(
        "inputs",
        [
            [],
            [np.ones((1, 4), np.float32)] * 2,
            [np.ones((1, 5), np.float32)],
            [np.ones(4, np.float32)],
            [np.ones((1, 4))],
            [np.ones((1, 4), np.int64)],
            [None],
        ],
        ids=["none", "too many", "shape", "rank", "float64", "int64", "no array"],
    )
    def test_wrong_inputs_are_a_runtime_error_and_the_next_run_works(self, name, inputs):
        loaded = make_runtime(name, threads=1).load(matmul())
        with pytest.raises(RuntimeFailedError):
            loaded.run(inputs)
        assert loaded.run([np.ones((1, 4), np.float32)])[0].shape == (1, 3)

    @pytest.mark.parametrize(
        "nodes",
        [
            [onnx.helper.make_node("Abracadabra", ["cut_0"], ["cut_1"])],
            [onnx.helper.make_node("Relu", ["nowhere"], ["cut_1"])],
            [onnx.helper.make_node("Relu", ["cut_0"], ["elsewhere"])],
            [],
        ],
        ids=["unknown operator", "unknown input", "no output", "no node"],
    )
    def test_a_model_that_is_none_is_refused(self, name, nodes):
        with pytest.raises(RuntimeFailedError):
            make_runtime(name, threads=1).load(stretch(nodes))

    def test_fragments_that_do_not_make_one_model_are_refused(self, name):
        one = matmul()
        with pytest.raises(CompositionError):
            make_runtime(name, threads=1).load(
                Stretch(one.fragments * 2, one.inputs, one.outputs, one.ir_version, one.opset)
            )

    def test_its_identity_is_stable_and_tells_the_number_of_threads(self, name):
        assert make_runtime(name, threads=1).identity == make_runtime(name, threads=1).identity
        assert make_runtime(name, threads=1).identity != make_runtime(name, threads=2).identity

    def test_more_threads_give_the_same_answer(self, name, bundle):
        samples = [np.random.default_rng(0).random((3, 3, 20, 20), dtype=np.float32)]
        original = bundle.stretch(bundle.supernet.original.edges)
        one, two = (make_runtime(name, threads=threads).load(original).run(samples)[0] for threads in (1, 2))
        np.testing.assert_allclose(one, two, atol=1e-5)
