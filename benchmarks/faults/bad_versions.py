"""Versions of the small bundle that are signed, whole and bad."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from benchmarks.faults.small_bundle import SmallBundle

SLOW_NODES, SLOW_SIDE = 2000, 2048  # 64 MB each time
BAD_VERSIONS = ("crash", "hang", "NaN", "slow", "wrong answers", "an endless loop", "a blob that is none")
_NEED_ONNX = ("NaN", "slow", "wrong answers", "an endless loop")


def make_bad(bundle: SmallBundle, folder: Path, name: str, version: int) -> bool:
    """Publish the bad version in ``folder``; False without the package onnx, where it is needed."""
    if name in _NEED_ONNX and importlib.util.find_spec("onnx") is None:
        return False
    bad = bundle.publish(folder, 1)
    blob = _fragment(bad, name)

    def change(manifest: dict[str, Any]) -> None:
        manifest["version"] = version
        manifest["provenance"]["source"] = name
        if blob is not None:
            manifest["blocks"][3]["renditions"][0] |= {"blob": bad.store(blob), "size_bytes": len(blob)}

    bad.edit(change)
    return True


def _fragment(bundle: SmallBundle, name: str) -> bytes | None:
    """What stands in for the last block."""
    if name == "a blob that is none":
        return b"no fragment" * 10
    if name not in _NEED_ONNX:
        return None
    import numpy as np
    from onnx import GraphProto, TensorProto, helper, numpy_helper

    source = bundle.last_fragment()
    graph = GraphProto.FromString(source)
    if name in ("NaN", "wrong answers"):
        for tensor in graph.initializer:
            values = numpy_helper.to_array(tensor)
            values = np.full_like(values, np.nan) if name == "NaN" else values + np.float32(0.5)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    elif name == "slow":
        graph.initializer.append(numpy_helper.from_array(np.array([1, 4, SLOW_SIDE, SLOW_SIDE]), "o3/shape"))
        pooled, graph.node[0].input[0] = graph.node[0].input[0], "o3/slow"
        nodes = [helper.make_node("GlobalAveragePool", [pooled], ["o3/0"])]
        nodes += [helper.make_node("Expand", ["o3/0", "o3/shape"], ["o3/1"])]
        nodes += [helper.make_node("Tanh", [f"o3/{n}"], [f"o3/{n + 1}"]) for n in range(1, SLOW_NODES)]
        nodes[-1].output[0] = "o3/slow"
        graph.node.extend(nodes)
    else:
        kinds = TensorProto
        body = helper.make_graph(
            [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Identity", ["value"], ["same"])],
            "body",
            [
                helper.make_tensor_value_info("round", kinds.INT64, []),
                helper.make_tensor_value_info("go", kinds.BOOL, []),
                helper.make_tensor_value_info("value", kinds.FLOAT, None),
            ],
            [
                helper.make_tensor_value_info("on", kinds.BOOL, []),
                helper.make_tensor_value_info("same", kinds.FLOAT, None),
            ],
        )
        graph.initializer.append(helper.make_tensor("o3/true", kinds.BOOL, [], [True]))
        looped, graph.node[0].input[0] = graph.node[0].input[0], "o3/looped"
        graph.node.append(helper.make_node("Loop", ["", "o3/true", looped], ["o3/looped"], body=body))
    nodes = sorted(graph.node, key=lambda node: node.output[0] in ("cut_4", "o3/f", "o3/p"))
    order = {"o3/p": 1, "o3/f": 2, "cut_4": 3}
    nodes.sort(key=lambda node: order.get(node.output[0], 0))
    del graph.node[:]
    graph.node.extend(nodes)
    return bytes(graph.SerializeToString())
