from __future__ import annotations

import pytest

from device_sdk.fragments.operators import ELEMENT_BYTES, OPERATORS
from device_sdk.fragments.shape_rules import SHAPE_DRIVEN

onnx = pytest.importorskip("onnx", reason="needs the extra: pip install 'pathweave[dev]'")

OPSET = 20  # that the packager writes
CONTROL_FLOW = {"If", "Loop", "Scan", "SequenceMap"}
NOT_TENSORS = {
    *("ConcatFromSequence", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert"),
    *("SequenceLength", "Optional", "OptionalGetElement", "OptionalHasElement"),
    *("RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit", "TfIdfVectorizer", "ImageDecoder"),
}
RANDOM = {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
TRAINING = {"NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"}


def test_every_operator_of_the_packagers_opset_is_allowed_or_left_out_for_a_stated_reason():
    schemas = onnx.defs.get_all_schemas_with_history()
    known = {one.name for one in schemas if one.domain == "" and one.since_version <= OPSET}
    assert known - OPERATORS == CONTROL_FLOW | NOT_TENSORS | RANDOM | TRAINING


def test_every_operator_in_the_table_is_one_of_onnx():
    schemas = onnx.defs.get_all_schemas_with_history()
    assert {one.name for one in schemas if one.domain == ""} >= OPERATORS
    assert SHAPE_DRIVEN <= OPERATORS


def test_no_operator_in_the_table_takes_a_subgraph():
    schemas = [one for one in onnx.defs.get_all_schemas_with_history() if one.domain == "" and one.name in OPERATORS]
    kinds = {attribute.type.name for one in schemas for attribute in one.attributes.values()}
    assert not kinds & {"GRAPH", "GRAPHS"}


def test_element_types_have_the_sizes_of_onnx():
    for number, size in ELEMENT_BYTES.items():
        assert onnx.helper.tensor_dtype_to_np_dtype(number).itemsize == size
