from __future__ import annotations

import contextlib
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from device_sdk.errors import CompositionError
from device_sdk.fragments import sizes
from device_sdk.fragments.composition import Stretch, compose, read_fragments
from device_sdk.fragments.operators import OPERATORS
from device_sdk.fragments.shape_rules import UndeterminedError, infer
from device_sdk.fragments.sizes import MIN_LIMIT_ELEMENTS, check_sizes
from device_sdk.supernet.blocks import TensorSpec

onnx = pytest.importorskip("onnx", reason="needs the extra: pip install 'pathweave[dev]'")
INPUT = (TensorSpec("cut_0", (4, 8, 8)),)
OUTPUT = (TensorSpec("cut_1", (4, 8, 8)),)


def constant(name, values, dtype=np.int64):
    return onnx.numpy_helper.from_array(np.array(values, dtype), name)


def node(operator, inputs, *, to=("cut_1",), **attributes):
    return onnx.helper.make_node(operator, inputs, list(to), **attributes)


def checked(*nodes, **initializers):
    weights = [constant(name, values, np.array(values).dtype) for name, values in initializers.items()]
    fragment = onnx.GraphProto(node=nodes, initializer=weights).SerializeToString()
    compose(Stretch((fragment,), INPUT, OUTPUT, ir_version=10, opset=20))
    return len(fragment)


TOO_LARGE = {
    "Expand": ([node("Expand", ["cut_0", "s"])], {"s": [9000, 4, 8, 8, 256]}),
    "ConstantOfShape": ([node("ConstantOfShape", ["s"])], {"s": [1 << 30]}),
    "Tile": ([node("Tile", ["cut_0", "s"])], {"s": [1 << 20, 1, 4, 4]}),
    "Range": ([node("Range", ["a", "b", "c"])], {"a": 0, "b": 1 << 40, "c": 1}),
    "Resize to a size": ([node("Resize", ["cut_0", "", "", "s"])], {"s": [1, 4, 1 << 20, 1 << 20]}),
    "Resize by scales": ([node("Resize", ["cut_0", "", "s"])], {"s": np.array([1, 1, 1e5, 1e5], np.float32)}),
    "Pad": ([node("Pad", ["cut_0", "s"])], {"s": [0, 0, 0, 0, 0, 0, 1 << 20, 1 << 20]}),
    "OneHot": ([node("OneHot", ["i", "s", "v"])], {"i": [1] * 100, "s": 1 << 40, "v": [0, 1]}),
    "HannWindow": ([node("HannWindow", ["s"])], {"s": 1 << 40}),
    "padding of a convolution": (
        [node("Conv", ["cut_0", "w"], pads=[0, 0, 1 << 20, 1 << 20])],
        {"w": np.zeros((4, 4, 1, 1), np.float32)},
    ),
    "output of a transposed convolution": (
        [node("ConvTranspose", ["cut_0", "w"], output_shape=[1 << 20, 1 << 20])],
        {"w": np.zeros((4, 4, 1, 1), np.float32)},
    ),
    "a product of vectors": (
        [node("MatMul", ["a", "b"])],
        {"a": np.zeros((9000, 1), np.float32), "b": np.zeros((1, 9000), np.float32)},
    ),
    "a sum of vectors": (
        [node("Add", ["a", "b"])],
        {"a": np.zeros((9000, 1), np.float32), "b": np.zeros((1, 9000), np.float32)},
    ),
    "a shape that is computed": (
        [
            node("Shape", ["cut_0"], to=["x"]),
            node("Mul", ["x", "s"], to=["y"]),
            node("Expand", ["f", "y"]),
        ],
        {"s": [1 << 14] * 4, "f": np.zeros(1, np.float32)},
    ),
}


@pytest.mark.parametrize("case", TOO_LARGE)
def test_what_would_take_gigabytes_is_refused_without_taking_them(case):
    nodes, initializers = TOO_LARGE[case]
    tracemalloc.start()
    try:
        with pytest.raises(CompositionError, match=r"elements of one sample; \d+ are allowed") as caught:
            checked(*nodes, **initializers)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()
    assert "cut_1" in str(caught.value)


def test_the_error_names_the_block():
    graph = onnx.GraphProto(node=[node("ConstantOfShape", ["s"])], initializer=[constant("s", [1 << 30])])
    fragments = read_fragments([b"", graph.SerializeToString()])
    with pytest.raises(CompositionError, match="block o1@fp32 is refused: operator ConstantOfShape"):
        check_sizes(fragments, INPUT, OUTPUT, owners=("block o0@fp32", "block o1@fp32"))


integers = st.integers(-(2**40), 2**40) | st.sampled_from([-1, 0, 1, 2])
attributes = integers | st.lists(integers, max_size=4).map(tuple) | st.binary(max_size=3) | st.none()
tensors = st.none() | st.builds(
    sizes.Inferred,
    st.none() | st.lists(st.integers(0, 9), max_size=4),
    st.none() | st.lists(integers, max_size=4).map(lambda values: np.array(values, np.int64)),
)
NAMES = "axis axes perm pads strides dilations kernel_shape output_shape blocksize group split value start to keepdims"


@given(
    st.sampled_from(sorted(OPERATORS)),
    st.lists(tensors, max_size=4),
    st.dictionaries(st.sampled_from(NAMES.encode().split()), attributes, max_size=4),
    st.integers(0, 3),
)
@settings(max_examples=1500)
def test_nodes_that_make_no_sense_are_inferred_or_undetermined_but_never_anything_else(operator, inputs, told, outputs):
    with contextlib.suppress(UndeterminedError):
        infer(operator, inputs, told, outputs)


def test_several_that_are_allowed_alone_are_refused_together():
    quarter = MIN_LIMIT_ELEMENTS // 4
    nodes = [node("ConstantOfShape", ["s"], to=[name]) for name in "abcde"]
    checked(*nodes[:4], s=[quarter])
    with pytest.raises(CompositionError, match="allowed"):
        checked(*nodes, s=[quarter])


@pytest.mark.parametrize("operator", ["Expand", "Tile", "Pad"])
def test_a_size_that_depends_on_the_samples_is_refused(operator):
    nodes = [node("ArgMax", ["cut_0"], to=["x"])]
    with pytest.raises(CompositionError, match="neither a constant nor derived from a shape"):
        checked(*nodes, node(operator, ["cut_0", "x"]))


def test_a_node_before_the_one_that_it_reads_is_refused_if_it_is_shape_driven():
    late = node("Mul", ["s", "s"], to=["x"])
    with pytest.raises(CompositionError, match="neither a constant"):
        checked(node("ConstantOfShape", ["x"]), late, s=[1 << 20])


def test_an_initializer_that_says_to_be_larger_than_it_is_is_refused():
    weight = onnx.TensorProto(name="w", data_type=1, dims=[1 << 40], raw_data=b"1234")
    fragment = onnx.GraphProto(initializer=[weight]).SerializeToString()
    with pytest.raises(CompositionError, match="fewer elements than its shape"):
        compose(Stretch((fragment,), INPUT, OUTPUT, ir_version=10, opset=20))


def test_an_initializer_with_the_name_of_the_input_does_not_make_its_values_known():
    fragment = onnx.GraphProto(node=[node("ConstantOfShape", ["cut_0"])], initializer=[constant("cut_0", [4])])
    told = (TensorSpec("cut_0", (1,), dtype="int64"),)
    with pytest.raises(CompositionError, match="neither a constant"):
        check_sizes(read_fragments([fragment.SerializeToString()]), told, OUTPUT)


def test_large_inputs_raise_the_limit():
    spec = (TensorSpec("cut_0", (4, 1024, 1024)),)
    graph = onnx.GraphProto(node=[node("Expand", ["cut_0", "s"])], initializer=[constant("s", [20, 4, 1024, 1024])])
    data = [graph.SerializeToString()]
    check_sizes(read_fragments(data), spec, OUTPUT)
    with pytest.raises(CompositionError, match="allowed"):
        check_sizes(read_fragments(data), INPUT, OUTPUT)


def shapes_by_onnx(nodes, weights):
    """The shapes of all node outputs as the onnx package infers them at batch 1."""
    ends = [onnx.helper.make_tensor_value_info("cut_0", onnx.TensorProto.FLOAT, [1, 4, 8, 8])]
    graph = onnx.helper.make_graph(nodes, "g", ends, [], initializer=weights)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10)
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    return {
        value.name: tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        for value in (*inferred.graph.value_info, *inferred.graph.output)
    }


F32 = np.float32
AS_ONNX = {
    "Conv": ([node("Conv", ["cut_0", "w"], strides=[2, 3], pads=[1, 2, 0, 1], dilations=[2, 1])], {"w": (6, 4, 3, 3)}),
    "Conv same": ([node("Conv", ["cut_0", "w"], strides=[3, 2], auto_pad="SAME_UPPER")], {"w": (6, 4, 3, 3)}),
    "Conv grouped": ([node("Conv", ["cut_0", "w"], group=4)], {"w": (4, 1, 3, 3)}),
    "ConvTranspose": (
        [node("ConvTranspose", ["cut_0", "w"], strides=[2, 2], pads=[1, 1, 0, 0], output_padding=[1, 0], group=2)],
        {"w": (4, 5, 3, 3)},
    ),
    "MaxPool": ([node("MaxPool", ["cut_0"], kernel_shape=[3, 2], strides=[2, 3], pads=[1, 0, 1, 0])], {}),
    "MaxPool up": ([node("MaxPool", ["cut_0"], kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)], {}),
    "GlobalAveragePool": ([node("GlobalAveragePool", ["cut_0"])], {}),
    "ReduceMean": ([node("ReduceMean", ["cut_0", "i"], keepdims=0)], {"i": [-1, 1]}),
    "ReduceSum of all": ([node("ReduceSum", ["cut_0"])], {}),
    "Flatten": ([node("Flatten", ["cut_0"], axis=2)], {}),
    "Reshape": ([node("Reshape", ["cut_0", "i"])], {"i": [0, -1, 16]}),
    "Transpose": ([node("Transpose", ["cut_0"], perm=[0, 2, 3, 1])], {}),
    "Squeeze": ([node("Squeeze", ["cut_0"])], {}),
    "Unsqueeze": ([node("Unsqueeze", ["cut_0", "i"])], {"i": [0, -1]}),
    "Concat": ([node("Concat", ["cut_0", "cut_0"], axis=-2)], {}),
    "Slice": ([node("Slice", ["cut_0", "i", "j", "k", "l"])], {"i": [1, -1], "j": [-1, -9], "k": [2, 3], "l": [2, -3]}),
    "Gather": ([node("Gather", ["cut_0", "i"], axis=-1)], {"i": [[0, 1, 2], [3, 4, 5]]}),
    "Pad": ([node("Pad", ["cut_0", "i", "", "j"])], {"i": [1, 2, 3, 4], "j": [-1, -2]}),
    "Expand": ([node("Expand", ["cut_0", "i"])], {"i": [3, 1, 1, 8]}),
    "Tile": ([node("Tile", ["cut_0", "i"])], {"i": [1, 2, 3, 1]}),
    "Range": ([node("Range", ["i", "j", "k"])], {"i": 9, "j": 1, "k": -3}),
    "Resize": ([node("Resize", ["cut_0", "", "", "i"])], {"i": [1, 4, 5, 20]}),
    "DepthToSpace": ([node("DepthToSpace", ["cut_0"], blocksize=2)], {}),
    "SpaceToDepth": ([node("SpaceToDepth", ["cut_0"], blocksize=4)], {}),
    "MatMul": ([node("MatMul", ["cut_0", "w"])], {"w": (8, 3)}),
    "MatMul of a vector": ([node("MatMul", ["cut_0", "w"])], {"w": (8,)}),
    "Gemm": ([node("Flatten", ["cut_0"], to=["f"]), node("Gemm", ["f", "w"], transB=1)], {"w": (7, 256)}),
    "Split": ([node("Split", ["cut_0", "i"], to=["cut_1", "x", "y"], axis=-1)], {"i": [1, 5, 2]}),
    "Split evenly": ([node("Split", ["cut_0"], to=["cut_1", "x", "y"], axis=2, num_outputs=3)], {}),
    "Where": (
        [node("Greater", ["cut_0", "w"], to=["g"]), node("Where", ["g", "w", "v"])],
        {"w": (8,), "v": (2, 1, 1, 1, 1)},
    ),
    "a view that an exporter writes": (
        [
            node("Shape", ["cut_0"], to=["s"], start=0, end=1),
            node("Concat", ["s", "i"], to=["t"], axis=0),
            node("Reshape", ["cut_0", "t"], to=["r"], allowzero=1),
            node("Shape", ["r"], to=["u"]),
            node("Gather", ["u", "j"], to=["v"], axis=0),
            node("Unsqueeze", ["v", "k"], to=["w"]),
            node("Mul", ["w", "l"], to=["x"]),
            node("ConstantOfShape", ["x"]),
        ],
        {"i": [-1, 16], "j": 1, "k": [0], "l": [3]},
    ),
}


@pytest.mark.parametrize("case", AS_ONNX)
def test_shapes_are_those_that_onnx_infers(case):
    nodes, weights_given = AS_ONNX[case]
    weights = [
        onnx.numpy_helper.from_array(np.zeros(shape, F32), name) if isinstance(shape, tuple) else constant(name, shape)
        for name, shape in weights_given.items()
    ]
    found = {}
    [fragment] = read_fragments([onnx.GraphProto(node=nodes, initializer=weights).SerializeToString()])
    values = {tensor.name: sizes.constant(tensor) for tensor in fragment.initializers}
    values[b"cut_0"] = sizes.Inferred((1, 4, 8, 8))
    for one in fragment.nodes:
        values |= dict(zip(one.outputs, sizes.inferred(one, values), strict=True))
        found |= {name.decode(): values[name].shape for name in one.outputs}
    expected = shapes_by_onnx(nodes, weights)
    assert found["cut_1"] is not None
    assert {name: found[name] for name in expected} == expected
    assert "cut_1" in expected
