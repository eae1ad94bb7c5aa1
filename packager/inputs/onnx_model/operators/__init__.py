"""ONNX operators as torch functions: a new operator is one function and one line of a table.

A function takes the node (`OnnxNode`) and its inputs (None where one is left out) and returns its output, or a tuple.
"""

from __future__ import annotations

from packager.inputs.onnx_model.operators import elementwise, layers, reductions, shapes
from packager.inputs.onnx_model.operators.port import Operator

OPERATORS: dict[str, Operator] = {
    **elementwise.OPERATORS,
    **layers.OPERATORS,
    **reductions.OPERATORS,
    **shapes.OPERATORS,
}
