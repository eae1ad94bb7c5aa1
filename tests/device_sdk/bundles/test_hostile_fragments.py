from __future__ import annotations

import contextlib

import numpy as np
import pytest

from device_sdk.bundles.composition import Stretch, compose
from device_sdk.bundles.protobuf import FIXED32, bytes_field, integer_field, text_field, varint
from device_sdk.errors import CompositionError
from device_sdk.supernet.blocks import TensorSpec

onnx = pytest.importorskip("onnx", reason="needs the extra: pip install 'pathweave[dev]'")
FLOAT = onnx.TensorProto.FLOAT
INPUT, OUTPUT = (TensorSpec("cut_0", (3,)),), (TensorSpec("cut_1", (3,)),)


def stretch(*fragments: bytes, owners=()) -> Stretch:
    return Stretch(fragments, INPUT, OUTPUT, ir_version=10, opset=20, owners=owners)


def fragment(*nodes, initializers=()) -> bytes:
    return onnx.GraphProto(node=nodes, initializer=initializers).SerializeToString()


def outside(name="w"):
    tensor = onnx.TensorProto(name=name, data_type=FLOAT, dims=[3], data_location=onnx.TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="secret")
    return tensor


def branch(name):
    """A subgraph whose answer lies in a file."""
    answer = onnx.helper.make_tensor_value_info(name, FLOAT, [3])
    read = onnx.helper.make_node("Identity", ["w" + name], [name])
    return onnx.helper.make_graph([read], "branch", [], [answer], initializer=[outside("w" + name)])


def condition():
    return onnx.numpy_helper.from_array(np.array(True), "c")


def test_data_outside_the_bundle_in_a_branch_of_an_if_is_not_read(runtime, tmp_path):
    """It was read from the working directory: ONNX Runtime resolves external data of subgraphs too."""
    (tmp_path / "secret").write_bytes(np.arange(3, dtype=np.float32).tobytes())
    node = onnx.helper.make_node("If", ["c"], ["cut_1"], then_branch=branch("a"), else_branch=branch("b"))
    with contextlib.chdir(tmp_path), pytest.raises(CompositionError, match="subgraph"):
        runtime.load(stretch(fragment(node, initializers=[condition()])))


def test_an_operator_that_is_allowed_may_not_have_a_subgraph_either():
    node = onnx.helper.make_node("Relu", ["cut_0"], ["cut_1"])
    for attribute in ({"g": branch("a")}, {"graphs": [branch("a")]}):
        hidden = onnx.NodeProto.FromString(node.SerializeToString())
        hidden.attribute.append(onnx.AttributeProto(name="body", **attribute))
        with pytest.raises(CompositionError, match="subgraph"):
            compose(stretch(fragment(hidden)))


@pytest.mark.parametrize(
    "attribute",
    [
        onnx.AttributeProto(name="value", sparse_tensor=onnx.SparseTensorProto(values=outside())),
        onnx.AttributeProto(name="value", sparse_tensors=[onnx.SparseTensorProto(values=outside())]),
        onnx.AttributeProto(name="value", tensors=[outside()]),
        onnx.AttributeProto(name="value", tp=onnx.TypeProto()),
        onnx.AttributeProto(name="value", type_protos=[onnx.TypeProto()]),
        onnx.AttributeProto(name="value", ref_attr_name="value"),
        onnx.AttributeProto(name="value", type=onnx.AttributeProto.GRAPH),
    ],
    ids=lambda attribute: attribute.ListFields()[-1][0].name,
)
def test_kinds_of_attributes_that_the_packager_does_not_write_are_refused(attribute):
    node = onnx.NodeProto(op_type="Constant", output=["cut_1"], attribute=[attribute])
    with pytest.raises(CompositionError, match="attribute has"):
        compose(stretch(fragment(node)))


def test_data_outside_the_bundle_in_a_constant_is_refused():
    node = onnx.NodeProto(op_type="Constant", output=["cut_1"])
    node.attribute.append(onnx.AttributeProto(name="value", t=outside(), type=onnx.AttributeProto.TENSOR))
    with pytest.raises(CompositionError, match="outside the bundle"):
        compose(stretch(fragment(node)))


@pytest.mark.parametrize(
    ("operator", "domain"),
    [
        ("Loop", ""),
        ("If", "ai.onnx"),
        ("Scan", ""),
        ("SequenceMap", ""),
        ("SequenceEmpty", ""),
        ("OptionalGetElement", ""),
        ("RandomNormal", ""),
        ("Multinomial", ""),
        ("Bernoulli", ""),
        ("ImageDecoder", ""),
        ("StringNormalizer", ""),
        ("FusedGemm", ""),
        ("", ""),
        ("Gelu", "com.microsoft"),
        ("QAttention", "com.microsoft"),
        ("TreeEnsembleClassifier", "ai.onnx.ml"),
        ("Gradient", "ai.onnx.preview.training"),
        ("Relu", "org.example"),
        ("Relu", "ai.onnx\0"),
    ],
)
def test_other_operators_and_domains_are_refused_and_the_error_names_the_block(operator, domain):
    good = fragment(onnx.helper.make_node("Relu", ["cut_0"], ["x"]))
    bad = fragment(onnx.NodeProto(op_type=operator, domain=domain, input=["x"], output=["cut_1"]))
    with pytest.raises(CompositionError, match="fragment of block o1@fp32 is refused: operator") as caught:
        compose(stretch(good, bad, owners=("block o0@fp32", "block o1@fp32")))
    assert caught.value.hint


def test_the_block_of_a_stretch_is_named(bundle):
    whole = bundle.stretch(bundle.supernet.original.edges)
    assert len(whole.owners) == len(whole.fragments)
    fragments = (*whole.fragments[:-1], b"\xff")
    last = bundle.supernet.original.edges[-1]
    with pytest.raises(CompositionError, match=f"block {last.block}@{last.rendition}"):
        compose(Stretch(fragments, whole.inputs, whole.outputs, 10, 20, owners=whole.owners))


@pytest.mark.parametrize("element", ["STRING", "COMPLEX64", "FLOAT8E4M3FN", "INT4", "UNDEFINED"])
def test_element_types_that_no_rendition_has_are_refused(element):
    number = getattr(onnx.TensorProto, element)
    weight = onnx.TensorProto(name="w", data_type=number, dims=[3])
    with pytest.raises(CompositionError, match=f"element type {number}"):
        compose(stretch(fragment(initializers=[weight])))


def test_a_cast_to_a_type_that_no_rendition_has_is_refused():
    node = onnx.helper.make_node("Cast", ["cut_0"], ["cut_1"], to=onnx.TensorProto.STRING)
    with pytest.raises(CompositionError, match="attribute to"):
        compose(stretch(fragment(node)))


@pytest.mark.parametrize(("name", "field"), [("functions", 25), ("training_info", 20), ("sparse_initializer", 15)])
def test_functions_and_training_info_have_no_place(name, field):
    relu = fragment(onnx.helper.make_node("Relu", ["cut_0"], ["cut_1"]))
    with pytest.raises(CompositionError, match=f"field {field}"):
        compose(stretch(relu + text_field(field, name)))


def test_a_field_of_another_wire_type_cannot_hide_an_operator():
    """Protobuf ignores such a field. A reader that takes it would see Relu where the runtime sees Loop."""
    body = text_field(1, "cut_0") + text_field(2, "cut_1") + text_field(4, "Loop")
    hiding = body + varint(4 << 3 | FIXED32) + b"Relu"
    with pytest.raises(CompositionError, match="field 4"):
        compose(stretch(bytes_field(1, hiding)))


@pytest.mark.parametrize("location", [1, 2**32 + 1, 2**64 - 1])
def test_every_number_but_0_means_data_elsewhere(location):
    weight = integer_field(2, FLOAT) + text_field(8, "w") + integer_field(14, location)
    with pytest.raises(CompositionError, match="outside the bundle"):
        compose(stretch(bytes_field(5, weight)))
