"""Models that must be refused before a session exists, each a few hundred bytes. Needs the package onnx."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import AttributeProto, GraphProto, NodeProto, SparseTensorProto, TensorProto, TypeProto, helper, numpy_helper

from device_sdk.fragments.composition import Stretch
from device_sdk.fragments.protobuf import FIXED32, bytes_field, integer_field, text_field, varint
from device_sdk.supernet.blocks import TensorSpec

FLOAT = TensorProto.FLOAT
INPUT, OUTPUT = (TensorSpec("cut_0", (3,)),), (TensorSpec("cut_1", (3,)),)

OTHER_OPERATORS = (
    *(("Loop", ""), ("If", "ai.onnx"), ("Scan", ""), ("SequenceMap", ""), ("SequenceEmpty", "")),
    *(("OptionalGetElement", ""), ("RandomNormal", ""), ("Multinomial", ""), ("Bernoulli", ""), ("ImageDecoder", "")),
    *(
        ("StringNormalizer", ""),
        ("FusedGemm", ""),
        ("", ""),
        ("Gelu", "com.microsoft"),
        ("QAttention", "com.microsoft"),
    ),
    *(("TreeEnsembleClassifier", "ai.onnx.ml"), ("Gradient", "ai.onnx.preview.training"), ("Relu", "org.example")),
    ("Relu", "ai.onnx\0"),
)
OTHER_ELEMENTS = ("STRING", "COMPLEX64", "FLOAT8E4M3FN", "INT4", "UNDEFINED")
OTHER_FIELDS = (("functions", 25), ("training_info", 20), ("sparse_initializer", 15))


def stretch(*fragments: bytes, owners: tuple[str, ...] = ()) -> Stretch:
    """Fragments as one model of three numbers."""
    return Stretch(fragments, INPUT, OUTPUT, ir_version=10, opset=20, owners=owners)


def fragment(*nodes: NodeProto, initializers: tuple[TensorProto, ...] = ()) -> bytes:
    """A serialized graph."""
    return bytes(GraphProto(node=nodes, initializer=initializers).SerializeToString())


def outside(name: str = "w") -> TensorProto:
    """A tensor whose values lie in the file ``secret``."""
    tensor = TensorProto(name=name, data_type=FLOAT, dims=[3], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="secret")
    return tensor


def branch(name: str) -> GraphProto:
    """A subgraph whose answer lies in a file."""
    answer = helper.make_tensor_value_info(name, FLOAT, [3])
    read = helper.make_node("Identity", ["w" + name], [name])
    return helper.make_graph([read], "branch", [], [answer], initializer=[outside("w" + name)])


def external_data_in_an_if() -> bytes:
    """ONNX Runtime reads external data of subgraphs from the working directory."""
    condition = numpy_helper.from_array(np.array(True), "c")
    node = helper.make_node("If", ["c"], ["cut_1"], then_branch=branch("a"), else_branch=branch("b"))
    return fragment(node, initializers=(condition,))


def relu_with(**attribute: Any) -> bytes:
    """An operator that is allowed, with an attribute that is not."""
    hidden = helper.make_node("Relu", ["cut_0"], ["cut_1"])
    hidden.attribute.append(AttributeProto(name="body", **attribute))
    return fragment(hidden)


def odd_attributes() -> list[AttributeProto]:
    """Kinds of attributes that the packager does not write."""
    return [
        AttributeProto(name="value", sparse_tensor=SparseTensorProto(values=outside())),
        AttributeProto(name="value", sparse_tensors=[SparseTensorProto(values=outside())]),
        AttributeProto(name="value", tensors=[outside()]),
        AttributeProto(name="value", tp=TypeProto()),
        AttributeProto(name="value", type_protos=[TypeProto()]),
        AttributeProto(name="value", ref_attr_name="value"),
        AttributeProto(name="value", type=AttributeProto.GRAPH),
    ]


def constant(attribute: AttributeProto) -> bytes:
    """A Constant with this attribute."""
    return fragment(NodeProto(op_type="Constant", output=["cut_1"], attribute=[attribute]))


def operator(name: str, domain: str) -> bytes:
    """One node."""
    return fragment(NodeProto(op_type=name, domain=domain, input=["cut_0"], output=["cut_1"]))


def hidden_operator() -> bytes:
    """Field 4 twice, the second time with another wire type: a reader may see Relu where the runtime sees Loop."""
    body = text_field(1, "cut_0") + text_field(2, "cut_1") + text_field(4, "Loop")
    return bytes_field(1, body + varint(4 << 3 | FIXED32) + b"Relu")


def location(number: int) -> bytes:
    """A weight whose ``data_location`` is this number."""
    return bytes_field(5, integer_field(2, FLOAT) + text_field(8, "w") + integer_field(14, number))


def element(name: str) -> bytes:
    """A weight of this element type."""
    return fragment(initializers=(TensorProto(name="w", data_type=getattr(TensorProto, name), dims=[3]),))


def expanded(*shape: int) -> bytes:
    """A few bytes whose answer has this shape."""
    wanted = numpy_helper.from_array(np.array(shape, np.int64), "shape")
    return fragment(helper.make_node("Expand", ["cut_0", "shape"], ["cut_1"]), initializers=(wanted,))


def looped(data: bytes, owner: str) -> bytes:
    """The fragment ``data`` of block ``owner``, with an endless loop in front of its first node."""
    graph = GraphProto.FromString(data)
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["go_on"]), helper.make_node("Identity", ["value"], ["same"])],
        "body",
        [
            helper.make_tensor_value_info("round", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("value", FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("same", FLOAT, None),
        ],
    )
    graph.initializer.append(helper.make_tensor(f"{owner}/true", TensorProto.BOOL, [], [True]))
    start, graph.node[0].input[0] = graph.node[0].input[0], f"{owner}/looped"
    loop = helper.make_node("Loop", ["", f"{owner}/true", start], [f"{owner}/looped"], body=body)
    return before(graph, loop)


def before(graph: GraphProto, *nodes: NodeProto) -> bytes:
    """The fragment with ``nodes`` in front of its own."""
    own = list(graph.node)
    del graph.node[:]
    graph.node.extend([*nodes, *own])
    return bytes(graph.SerializeToString())


def corpus() -> dict[str, Callable[[], bytes]]:
    """All of them, by what is wrong with them."""
    relu = fragment(helper.make_node("Relu", ["cut_0"], ["cut_1"]))
    found: dict[str, Callable[[], bytes]] = {
        "external data in a branch of an If": external_data_in_an_if,
        "a graph in an attribute": lambda: relu_with(g=branch("a")),
        "graphs in an attribute": lambda: relu_with(graphs=[branch("a")]),
        "external data in a constant": lambda: constant(
            AttributeProto(name="value", t=outside(), type=AttributeProto.TENSOR)
        ),
        "an operator hidden by a wire type": hidden_operator,
        "a cast to strings": lambda: fragment(helper.make_node("Cast", ["cut_0"], ["cut_1"], to=TensorProto.STRING)),
        "an answer of 2 TB": lambda: expanded(1 << 13, 1 << 13, 1 << 13),
        "garbage": lambda: b"\xff" * 64,
        "a truncated node": lambda: relu[:-3],
    }
    for number, odd in enumerate(odd_attributes()):
        found[f"an odd attribute {number}"] = lambda odd=odd: constant(odd)  # type: ignore[misc]
    for name, domain in OTHER_OPERATORS:
        found[f"operator {domain}:{name}"] = lambda name=name, domain=domain: operator(name, domain)  # type: ignore[misc]
    for name in OTHER_ELEMENTS:
        found[f"a weight of {name}"] = lambda name=name: element(name)  # type: ignore[misc]
    for name, number in OTHER_FIELDS:
        found[f"field {name}"] = lambda name=name, number=number: relu + text_field(number, name)  # type: ignore[misc]
    for place in (1, 2**32 + 1, 2**64 - 1):
        found[f"data_location {place}"] = lambda place=place: location(place)  # type: ignore[misc]
    return found
