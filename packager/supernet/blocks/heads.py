"""Attention with fewer heads: found in the graph of a block, narrowed, and checked.

The graph of a block names extents of its reshapes as numbers. Where the number of heads stands in front of their
channels, or the channels of all heads at the end, it is replaced. Whether nothing else depended on it shows by the
output: it must be that of the whole attention with the other heads cut off behind it.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from packager.supernet.blocks.narrowing import Narrowing, linear
from packager.supernet.blocks.trainable import evaluated

_RESHAPES = frozenset(
    {torch.ops.aten.view.default, torch.ops.aten.reshape.default, torch.ops.aten._unsafe_view.default}
)
_PARTS = 3  # queries, keys, values
_TOLERANCE = 1e-4  # of the largest value
_SEED = 0


@dataclass(frozen=True)
class Attention:
    """``narrowing``: its layers; ``heads``: how many; ``nodes``: names of those between the layers and the reader."""

    narrowing: Narrowing
    heads: int
    nodes: frozenset[str]

    def narrowed(self, module: fx.GraphModule, kept: torch.Tensor) -> fx.GraphModule:
        """A copy of ``module`` with the heads ``kept`` int64 [count]."""
        made, narrowing = copy.deepcopy(module), self.narrowing
        share = len(kept) / self.heads
        for name, inputs, outputs in (
            (narrowing.reader, share, 1.0),
            *((name, 1.0, share) for name in narrowing.layers),
        ):
            wide = linear(made, name)
            sizes = round(wide.in_features * inputs), round(wide.out_features * outputs)
            narrow = nn.Linear(*sizes, bias=wide.bias is not None, dtype=wide.weight.dtype)
            if wide.bias is not None and outputs == 1.0:
                narrow.bias = copy.deepcopy(wide.bias)
            made.set_submodule(name, narrow)
        narrowing.take(kept, of=module, into=made)
        for node in made.graph.nodes:
            if node.name in self.nodes and node.target in _RESHAPES:
                node.args = (node.args[0], self._extents(node.args[1], len(kept)))
        made.recompile()
        return made

    def _extents(self, extents: Sequence[Any], kept: int) -> list[Any]:
        *others, last = extents
        if last == self.narrowing.unit:
            near = [kept if extent == self.heads else extent for extent in others[-2:]]
            return [*others[:-2], *near, last]
        return [*others, kept * self.narrowing.unit if last == self.heads * self.narrowing.unit else last]


def fewer_heads(module: nn.Module, shape: tuple[int, ...], *, rate: float) -> tuple[nn.Module, Narrowing] | None:
    """A copy of ``module`` ([batch, *shape] → …) with ``rate`` of the heads of its attention, of the largest weights.

    None if ``module`` has no attention, several, or one that is not understood.
    """
    found = attentions(module)
    if len(found) != 1 or not isinstance(module, fx.GraphModule):
        return None
    [attention] = found
    count = max(1, round(rate * attention.heads))
    if count == attention.heads:
        return None
    kept = _sizes(module, attention).topk(count).indices.sort().values
    try:
        made = attention.narrowed(module, kept)
        agrees = _agrees(module, made, attention, kept, shape)
    except Exception:  # an extent that was not understood; operators raise many kinds on shapes that do not fit
        return None
    return (made, attention.narrowing) if agrees else None


def attentions(module: nn.Module) -> list[Attention]:
    """The attentions of ``module`` whose queries, keys and values come from linear layers of one size."""
    if not isinstance(module, fx.GraphModule):
        return []
    nodes = [node for node in module.graph.nodes if _is_linear(module, node)]
    found = (_attention(module, reader) for reader in nodes)
    return [one for one in found if one is not None]


def _attention(module: fx.GraphModule, reader: fx.Node) -> Attention | None:
    makers, nodes = _in_front(module, reader)
    channels = linear(module, str(reader.target)).in_features
    times = 1 if len(makers) == _PARTS else _PARTS
    if len(makers) not in (1, _PARTS) or len({maker.args[0] for maker in makers}) != 1:
        return None
    if any(linear(module, str(maker.target)).out_features != times * channels for maker in makers):
        return None
    units = {_head_channels(maker, channels, times) for maker in makers}
    unit = units.pop()
    if units or unit is None:
        return None
    narrowing = Narrowing({str(maker.target): times for maker in makers}, str(reader.target), unit)
    return Attention(narrowing, channels // unit, frozenset(node.name for node in nodes))


def _head_channels(maker: fx.Node, channels: int, times: int) -> int | None:
    """The channels of a head, as the reshape behind the layer ``maker`` says; None if there is none, or other users."""
    users = list(maker.users)
    if len(users) != 1 or users[0].target not in _RESHAPES:
        return None
    extents = users[0].args[1]
    assert isinstance(extents, (list, tuple))
    *front, unit = extents
    if not isinstance(unit, int) or unit < 1 or channels % unit or channels == unit or not front:
        return None
    expected = [times, channels // unit] if times > 1 else [channels // unit]
    given = front[-len(expected) :]
    fits = len(given) == len(expected) and all(one in (own, -1) for one, own in zip(given, expected, strict=True))
    return unit if fits else None


def _in_front(module: fx.GraphModule, reader: fx.Node) -> tuple[list[fx.Node], set[fx.Node]]:
    """The linear layers from which ``reader`` computes its input without others between, and the nodes in between."""
    makers: dict[fx.Node, None] = {}
    seen: set[fx.Node] = set()
    waiting = list(reader.all_input_nodes)
    while waiting:
        node = waiting.pop()
        if _is_linear(module, node):
            makers[node] = None
        elif node not in seen:
            seen.add(node)
            waiting += node.all_input_nodes
    return list(makers), seen


def _is_linear(module: fx.GraphModule, node: fx.Node) -> bool:
    return node.op == "call_module" and isinstance(module.get_submodule(str(node.target)), nn.Linear)


def _sizes(module: nn.Module, attention: Attention) -> torch.Tensor:
    """The size of the weights behind each head, times that of its values': [heads]."""
    narrowing = attention.narrowing
    reader = linear(module, narrowing.reader).weight.detach()
    values = linear(module, list(narrowing.layers)[-1]).weight.detach()[-reader.shape[1] :]
    per_head = (attention.heads, narrowing.unit)
    return values.norm(dim=1).view(per_head).norm(dim=1) * reader.norm(dim=0).view(per_head).norm(dim=1)


def _agrees(
    module: nn.Module, made: nn.Module, attention: Attention, kept: torch.Tensor, shape: tuple[int, ...]
) -> bool:
    """True if ``made`` answers as ``module`` whose reader does not read the other heads."""
    cut = copy.deepcopy(module)
    others = torch.ones(attention.heads, dtype=torch.bool)
    others[kept] = False
    reader = linear(cut, attention.narrowing.reader)
    with torch.no_grad():
        reader.weight[:, others.repeat_interleave(attention.narrowing.unit)] = 0.0
    random = torch.Generator().manual_seed(_SEED)
    features = torch.randn(3, *shape, generator=random)
    with evaluated(cut), evaluated(made):
        wanted, found = cut(features), made(features)
    return bool((wanted - found).abs().max() <= _TOLERANCE * wanted.abs().max())
