"""Lets a program that was exported for a fixed batch take any batch.

Such a graph has the batch size in the targets of its reshapes. The graph is run on shapes alone, once with its own
batch and once with a prime number of samples: the extent that holds that number is the batch, and reshapes get it
computed from the input. What remains wrong shows when the module is compared with the program, sample by sample.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses import FakeTensorMode

from packager.errors import ModelLoadError

_PROBE = 10_007  # samples: a prime above any extent that is not of the batch
_aten = torch.ops.aten
_RESHAPES = (_aten.view.default, _aten.reshape.default, _aten._unsafe_view.default)
_HINT = "export it with a dynamic batch axis, for example dynamic_shapes=({0: torch.export.Dim('batch')},)"


def free_batch(module: fx.GraphModule, example: Tensor) -> fx.GraphModule:
    """``module`` for inputs like ``example`` [fixed batch, …], changed so that it takes any batch.

    Raises:
        ModelLoadError: an operator needs the fixed batch; names it.
    """
    _Freeing(module, example).run()
    module.graph.lint()
    module.recompile()
    return module


class _Freeing:
    def __init__(self, module: fx.GraphModule, example: Tensor) -> None:
        self._module, self._example = module, example
        self._batch = len(example)
        self._own: dict[fx.Node, Any] = {}  # values at the fixed batch
        self._probed: dict[fx.Node, Any] = {}  # values at _PROBE samples
        self._inner: dict[fx.Node, int] = {}  # for nodes whose batch lies inside an extent: the factor outside it
        self._size: fx.Node | None = None

    def run(self) -> None:
        shape = self._example.shape[1:]
        with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True):
            inputs = {batch: torch.empty(batch, *shape, dtype=self._example.dtype) for batch in (self._batch, _PROBE)}
            for node in list(self._module.graph.nodes):
                if node.op == "placeholder":
                    self._own[node], self._probed[node] = inputs[self._batch], inputs[_PROBE]
                elif node.op != "output":
                    self._step(node)

    def _step(self, node: fx.Node) -> None:
        self._own[node] = self._value(node, self._own)
        if node.target in _RESHAPES:
            self._free_reshape(node)
        elif node.target is _aten.cat.default:
            self._widen_parts(node)
        elif node.target is _aten.expand.default:
            self._free_expansion(node)
        try:
            self._probed[node] = self._value(node, self._probed)
        except Exception as error:  # operators raise many kinds on shapes that do not fit
            raise ModelLoadError(
                f"the model takes batches of {self._batch} only: {node.target} at {node.name} has that number fixed",
                hint=_HINT,
            ) from error
        first = next((one for one in node.all_input_nodes if one in self._inner), None)
        if first is not None and node not in self._inner:
            self._inner[node] = self._inner[first]

    def _value(self, node: fx.Node, values: dict[fx.Node, Any]) -> Any:
        args, kwargs = (fx.node.map_arg(part, lambda one: values[one]) for part in (node.args, node.kwargs))
        if node.op == "get_attr":
            return operator.attrgetter(str(node.target))(self._module)
        if node.op == "call_module":
            return self._module.get_submodule(str(node.target))(*args, **kwargs)
        assert callable(node.target)
        return node.target(*args, **kwargs)

    def _free_reshape(self, node: fx.Node) -> None:
        source, target = node.args[0], list(node.args[1])
        assert isinstance(source, fx.Node)
        axis = self._batch_axis(source)
        if axis is None or not all(isinstance(extent, int) for extent in target):
            return
        place = math.prod(self._own[source].shape[:axis]) * self._inner.get(source, 1)
        shape = list(self._own[node].shape)
        found = _position(shape, place, self._batch)
        if found is None:
            return
        index, outside = found
        if target[index] != -1:
            shape[index] = self._times(node, shape[index] // self._batch)
            node.args = (source, shape)
        self._inner[node] = outside

    def _free_expansion(self, node: fx.Node) -> None:
        source, target = node.args[0], list(node.args[1])
        assert isinstance(source, fx.Node)
        axis = self._batch_axis(source)
        if axis is not None:
            target[len(target) - self._own[source].dim() + axis] = -1
            node.args = (source, target, *node.args[2:])

    def _batch_axis(self, node: fx.Node) -> int | None:
        """The axis that holds the batch; None if there is none."""
        pairs = zip(self._own[node].shape, self._probed[node].shape, strict=True)
        return next((axis for axis, (own, probed) in enumerate(pairs) if own != probed), None)

    def _times(self, node: fx.Node, count: int) -> fx.Node:
        """The number of samples times ``count``, computed before ``node``."""
        graph = self._module.graph
        entry = next(one for one in graph.nodes if one.op == "placeholder")
        if self._size is None:
            with graph.inserting_after(entry):
                self._size = graph.call_function(_aten.sym_size.int, (entry, 0))
            self._own[self._size], self._probed[self._size] = self._batch, _PROBE
        if count == 1:
            return self._size
        with graph.inserting_before(node):
            size = graph.call_function(operator.mul, (self._size, count))
        self._own[size], self._probed[size] = self._batch * count, _PROBE * count
        return size

    def _widen_parts(self, node: fx.Node) -> None:
        """Repeat the parts of a concatenation that do not depend on the input, such as a class token, per sample."""
        parts = list(node.args[0])
        shapes = [self._probed[part].shape for part in parts]
        axes = {axis for axis in map(self._batch_axis, parts) if axis is not None}
        if len(axes) != 1:
            return
        axis = axes.pop()
        widest = max(shape[axis] for shape in shapes)
        for index, (part, shape) in enumerate(zip(parts, shapes, strict=True)):
            if shape[axis] == self._batch and widest == _PROBE:
                parts[index] = self._repeated(node, part, axis)
        node.args = (parts, *node.args[1:])

    def _repeated(self, before: fx.Node, part: fx.Node, axis: int) -> fx.Node:
        count, graph = self._times(before, 1), self._module.graph
        with graph.inserting_before(before):
            one = graph.call_function(_aten.slice.Tensor, (part, axis, 0, 1))
            sizes = [count if index == axis else -1 for index in range(self._own[part].dim())]
            many = graph.call_function(_aten.expand.default, (one, sizes))
        for made in (one, many):
            self._own[made], self._probed[made] = self._value(made, self._own), self._value(made, self._probed)
        return many


def _position(shape: Sequence[int], place: int, batch: int) -> tuple[int, int] | None:
    """The extent of ``shape`` that holds the batch, which has ``place`` elements outside it, and the factor outside it
    within that extent; None if it is in none.

    Where several fit, an extent that begins with the batch is taken before one that ends with it, except the last:
    these are channels.
    """
    outside, begins, ends = 1, [], []
    for index, extent in enumerate(shape):
        within = extent // batch
        if extent % batch == 0 and outside == place:
            begins.append((index, 1))
        elif extent % batch == 0 and place % outside == 0 and place > outside and within % (place // outside) == 0:
            ends.append((index, place // outside))
        outside *= extent
    last = len(shape) - 1
    return next((found for found in (*begins, *ends) if found[0] != last), next(iter((*begins, *ends)), None))
