from __future__ import annotations

import contextlib
import dataclasses
import timeit
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.bundles.bundle import Bundle
from device_sdk.bundles.runnable import golden_inputs
from device_sdk.errors import CompositionError, RuntimeFailedError
from device_sdk.fragments import protobuf
from device_sdk.fragments.composition import Stretch, compose
from device_sdk.fragments.fragment import read_fragment
from device_sdk.supernet.blocks import Golden, InputSize, TensorSpec
from device_sdk.supernet.paths import enumerate_subnets
from device_sdk.supernet.plan import ExitChoice

onnx = pytest.importorskip("onnx", reason="needs the extra: pip install 'pathweave[dev]'")

VECTOR = (TensorSpec("cut_0", (4,)),)
OUTPUT = (TensorSpec("cut_1", (4,)),)


def fragment(*, nodes=(), initializers=()) -> bytes:
    return onnx.GraphProto(node=nodes, initializer=initializers).SerializeToString()


def node(operator, inputs, outputs, **attributes):
    return onnx.helper.make_node(operator, inputs, outputs, **attributes)


def weight(name, value=1.0):
    return onnx.numpy_helper.from_array(np.full(4, value, dtype=np.float32), name)


def stretch(*fragments, inputs=VECTOR, outputs=OUTPUT) -> Stretch:
    return Stretch(fragments, inputs, outputs, ir_version=10, opset=20)


ADD = fragment(nodes=[node("Add", ["cut_0", "a/w"], ["cut_1"])], initializers=[weight("a/w")])


def test_every_subnet_is_a_valid_model(bundle):
    for subnet in enumerate_subnets(bundle.supernet, limit=100):
        model = onnx.ModelProto.FromString(compose(bundle.stretch(subnet.edges)))
        onnx.checker.check_model(model, full_check=True)
        assert [value.name for value in model.graph.input] == ["cut_0"]
        assert [value.name for value in model.graph.output] == ["cut_5"]


def test_a_composed_subnet_answers_what_its_blocks_answer_in_sequence(bundle, runtime):
    samples = golden_inputs(bundle.supernet.cut_points[0], seed=5, batch=3)
    for subnet in enumerate_subnets(bundle.supernet, limit=100):
        features = samples
        for edge in subnet.edges:
            features = runtime.load(bundle.stretch((edge,))).run(features)
        whole = runtime.load(bundle.stretch(subnet.edges)).run(samples)
        np.testing.assert_allclose(whole[0], features[0], rtol=0, atol=1e-6)


def test_the_model_is_laid_out_as_the_format_says():
    model = onnx.ModelProto.FromString(compose(stretch(ADD)))
    assert (model.ir_version, model.opset_import[0].version, model.opset_import[0].domain) == (10, 20, "")
    batch, extent = model.graph.input[0].type.tensor_type.shape.dim
    assert (batch.dim_param, extent.dim_value) == ("batch", 4)


@pytest.mark.parametrize(
    ("dtype", "element"), [("float16", 10), ("int8", 3), ("uint8", 2), ("int32", 6), ("int64", 7), ("bool", 9)]
)
def test_every_tensor_type_has_its_onnx_number(dtype, element):
    spec = (TensorSpec("cut_0", (2, 3), dtype=dtype),)
    model = onnx.ModelProto.FromString(compose(stretch(ADD, inputs=spec)))
    assert model.graph.input[0].type.tensor_type.elem_type == element


@pytest.fixture(scope="module")
def other_size(bundle):
    """The tiny bundle with a further input size of half of its side: all but the int8 rendition run there."""

    def any_size(owner):
        renditions = [msgspec.structs.replace(one, any_size=one.name == "fp32") for one in owner.renditions]
        return msgspec.structs.replace(owner, renditions=tuple(renditions))

    manifest = bundle.manifest
    blocks, exits = (tuple(map(any_size, owners)) for owners in (manifest.blocks, manifest.exits))
    shapes = [
        tuple((spec.shape[0], *(extent // 2 for extent in spec.shape[1:])) for spec in cut.tensors)
        for cut in manifest.cut_points
    ]
    size = InputSize(shapes[0][0][1:], tuple(shapes), Golden((), 0.0))
    manifest = msgspec.structs.replace(manifest, blocks=blocks, exits=exits, input_sizes=(size,))
    return Bundle(bundle.folder, bundle.blobs, manifest, bundle.digest, has_signature=bundle.has_signature)


def test_a_block_with_free_axes_runs_at_every_input_size(other_size, runtime):
    supernet = other_size.supernet
    assert supernet.free_axes["cut_1"] == {2, 3}
    for edge in [edge for edge in supernet.edges if edge.input_size]:
        loaded = runtime.load(other_size.stretch((edge.at(()),), any_size=True))
        for one in (edge.at(()), edge):
            start, end = supernet.ends(one)
            inputs = golden_inputs(start, seed=5, batch=3)
            [answer] = loaded.run(inputs)
            assert answer.shape == (3, *end.tensors[0].shape)
            [expected] = runtime.load(other_size.stretch((one,))).run(inputs)
            np.testing.assert_allclose(answer, expected, rtol=0, atol=1e-6)


def test_a_branch_alone_runs_at_every_input_size(other_size, runtime):
    supernet = other_size.supernet
    for exit_ in supernet.exits:
        loaded = runtime.load(other_size.stretch((), ExitChoice(exit_.id, 0.5)))
        for size in supernet.sizes:
            inputs = golden_inputs(supernet.cut_points_at(size)[exit_.position], seed=5, batch=3)
            [answer] = loaded.run(inputs)
            assert answer.shape == (3, *supernet.exit_tensor(exit_).shape)


def test_without_free_axes_a_stretch_takes_its_own_size_only(other_size, runtime):
    supernet = other_size.supernet
    size = supernet.sizes[1]
    small = supernet.original.at(size)
    loaded = runtime.load(other_size.stretch(small.edges))
    loaded.run(golden_inputs(supernet.cut_points_at(size)[0], seed=5, batch=2))
    with pytest.raises(RuntimeFailedError):
        loaded.run(golden_inputs(supernet.cut_points[0], seed=5, batch=2))


def test_a_free_axis_has_neither_an_extent_nor_a_name():
    model = onnx.ModelProto.FromString(compose(dataclasses.replace(stretch(ADD), free_axes={"cut_0": frozenset({1})})))
    batch, extent = model.graph.input[0].type.tensor_type.shape.dim
    assert (batch.dim_param, extent.WhichOneof("value")) == ("batch", None)
    assert model.graph.output[0].type.tensor_type.shape.dim[1].dim_value == 4


def test_several_tensors_at_a_cut_point_are_several_inputs_and_outputs():
    both = fragment(nodes=[node("Add", ["cut_0_0", "cut_0_1"], ["cut_1_0"]), node("Neg", ["cut_0_1"], ["cut_1_1"])])
    inputs = (TensorSpec("cut_0_0", (4,)), TensorSpec("cut_0_1", (4,)))
    outputs = (TensorSpec("cut_1_0", (4,)), TensorSpec("cut_1_1", (4,)))
    model = onnx.ModelProto.FromString(compose(stretch(both, inputs=inputs, outputs=outputs)))
    onnx.checker.check_model(model, full_check=True)
    assert [value.name for value in model.graph.output] == ["cut_1_0", "cut_1_1"]


def test_two_initializers_of_one_name_are_refused():
    other = fragment(initializers=[weight("a/w", 2.0)])
    with pytest.raises(CompositionError, match="'a/w'"):
        compose(stretch(ADD, other))


def test_two_nodes_with_one_output_are_refused_also_within_a_fragment():
    twice = fragment(nodes=[node("Neg", ["cut_0"], ["cut_1"])] * 2)
    for fragments in ((twice,), (ADD, fragment(nodes=[node("Neg", ["cut_0"], ["cut_1"])]))):
        with pytest.raises(CompositionError, match="'cut_1'"):
            compose(stretch(*fragments))


def test_an_initializer_may_not_take_the_name_of_a_nodes_output():
    with pytest.raises(CompositionError, match="'cut_1'"):
        compose(stretch(ADD, fragment(initializers=[weight("cut_1")])))


def test_left_out_optional_outputs_are_no_names():
    pool = node("MaxPool", ["cut_0"], ["cut_1", ""], kernel_shape=[1, 1])
    other = node("MaxPool", ["cut_1"], ["cut_2", ""], kernel_shape=[1, 1])
    assert list(read_fragment(fragment(nodes=[pool, other])).defined_names()) == [b"cut_1", b"cut_2"]


@pytest.mark.parametrize("place", ["data_location", "external_data"])
def test_data_outside_the_bundle_is_refused(place):
    tensor = weight("a/w")
    if place == "data_location":
        tensor.data_location = onnx.TensorProto.EXTERNAL
    else:
        tensor.external_data.add(key="location", value="/etc/passwd")
    with pytest.raises(CompositionError, match="outside the bundle"):
        compose(stretch(fragment(initializers=[tensor])))


def test_anything_but_nodes_and_initializers_is_refused():
    whole = onnx.GraphProto(name="graph", node=[node("Neg", ["cut_0"], ["cut_1"])]).SerializeToString()
    with pytest.raises(CompositionError, match="field 2"):
        compose(stretch(whole))


@given(st.lists(st.binary(max_size=120), max_size=3))
def test_garbage_is_composed_or_refused_but_never_anything_else(fragments):
    with contextlib.suppress(CompositionError):
        compose(stretch(*fragments))


@given(st.integers(0, len(ADD) - 1), st.integers(0, 7))
def test_a_flipped_bit_is_composed_or_refused_but_never_anything_else(position, bit):
    damaged = bytearray(ADD)
    damaged[position] ^= 1 << bit
    with contextlib.suppress(CompositionError):
        compose(stretch(bytes(damaged)))


def test_composing_twenty_fragments_takes_milliseconds():
    def block(number):
        names = [f"cut_{number}", *(f"b{number}/{n}" for n in range(30)), f"cut_{number + 1}"]
        nodes = [node("Relu", [before], [after]) for before, after in pairwise(names)]
        value = np.zeros(40_000, dtype=np.float32)
        return fragment(nodes=nodes, initializers=[onnx.numpy_helper.from_array(value, f"b{number}/w")])

    whole = stretch(*(block(number) for number in range(20)), outputs=(TensorSpec("cut_20", (4,)),))
    assert min(timeit.repeat(lambda: compose(whole), number=1, repeat=50)) < 0.02  # the least disturbed run


def test_the_header_does_not_depend_on_what_follows():
    assert compose(stretch(ADD)).startswith(
        protobuf.integer_field(1, 10) + protobuf.bytes_field(8, protobuf.integer_field(2, 20))
    )
