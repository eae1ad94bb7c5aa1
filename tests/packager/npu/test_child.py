"""Reasons read from what the provider logs."""

from __future__ import annotations

from packager.npu.child import UNKNOWN, Reasons

LOG = """\
2026 [V:onnxruntime:, a.cc:557 CreateQnnNode] Qnn_OpConfig node name: o0/7 package_name: qti.aisw
 node_inputs:
 name=x id=0 dataType=QNN_DATATYPE_FLOAT_32 rank=4
 node_outputs:
 name=y id=0 dataType=QNN_DATATYPE_FLOAT_16 rank=4
2026 [W:onnxruntime:, a.cc:565] QNN.backendValidateOpConfig() failed for node `o0/7` of type `ElementWiseNeuron` with \
error code 3110
2026 [V:onnxruntime:, b.cc:1713 LogNodeSupport] Validation FAILED for 2 nodes in OrtNodeUnit (HardSwish) :
	Operator type: DequantizeLinear Node name: o0/6 Node index: 6
	Operator type: HardSwish Node name: o0/7 Node index: 7
	REASON : Failed to add node.

2026 [V:onnxruntime:, b.cc:1713 LogNodeSupport] Validation PASSED for 1 nodes in OrtNodeUnit (Conv) :
	Operator type: Conv Node name: o0/5 Node index: 5

2026 [V:onnxruntime:, b.cc:1713 LogNodeSupport] Validation FAILED for 1 nodes in OrtNodeUnit (QuantizeLinear) :
	Operator type: QuantizeLinear Node name: o0/0 Node index: 0
	REASON : QNN EP is configured to not take Q nodes that consume a graph input.

2026 [V:onnxruntime:, b.cc:1713 LogNodeSupport] Validation FAILED for 1 nodes in OrtNodeUnit (Det) :
	Operator type: Det Node name:  Node index: 9
	REASON : Operators of type `Det` are not supported by QNN EP.Det node `n0` will not be assigned to QNN EP.
"""
CODE = "Failed to add node. QNN refuses ElementWiseNeuron of FLOAT_32: error code 3110"


def test_each_refused_node_has_the_reason_of_its_unit_with_the_code_of_the_library():
    reasons = Reasons(LOG)
    assert reasons.of("o0/7", "HardSwish") == reasons.of("o0/6", "DequantizeLinear") == CODE
    assert reasons.of("", "Det") == "Operators of type `Det` are not supported by QNN EP."


def test_a_node_that_was_renamed_has_the_last_reason_of_its_operator_and_an_unknown_one_none():
    reasons = Reasons(LOG)
    assert reasons.of("other", "HardSwish") == CODE
    assert reasons.of("o0/5", "Conv") == UNKNOWN


def test_what_the_processor_converts_by_design_is_no_refusal():
    operators = {operator for operator, _ in Reasons(LOG).all()}
    assert operators == {"DequantizeLinear", "HardSwish", "Det"}
