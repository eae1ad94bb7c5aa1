"""Layers of torch networks, as their traced graphs say: what is fused at inference is one layer (Auto-Split Fig. 4)."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn
from torch.fx.passes.shape_prop import ShapeProp

from benchmarks.auto_split.layer_graph import Gemm, Layer, LayerGraph

NETWORKS = ("resnet18", "resnet50", "googlenet", "mobilenet_v2", "mnasnet1_0", "resnext50_32x4d")  # of torchvision
INPUT = (3, 224, 224)

_FOLDED = (nn.BatchNorm2d, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.Dropout, nn.Identity, nn.Flatten)
_FOLDED_FUNCTIONS = {torch.flatten, torch.relu, nn.functional.relu, nn.functional.dropout, "relu", "flatten", "view"}
_JOINING = {operator.add, torch.add, operator.iadd, torch.cat, "add"}


@dataclass
class TracedLayers:
    """The layers of a network, and where they are in its traced graph.

    ``outputs``: for each layer the name of the last node that is fused into it; ``modules``: the name of its module
    with weights, empty for others; ``kinds``: ``conv``, ``depthwise``, ``linear`` or ``other``.
    """

    traced: fx.GraphModule
    graph: LayerGraph
    outputs: list[str]
    modules: list[str]
    kinds: list[str]


class _Tracer(fx.Tracer):
    """Traces into blocks; layers of libraries stay whole."""

    def is_leaf_module(self, module: nn.Module, module_qualified_name: str) -> bool:
        return module.__module__.startswith("timm.layers") or super().is_leaf_module(module, module_qualified_name)


def torchvision_network(name: str) -> nn.Module:
    """A network of torchvision without weights: shapes are all that counts. No branches that only train."""
    from torchvision import models

    arguments: dict[str, Any] = {"aux_logits": False, "init_weights": False} if name == "googlenet" else {}
    with torch.device("meta"):
        network: nn.Module = getattr(models, name)(weights=None, **arguments)
    return network.eval()


def trace_layers(network: nn.Module, sample: torch.Tensor, *, fused: bool = True) -> TracedLayers:
    """The layers of ``network``; unless ``fused``, batch norms and activations are layers of their own (DADS)."""
    traced = fx.GraphModule(network, _Tracer().trace(network))
    with torch.no_grad():
        ShapeProp(traced).propagate(sample)
    building = _Building(traced, fused)
    for node in traced.graph.nodes:
        building.add(node)
    return TracedLayers(
        traced,
        LayerGraph(tuple(building.layers), sample[0].numel()),
        building.outputs,
        building.modules,
        building.kinds,
    )


@dataclass
class _Building:
    """Layers so far, and the tensor that each node's value is."""

    traced: fx.GraphModule
    fused: bool
    layers: list[Layer] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    tensors: dict[fx.Node, int] = field(default_factory=dict)

    def add(self, node: fx.Node) -> None:
        if node.op == "placeholder":
            self.tensors[node] = 0
            return
        sources = [self.tensors[one] for one in node.all_input_nodes if one in self.tensors]
        if node.op in ("output", "get_attr") or not sources or "tensor_meta" not in node.meta:
            return  # the end, constants, and sizes
        if self._is_folded(node) and sources[0]:
            self.tensors[node] = sources[0]
            self.outputs[sources[0] - 1] = node.name
            return
        module = self.traced.get_submodule(str(node.target)) if node.op == "call_module" else None
        weights = sum(one.numel() for one in module.parameters()) if module is not None else 0
        values = node.meta["tensor_meta"].shape[1:].numel()
        gemm = _gemm(module, node)
        self.layers.append(Layer(node.name, tuple(dict.fromkeys(sources)), values, weights, gemm))
        self.outputs.append(node.name)
        self.modules.append(str(node.target) if gemm is not None else "")
        self.kinds.append(_kind(module))
        self.tensors[node] = len(self.layers)

    def _is_folded(self, node: fx.Node) -> bool:
        if node.op == "call_module":
            module = self.traced.get_submodule(str(node.target))
            return isinstance(module, _FOLDED if self.fused else (nn.Dropout, nn.Identity, nn.Flatten))
        if node.target in _JOINING:
            return False
        return node.target in (_FOLDED_FUNCTIONS if self.fused else {torch.flatten, "flatten", "view"})


def _gemm(module: nn.Module | None, node: fx.Node) -> Gemm | None:
    if isinstance(module, nn.Conv2d):
        _, filters, height, width = node.meta["tensor_meta"].shape
        return Gemm(height * width, module.weight[0].numel(), filters // module.groups, module.groups)
    if isinstance(module, nn.Linear):
        return Gemm(1, module.in_features, module.out_features)
    return None


def _kind(module: nn.Module | None) -> str:
    if isinstance(module, nn.Conv2d):
        return "depthwise" if module.groups == module.in_channels > 1 else "conv"
    return "linear" if isinstance(module, nn.Linear) else "other"


def weighted_modules(layers: TracedLayers) -> Iterator[tuple[int, nn.Conv2d | nn.Linear]]:
    """The modules with weights, by layer counted from 1."""
    for index, name in enumerate(layers.modules, start=1):
        if name:
            module = layers.traced.get_submodule(name)
            assert isinstance(module, nn.Conv2d | nn.Linear)
            yield index, module
