"""Networks with real weights and images: their quantisation errors, and their accuracy after quantisation.

ImageNet's data and the weights of the six networks of the comparison are not here. What they may lose is taken from
networks that are: the largest sum of errors at which these keep their accuracy, and typical errors by kind of layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, fx, nn

from benchmarks.auto_split.problem import WIDTHS, SplitSolution
from benchmarks.auto_split.quantisation_error import (
    activation_errors,
    activation_range,
    quantised_weights,
    weight_errors,
)
from benchmarks.real_size.photographs import load_photographs
from benchmarks.runner.run import BenchOptions
from benchmarks.split_paper.networks import TracedLayers, trace_layers, weighted_modules
from device_sdk.data.datasets import load_dataset
from device_sdk.data.preprocessing import prepare
from packager.inputs.model_loader import load_model
from packager.inputs.pixels import Pixels

ERROR_WIDTHS = tuple(width for width in WIDTHS if width < 16)  # at 16 bits the error is 0 (Auto-Split §3.1)
_CALIBRATION_IMAGES = 32
_VALUES = 100_000  # of a tensor, by which its range is chosen
_BATCH, _QUICK_IMAGES = 20, 20
Kind = tuple[str, str]  # "weights" or "activations", and the layer's


@dataclass
class RealNetwork:
    """A network in evaluation mode whose batch norms are folded, images and labels to judge it, and its errors."""

    name: str
    layers: TracedLayers
    images: Tensor
    labels: npt.NDArray[np.int64]
    weight_errors: tuple[dict[int, float], ...]
    activation_errors: tuple[dict[int, float], ...]
    ranges: Mapping[tuple[int, int], tuple[float, float]]
    _quantised: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    def accuracy(self, solution: SplitSolution | None = None) -> float:
        """The share of right answers, with the device's part and what crosses quantised."""
        found = []
        with torch.no_grad(), _Weights(self, solution):
            runner = _Quantising(self, solution)
            for at in range(0, len(self.images), _BATCH):
                found.append(runner.run(self.images[at : at + _BATCH]).argmax(dim=1).numpy())
        return float((np.concatenate(found) == self.labels).mean())

    def errors_by_kind(self) -> dict[Kind, list[dict[int, float]]]:
        """Errors of all layers, by kind."""
        found: dict[Kind, list[dict[int, float]]] = {}
        for index, kind in enumerate(self.layers.kinds, start=1):
            if self.layers.modules[index - 1]:
                found.setdefault(("weights", kind), []).append(self.weight_errors[index - 1])
            found.setdefault(("activations", kind), []).append(self.activation_errors[index])
        return found


def typical_errors(networks: Sequence[RealNetwork]) -> dict[Kind, dict[int, float]]:
    """The median error of each kind at each width, over the layers of all ``networks``."""
    pooled: dict[Kind, list[dict[int, float]]] = {}
    for network in networks:
        for kind, errors in network.errors_by_kind().items():
            pooled.setdefault(kind, []).extend(errors)
    return {
        kind: {width: median(one[width] for one in errors) for width in ERROR_WIDTHS} for kind, errors in pooled.items()
    }


def efficientnet_lite0(options: BenchOptions) -> RealNetwork:
    """EfficientNet-Lite0 at 224² on Imagenette's photographs, over ImageNet's 1,000 classes."""
    weights = options.data_folder / "pretrained" / "efficientnet_lite0_imagenet.safetensors"
    model = load_model("timm:tf_efficientnet_lite0", weights=weights, pixels=Pixels(None, "bicubic", "whole"))

    def part(name: str, limit: int | None) -> tuple[Tensor, npt.NDArray[np.int64]]:
        found = load_photographs(options.data_folder, (name,), limit=_QUICK_IMAGES if options.quick else limit)
        inputs = found.inputs(model.preprocessing.of_images()).take(np.arange(len(found.images)))
        return torch.from_numpy(inputs), found.labels

    ranges_from, _ = part("search", _CALIBRATION_IMAGES)
    return real_network("EfficientNet-Lite0", model.module, ranges_from, *part("calibration", None))


def resnet56(options: BenchOptions) -> RealNetwork:
    """ResNet-56 on CIFAR-10."""
    weights = options.data_folder / "pretrained" / "resnet56_cifar10.safetensors"
    model = load_model("zoo:resnet56_cifar10", weights=weights)

    def part(name: str, limit: int | None) -> tuple[Tensor, npt.NDArray[np.int64]]:
        reference = f"{options.data_folder / 'cifar10' / 'test.zip'}#{name}"
        data = load_dataset(reference, limit=_QUICK_IMAGES if options.quick else limit)
        assert model.class_names is not None
        inputs = prepare(data.images, model.preprocessing.of_images(), input_shape=model.image_shape)
        return torch.from_numpy(inputs), data.relabelled(model.class_names).labels

    ranges_from, _ = part("search", _CALIBRATION_IMAGES)
    return real_network("ResNet-56", model.module, ranges_from, *part("calibration", None))


def real_network(
    name: str, network: nn.Module, ranges_from: Tensor, images: Tensor, labels: npt.NDArray[np.int64]
) -> RealNetwork:
    """``network`` with its errors, by ``ranges_from``; ``images`` [count, *input] and ``labels`` judge it."""
    layers = trace_layers(network.eval(), ranges_from[:1])
    _fold_batch_norms(layers.traced)
    own: list[dict[int, float]] = [{} for _ in layers.modules]
    for index, module in weighted_modules(layers):
        own[index - 1] = weight_errors(module.weight.detach().numpy(), ERROR_WIDTHS)
    values = _values(layers, ranges_from)
    errors = ({}, *(activation_errors(values[index], ERROR_WIDTHS) for index in range(1, layers.graph.count + 1)))
    ranges = {
        (index, width): activation_range(found, width) for index, found in values.items() for width in ERROR_WIDTHS
    }
    return RealNetwork(name, layers, images, labels, tuple(own), errors, ranges)


def _values(layers: TracedLayers, images: Tensor) -> dict[int, npt.NDArray[np.float32]]:
    """Up to ``_VALUES`` evenly spaced values of every layer's output."""
    found = {}
    numbers = {name: index for index, name in enumerate(layers.outputs, start=1)}

    class Recording(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            value = super().run_node(n)
            if n.name in numbers:
                flat = value.flatten()
                found[numbers[n.name]] = flat[:: max(1, len(flat) // _VALUES)].numpy()
            return value

    with torch.no_grad():
        Recording(layers.traced).run(images)
    return found


def _fold_batch_norms(traced: fx.GraphModule) -> None:
    """Move the scale of every batch norm that follows a convolution into its weights; the outputs stay the same."""
    modules = dict(traced.named_modules())
    for node in traced.graph.nodes:
        convolution = modules.get(str(node.target)) if node.op == "call_module" else None
        users = list(node.users)
        if not isinstance(convolution, nn.Conv2d) or len(users) != 1 or users[0].op != "call_module":
            continue
        norm = modules[str(users[0].target)]
        if isinstance(norm, nn.BatchNorm2d):
            assert norm.running_var is not None
            assert norm.running_mean is not None
            deviation = torch.sqrt(norm.running_var + norm.eps)
            scale = (norm.weight / deviation).detach()
            convolution.weight.data *= scale[:, None, None, None]
            if convolution.bias is not None:
                convolution.bias.data *= scale
            norm.running_mean *= scale
            norm.weight.data = deviation


class _Weights:
    """Quantised weights of the device's layers for the time of a run."""

    def __init__(self, network: RealNetwork, solution: SplitSolution | None) -> None:
        self._network, self._solution = network, solution
        self._before: list[tuple[nn.Module, Tensor]] = []

    def __enter__(self) -> None:
        if self._solution is None:
            return
        for index, module in weighted_modules(self._network.layers):
            if index <= self._solution.position and self._solution.weight_bits[index - 1] < 16:
                self._before.append((module, module.weight.data))
                module.weight.data = self._of(index, module.weight.data, self._solution.weight_bits[index - 1])

    def __exit__(self, *_: object) -> None:
        for module, weight in self._before:
            module.weight.data = weight

    def _of(self, index: int, weight: Tensor, bits: int) -> Tensor:
        known = self._network._quantised
        if (index, bits) not in known:
            known[index, bits] = torch.from_numpy(quantised_weights(weight.numpy(), bits))
        return known[index, bits]


class _Quantising(fx.Interpreter):
    """Runs a network with the outputs of the device's layers quantised; layers at the server read what was sent."""

    def __init__(self, network: RealNetwork, solution: SplitSolution | None) -> None:
        super().__init__(network.layers.traced)
        self._network, self._solution = network, solution
        self._numbers = {name: index for index, name in enumerate(network.layers.outputs, start=1)}
        self._firsts = {layer.name: index for index, layer in enumerate(network.layers.graph.layers, start=1)}
        self._sent: dict[str, int] = {}
        if solution is not None and solution.kind == "split":
            crossing = network.layers.graph.crossing(solution.position)
            self._sent = {
                network.layers.outputs[tensor - 1]: bits
                for tensor, bits in zip(crossing, solution.sent_bits, strict=True)
                if tensor
            }

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        number = self._numbers.get(n.name, 0)
        if self._solution is None or not 1 <= number <= self._solution.position:
            return value
        return self._quantised(value, number, self._solution.activation_bits[number - 1])

    def fetch_args_kwargs_from_env(self, n: fx.Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        own = self._firsts.get(n.name, 0)
        if self._solution is None or own <= self._solution.position:
            return super().fetch_args_kwargs_from_env(n)
        read: Callable[[fx.Node], Any] = self._received
        arguments, keywords = fx.node.map_arg(n.args, read), fx.node.map_arg(n.kwargs, read)
        return tuple(arguments), dict(keywords)

    def _received(self, node: fx.Node) -> Any:
        value, bits = self.env[node], self._sent.get(node.name)
        return value if bits is None else self._quantised(value, self._numbers[node.name], bits)

    def _quantised(self, value: Tensor, number: int, bits: int) -> Tensor:
        if bits >= 16:
            return value
        low, high = self._network.ranges[number, bits]
        scale = (high - low) / (2**bits - 1)
        return torch.fake_quantize_per_tensor_affine(value, scale, round(-low / scale), 0, 2**bits - 1)
