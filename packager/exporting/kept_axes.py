"""Reshapes that name no extent that they keep, so that a fragment runs at every length and not at the exported one."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

_LEAST_RANK = 3  # of what is reshaped and of the result: [batch, tokens, …]


def copy_kept_axes(graph: onnx.GraphProto) -> None:
    """In reshapes of [batch, tokens, …] to the same leading axes, copy these from the input. Changes ``graph``.

    The exporter writes their extents as constants. ``0`` in a reshape's target stands for the input's extent.
    """
    weights = {tensor.name: tensor for tensor in graph.initializer}
    shapes = {value.name: value.type.tensor_type for value in (*graph.input, *graph.value_info)}
    for node in graph.node:
        if node.op_type != "Reshape" or node.input[1] not in weights or node.input[0] not in shapes:
            continue
        target = numpy_helper.to_array(weights[node.input[1]]).tolist()
        given = [dim.dim_value or None for dim in shapes[node.input[0]].shape.dim]
        kept = _kept(given, target)
        if kept < 2:
            continue
        name = f"{node.output[0]}_shape"
        graph.initializer.append(numpy_helper.from_array(np.array([0] * kept + target[kept:], dtype=np.int64), name))
        node.input[1] = name
        told = [attribute for attribute in node.attribute if attribute.name != "allowzero"]
        del node.attribute[:]
        node.attribute.extend([*told, helper.make_attribute("allowzero", 0)])
    used = {name for node in graph.node for name in node.input}
    left = [tensor for tensor in graph.initializer if tensor.name in used]
    del graph.initializer[:]
    graph.initializer.extend(left)


def _kept(given: Sequence[int | None], target: Sequence[int]) -> int:
    """The number of leading axes that a reshape of ``given`` (None: the batch) to ``target`` keeps."""
    if min(len(given), len(target)) < _LEAST_RANK or given[0] is not None or target[0] != -1:
        return 0
    rest = [extent for extent in given[1:] if extent is not None]
    if len(rest) < len(given) - 1 or min(target[1:]) < 1 or math.prod(rest) != math.prod(target[1:]):
        return 0
    kept = 1
    while kept < min(len(given), len(target)) and given[kept] == target[kept]:
        kept += 1
    return kept
