from __future__ import annotations

import contextlib

import numpy as np
import pytest

pytest.importorskip("onnx", reason="needs the extra: pip install 'pathweave[dev]'")

import onnx

from benchmarks.faults.hostile_models import (
    OTHER_ELEMENTS,
    OTHER_FIELDS,
    OTHER_OPERATORS,
    branch,
    constant,
    corpus,
    element,
    external_data_in_an_if,
    fragment,
    hidden_operator,
    location,
    odd_attributes,
    outside,
    relu_with,
    stretch,
)
from device_sdk.errors import CompositionError
from device_sdk.fragments.composition import Stretch, compose
from device_sdk.fragments.protobuf import text_field


def test_data_outside_the_bundle_in_a_branch_of_an_if_is_not_read(runtime, tmp_path):
    """It was read from the working directory: ONNX Runtime resolves external data of subgraphs too."""
    (tmp_path / "secret").write_bytes(np.arange(3, dtype=np.float32).tobytes())
    with contextlib.chdir(tmp_path), pytest.raises(CompositionError, match="subgraph"):
        runtime.load(stretch(external_data_in_an_if()))


def test_an_operator_that_is_allowed_may_not_have_a_subgraph_either():
    for attribute in ({"g": branch("a")}, {"graphs": [branch("a")]}):
        with pytest.raises(CompositionError, match="subgraph"):
            compose(stretch(relu_with(**attribute)))


@pytest.mark.parametrize("attribute", odd_attributes(), ids=lambda attribute: attribute.ListFields()[-1][0].name)
def test_kinds_of_attributes_that_the_packager_does_not_write_are_refused(attribute):
    with pytest.raises(CompositionError, match="attribute has"):
        compose(stretch(constant(attribute)))


def test_data_outside_the_bundle_in_a_constant_is_refused():
    attribute = onnx.AttributeProto(name="value", t=outside(), type=onnx.AttributeProto.TENSOR)
    with pytest.raises(CompositionError, match="outside the bundle"):
        compose(stretch(constant(attribute)))


@pytest.mark.parametrize(("operator", "domain"), OTHER_OPERATORS)
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


@pytest.mark.parametrize("name", OTHER_ELEMENTS)
def test_element_types_that_no_rendition_has_are_refused(name):
    with pytest.raises(CompositionError, match=f"element type {getattr(onnx.TensorProto, name)}"):
        compose(stretch(element(name)))


def test_a_cast_to_a_type_that_no_rendition_has_is_refused():
    node = onnx.helper.make_node("Cast", ["cut_0"], ["cut_1"], to=onnx.TensorProto.STRING)
    with pytest.raises(CompositionError, match="attribute to"):
        compose(stretch(fragment(node)))


@pytest.mark.parametrize(("name", "field"), OTHER_FIELDS)
def test_functions_and_training_info_have_no_place(name, field):
    relu = fragment(onnx.helper.make_node("Relu", ["cut_0"], ["cut_1"]))
    with pytest.raises(CompositionError, match=f"field {field}"):
        compose(stretch(relu + text_field(field, name)))


def test_a_field_of_another_wire_type_cannot_hide_an_operator():
    """Protobuf ignores such a field. A reader that takes it would see Relu where the runtime sees Loop."""
    with pytest.raises(CompositionError, match="field 4"):
        compose(stretch(hidden_operator()))


@pytest.mark.parametrize("number", [1, 2**32 + 1, 2**64 - 1])
def test_every_number_but_0_means_data_elsewhere(number):
    with pytest.raises(CompositionError, match="outside the bundle"):
        compose(stretch(location(number)))


@pytest.mark.parametrize("name", corpus())
def test_every_model_of_the_corpus_is_refused(name):
    with pytest.raises(CompositionError):
        compose(stretch(corpus()[name]()))


def test_an_empty_constant_of_vast_other_extents_is_an_error_of_ours_or_none():
    """It raised ValueError: found by fuzzing."""
    empty = onnx.TensorProto(name="w", data_type=onnx.TensorProto.INT64, dims=[1 << 20, 1 << 20, 1 << 40, 0])
    with contextlib.suppress(CompositionError):
        compose(stretch(fragment(onnx.helper.make_node("Reshape", ["cut_0", "w"], ["cut_1"]), initializers=[empty])))
