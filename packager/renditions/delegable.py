"""Rewrites a block into equivalent operators that XNNPACK supports, so that all of it is delegated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn

_aten = torch.ops.aten
_IMAGE_AXES = (2, 3)  # of [batch, channels, height, width]


def rewritten(module: nn.Module, example: torch.Tensor) -> torch.export.ExportedProgram:
    """``module`` exported for one ``example`` [1, *shape], with these operators replaced:

    a mean with ``keepdim=False``, by one with ``keepdim=True`` and a reshape; a slice of every n-th row or column, by a
    depthwise 1×1 convolution with stride n.
    """
    traced = torch.export.export(module.eval(), (example,)).module()
    assert isinstance(traced, fx.GraphModule)
    for node in list(traced.graph.nodes):
        replace = _REWRITES.get(node.target)
        replacement = replace(traced, node) if replace is not None else None
        if replacement is not None:
            node.replace_all_uses_with(replacement)
            traced.graph.erase_node(node)
    traced.recompile()
    return torch.export.export(traced, (example,))


def _mean(traced: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    value, axes = _argument(node, 0, "self"), _argument(node, 1, "dim")
    if _argument(node, 2, "keepdim") or not isinstance(axes, list | tuple):
        return None
    with traced.graph.inserting_before(node):
        kept = traced.graph.call_function(_aten.mean.dim, (value, list(axes), True))
        return traced.graph.call_function(_aten.reshape.default, (kept, list(node.meta["val"].shape)))


def _strided_slice(traced: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    value, axis = _argument(node, 0, "self"), _argument(node, 1, "dim")
    start, end, step = (_argument(node, 2 + n, name) for n, name in enumerate(("start", "end", "step")))
    size = value.meta["val"].shape
    whole = start in (None, 0) and (end is None or (isinstance(end, int) and end >= size[axis]))
    if step in (None, 1) or axis not in _IMAGE_AXES or len(size) != 4 or not whole:
        return None
    channels = size[1]
    name = f"ones_{node.name}"
    traced.register_buffer(name, torch.ones(channels, 1, 1, 1))
    stride = [step if axis == other else 1 for other in _IMAGE_AXES]
    with traced.graph.inserting_before(node):
        ones = traced.graph.get_attr(name)
        arguments = (value, ones, None, stride, [0, 0], [1, 1], channels)
        convolution = traced.graph.call_function(_aten.conv2d.default, arguments)
        convolution.meta["val"] = node.meta["val"]
        return convolution


def _argument(node: fx.Node, number: int, name: str) -> Any:
    return node.args[number] if len(node.args) > number else node.kwargs.get(name)


_REWRITES: dict[object, Callable[[fx.GraphModule, fx.Node], fx.Node | None]] = {
    _aten.mean.dim: _mean,
    _aten.slice.Tensor: _strided_slice,
}
