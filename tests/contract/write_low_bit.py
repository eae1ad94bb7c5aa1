"""Writes low_bit.json: fragments whose weights are stored in few bits, and what they answer (see README.md).

As ``packager/renditions`` writes them: values packed by output channel, a bias that takes the change of the mean. The
numbers are dyadic, so that every sum is exact; the answers come from arithmetic, not from a runtime.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
import onnx
from onnx import helper, numpy_helper

from device_sdk.random_source import SplitMix64
from packager.renditions.low_bit import BITS, pack_weights
from packager.renditions.rounding import Quantised

CHANNELS, INPUTS, SIDE = 9, 5, 6  # 45 weights per channel fill no whole byte in 2, 4 or 6 bits
CASES = ("Conv", "Gemm", "MatMul")
IR_VERSION, OPSET = 10, 20


def main(target: Path) -> None:
    """One case a line."""
    random = SplitMix64(0)
    cases = [case(random, kind, bits) for kind in CASES for bits in sorted(BITS.values())]
    target.write_text("[\n" + ",\n".join(json.dumps(one) for one in cases) + "\n]\n")


def case(random: SplitMix64, kind: str, bits: int) -> dict[str, Any]:
    """A block that multiplies by a packed weight, adds its bias, and cuts off what is below zero."""
    columns = INPUTS * 9 if kind == "Conv" else 3 * SIDE * SIDE
    stored = Quantised(
        np.array([[random.below(2**bits) for _ in range(columns)] for _ in range(CHANNELS)], dtype=np.uint8),
        np.array([[(1 + random.below(4)) / 8] for _ in range(CHANNELS)], dtype=np.float32),
        np.array([[-random.below(16) / 4] for _ in range(CHANNELS)], dtype=np.float32),
    )
    bias = drawn(random, CHANNELS)
    shape = (INPUTS, SIDE, SIDE) if kind == "Conv" else (columns,)
    given = drawn(random, 2, *shape)
    rows, weights = given, stored.expanded()
    if kind == "Conv":
        padded = np.pad(given, ((0, 0), (0, 0), (1, 1), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
        rows = windows.transpose(0, 2, 3, 1, 4, 5).reshape(2, SIDE * SIDE, columns)
    answer = np.maximum(rows.astype(np.float64) @ weights.T + bias, 0)
    if kind == "Conv":
        answer = answer.swapaxes(1, 2)
    ends = (("cut_0", shape), ("cut_1", (CHANNELS, SIDE, SIDE) if kind == "Conv" else (CHANNELS,)))
    return {
        "kind": kind,
        "bits": bits,
        "ir_version": IR_VERSION,
        "opset": OPSET,
        "fragment": fragment(kind, stored, bias, bits).SerializeToString(deterministic=True).hex(),
        "ends": [{"name": name, "shape": list(own), "dtype": "float32"} for name, own in ends],
        "input": given.ravel().tolist(),
        "output": answer.ravel().tolist(),
    }


def fragment(kind: str, stored: Quantised, bias: np.ndarray, bits: int) -> onnx.GraphProto:
    """The block o0 with its weight packed."""
    weights, graph = stored.expanded(), onnx.GraphProto()
    if kind == "Conv":
        weight = weights.reshape(CHANNELS, INPUTS, 3, 3)
        nodes = [helper.make_node("Conv", ["cut_0", "o0/w", "o0/b"], ["o0/y"], pads=[1, 1, 1, 1])]
    elif kind == "Gemm":
        weight = weights
        nodes = [helper.make_node("Gemm", ["cut_0", "o0/w", "o0/b"], ["o0/y"], transB=1)]
    else:
        weight = np.ascontiguousarray(weights.T)
        nodes = [
            helper.make_node("MatMul", ["cut_0", "o0/w"], ["o0/m"]),
            helper.make_node("Add", ["o0/m", "o0/b"], ["o0/y"]),
        ]
    graph.node.extend([*nodes, helper.make_node("Relu", ["o0/y"], ["cut_1"])])
    graph.initializer.extend([numpy_helper.from_array(weight, "o0/w"), numpy_helper.from_array(bias, "o0/b")])
    pack_weights(graph, bits, {"o0/w": stored})
    return graph


def drawn(random: SplitMix64, *shape: int) -> np.ndarray:
    """Quarters from −2 to 2."""
    values = [(random.below(17) - 8) / 4 for _ in range(int(np.prod(shape)))]
    return np.array(values, dtype=np.float32).reshape(shape)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("low_bit.json"))
