"""Writes shapes.json: what is known of nodes' outputs before a model runs, and models that are refused for a size.

``found`` is ``undetermined`` or one entry per output that is inferred: its shape and, where they are known, its values.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np

from device_sdk.fragments import protobuf
from device_sdk.fragments.operators import OPERATORS
from device_sdk.fragments.shape_rules import Inferred, UndeterminedError, infer

CASES_PER_OPERATOR = 12
TARGET = Path(__file__).with_name("shapes.json")
INT64 = 7
# how many inputs an operator is given, and which of them are short lists of integers; others get one to three tensors
LISTS = {
    "AffineGrid": (2, {1}),
    "BlackmanWindow": (1, {0}),
    "CenterCropPad": (2, {1}),
    "Col2Im": (3, {1, 2}),
    "ConstantOfShape": (1, {0}),
    "Expand": (2, {1}),
    "HammingWindow": (1, {0}),
    "HannWindow": (1, {0}),
    "OneHot": (3, {1}),
    "Pad": (2, {1}),
    "Range": (3, {0, 1, 2}),
    "ReduceSum": (2, {1}),
    "Reshape": (2, {1}),
    "Resize": (4, {2, 3}),
    "Slice": (5, {1, 2, 3, 4}),
    "Split": (2, {1}),
    "Squeeze": (2, {1}),
    "Tile": (2, {1}),
    "Unsqueeze": (2, {1}),
    "Upsample": (2, {1}),
}
KNOWN = {
    *("Abs", "Add", "Cast", "Ceil", "Concat", "Div", "Equal", "Floor", "Gather", "Identity", "Max", "Min", "Mod"),
    *("Mul", "Neg", "ReduceProd", "Sub", "Where"),
}
INTEGERS = {
    *("axis", "start", "end", "to", "keepdims", "group", "blocksize"),
    *("ceil_mode", "transA", "transB", "allowzero", "batch_dims"),
}
LONG = ("kernel_shape", "strides", "dilations", "pads", "axes", "perm", "output_shape", "output_padding", "split")
OF_OPERATOR = {
    "AveragePool": ("kernel_shape", "strides", "pads", "ceil_mode", "auto_pad"),
    "Conv": ("kernel_shape", "strides", "pads", "dilations", "auto_pad", "group"),
    "ConvTranspose": ("strides", "pads", "dilations", "group", "output_padding", "output_shape"),
    "MaxPool": ("kernel_shape", "strides", "pads", "dilations", "ceil_mode", "auto_pad"),
    "Concat": ("axis",),
    "Gather": ("axis",),
    "GatherND": ("batch_dims",),
    "Gemm": ("transA", "transB"),
    "Flatten": ("axis",),
    "ReduceMean": ("axes", "keepdims"),
    "ReduceProd": ("axes", "keepdims"),
    "Shape": ("start", "end"),
    "Split": ("axis", "split"),
    "Transpose": ("perm",),
    "DepthToSpace": ("blocksize",),
    "SpaceToDepth": ("blocksize",),
    "Cast": ("to",),
    "Pad": ("pads",),
    "Reshape": ("allowzero",),
    "MaxUnpool": ("kernel_shape", "strides"),
    "Squeeze": ("axes",),
}


def node_cases(seed: int) -> Iterator[dict[str, Any]]:
    """Nodes with random inputs and attributes, for every operator, and what is inferred of them."""
    draw = random.Random(seed)
    for operator in sorted(OPERATORS):
        for _ in range(CASES_PER_OPERATOR * (3 if operator in {*LISTS, *OF_OPERATOR, *KNOWN} else 1) // 3):
            count, lists = LISTS.get(operator, (draw.randint(1, 3), set(range(3)) if draw.random() < 0.5 else set()))
            rank = draw.randint(1, 4)
            given = [_list(draw) if index in lists else _tensor(draw, rank) for index in range(count)]
            if operator in ("Conv", "ConvTranspose", "MaxPool", "AveragePool") and given[0] is not None:
                given[0] = _image(draw)
            attributes = {
                name: _attribute(draw, name, rank) for name in OF_OPERATOR.get(operator, ()) if draw.random() < 0.7
            }
            outputs = draw.randint(1, 2)
            yield {
                "operator": operator,
                "given": given,
                "attributes": attributes,
                "outputs": outputs,
                "found": found(operator, given, attributes, outputs),
            }


def found(
    operator: str, given: list[dict[str, Any] | None], attributes: Mapping[str, Any], outputs: int
) -> str | list[dict[str, Any]]:
    """What is inferred of a case, as JSON."""
    told = {name.encode(): _value(one) for name, one in attributes.items()}
    try:
        inferred = infer(operator, [one if one is None else _inferred(one) for one in given], told, outputs)
    except UndeterminedError:
        return "undetermined"
    return [_written(one) for one in inferred]


def _finite(output: Any) -> bool:
    return isinstance(output, str) or bool(np.isfinite(output.get("values", ())).all())


def _value(attribute: Any) -> Any:
    if isinstance(attribute, dict):
        return attribute["text"].encode()
    return tuple(attribute) if isinstance(attribute, list) else attribute


def _inferred(case: dict[str, Any]) -> Inferred:
    if "values" not in case:
        return Inferred(case["shape"])
    dtype = np.int64 if case["integers"] else np.float64
    return Inferred(case["shape"], np.array(case["values"], dtype).reshape(case["shape"]))


def _written(one: Inferred) -> dict[str, Any]:
    shape = None if one.shape is None else list(one.shape)
    if one.values is None:
        return {"shape": shape}
    return {"shape": shape, "integers": one.values.dtype.kind in "iu", "values": one.values.ravel().tolist()}


def _tensor(draw: random.Random, rank: int) -> dict[str, Any] | None:
    if draw.random() < 0.05:
        return None
    if draw.random() < 0.05:
        return {"shape": None}
    return {"shape": [draw.choice((0, 1, 1, 2, 3, 4, 6, 8, 1000)) for _ in range(draw.choice((rank, rank, rank + 1)))]}


def _image(draw: random.Random) -> dict[str, Any]:
    return {"shape": [1, draw.choice((1, 4, 8)), draw.randint(3, 20), draw.randint(3, 20)]}


def _list(draw: random.Random) -> dict[str, Any] | None:
    if draw.random() < 0.1:
        return None
    shape = draw.choice(([], [1], [2], [3], [4], [4], [2, 2]))
    count = int(np.prod(shape, dtype=int))
    if draw.random() < 0.25:
        return {"shape": shape, "integers": False, "values": [draw.randint(-8, 40) / 4 for _ in range(count)]}
    choices = (-2, -1, 0, 1, 1, 2, 2, 3, 4, 5, 8, 2**31, 2**40, -(2**50))
    return {"shape": shape, "integers": True, "values": [draw.choice(choices) for _ in range(count)]}


def _attribute(draw: random.Random, name: str, rank: int) -> Any:
    if name == "auto_pad":
        return {"text": draw.choice(("NOTSET", "VALID", "SAME_UPPER"))}
    if name in INTEGERS:
        return draw.choice((-1, 0, 1, 2, 7))
    length = 2 if name in LONG and draw.random() < 0.6 else draw.choice((rank, 2 * rank, 4))
    if name == "perm":
        return draw.sample(range(rank), rank)
    if name == "pads" and draw.random() < 0.8:
        return [draw.choice((0, 1, 2)) for _ in range(4)]
    return [draw.choice((1, 1, 2, 3)) for _ in range(length)]


def model_cases() -> list[dict[str, Any]]:
    """Fragments whose models are refused for a size, with a part of the message, and such that are taken."""
    large, quarter = [1 << 30], [1 << 24]

    def constant_of_shape(output: str) -> bytes:
        return _node("ConstantOfShape", ["s"], output)

    cases = {
        "a constant size": ("needs 1073741824 elements", constant_of_shape("cut_1") + _integers("s", large)),
        "an expansion": (
            "elements of one sample",
            _node("Expand", ["cut_0", "s"], "cut_1") + _integers("s", [9000, 8000]),
        ),
        "a tile": (
            "elements of one sample",
            _node("Tile", ["cut_0", "s"], "cut_1") + _integers("s", [1 << 20, 1, 4, 4]),
        ),
        "a computed size": (
            "elements of one sample",
            _node("Shape", ["cut_0"], "a")
            + _node("Mul", ["a", "s"], "b")
            + _node("ConstantOfShape", ["b"], "cut_1")
            + _integers("s", [1 << 14]),
        ),
        "four that are allowed": (None, b"".join(map(constant_of_shape, "abcd")) + _integers("s", quarter)),
        "five that are allowed alone": (
            "needs 83886080 elements",
            b"".join(map(constant_of_shape, "abcde")) + _integers("s", quarter),
        ),
        "a negative size, which makes no room for others": (
            "needs 83886080 elements",
            _node("ConstantOfShape", ["n"], "x")
            + b"".join(map(constant_of_shape, "abcde"))
            + _integers("s", quarter)
            + _integers("n", [-(1 << 40)]),
        ),
        "a size that depends on the samples": (
            "neither a constant nor derived from a shape",
            _node("ArgMax", ["cut_0"], "a") + _node("Expand", ["cut_0", "a"], "cut_1"),
        ),
        "an unknown size of another operator": (None, _node("ArgMax", ["cut_0"], "a") + _node("Relu", ["a"], "cut_1")),
        "a weight that says to be larger than it is": (
            "fewer elements than its shape",
            protobuf.bytes_field(5, protobuf.integer_field(1, 1 << 40) + protobuf.integer_field(2, 1)),
        ),
    }
    return [{"name": name, "refusal": refusal, "fragment": data.hex()} for name, (refusal, data) in cases.items()]


def _node(operator: str, inputs: list[str], output: str) -> bytes:
    body = b"".join(protobuf.text_field(1, name) for name in inputs)
    return protobuf.bytes_field(1, body + protobuf.text_field(2, output) + protobuf.text_field(4, operator))


def _integers(name: str, values: list[int]) -> bytes:
    raw = np.array(values, "<i8").tobytes()
    body = protobuf.integer_field(1, len(values)) + protobuf.integer_field(2, INT64)
    return protobuf.bytes_field(5, body + protobuf.text_field(8, name) + protobuf.bytes_field(9, raw))


def vectors() -> dict[str, Any]:
    """All cases whose numbers JSON can write."""
    nodes = [case for case in node_cases(seed=35) if all(map(_finite, case["found"]))]
    return {"models": model_cases(), "nodes": nodes}


def main(target: Path) -> None:
    """Write all cases to ``target``, one per line."""
    parts = [
        f'"{name}": [\n' + ",\n".join(json.dumps(case) for case in cases) + "\n]" for name, cases in vectors().items()
    ]
    target.write_text("{\n" + ",\n".join(parts) + "\n}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET)
