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
    """Fragment that replaces the last block's in the bad version ``name``; None to keep it."""
    if name == "a blob that is none":
        return b"no fragment" * 10
    if name not in _NEED_ONNX:
        return None
    data = bundle.last_fragment()
    if name == "slow":
        return _slow(data)
    if name == "an endless loop":
        from benchmarks.faults.hostile_models import looped

        return looped(data, "o3")
    return _changed_weights(data, name)


def _changed_weights(data: bytes, name: str) -> bytes:
    import numpy as np
    from onnx import GraphProto, numpy_helper

    graph = GraphProto.FromString(data)
    for tensor in graph.initializer:
        values = numpy_helper.to_array(tensor)
        values = np.full_like(values, np.nan) if name == "NaN" else values + np.float32(0.5)
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    return bytes(graph.SerializeToString())


def _slow(data: bytes) -> bytes:
    """Thousands of layers on a large image, none of which is refused for itself."""
    import numpy as np
    from onnx import GraphProto, helper, numpy_helper

    from benchmarks.faults.hostile_models import before

    graph = GraphProto.FromString(data)
    graph.initializer.append(numpy_helper.from_array(np.array([1, 4, SLOW_SIDE, SLOW_SIDE]), "o3/shape"))
    start, graph.node[0].input[0] = graph.node[0].input[0], f"o3/{SLOW_NODES}"
    nodes = [helper.make_node("GlobalAveragePool", [start], ["o3/0"])]
    nodes += [helper.make_node("Expand", ["o3/0", "o3/shape"], ["o3/1"])]
    nodes += [helper.make_node("Tanh", [f"o3/{n}"], [f"o3/{n + 1}"]) for n in range(1, SLOW_NODES)]
    return before(graph, *nodes)
