"""The models included in Pathweave: one module per family, one line per model in ``ZOO``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from torch import nn

from device_sdk.data.preprocessing import Preprocessing
from packager.zoo.resnet import cifar_resnet, resnet_digits
from packager.zoo.resnet_mlperf_tiny import MlperfTinyResNet8

__all__ = ["ZOO", "ZooEntry"]

CIFAR10_CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)


@dataclass(frozen=True)
class ZooEntry:
    """A model: constructor, input shape, preprocessing, and origin of its published weights.

    ``constructor`` takes the keyword ``classes``; ``input_shape`` is [channels, height, width]; ``licence``
    and ``source`` are those of the architecture and its published weights.
    """

    constructor: Callable[..., nn.Module]
    input_shape: tuple[int, int, int]
    preprocessing: Preprocessing
    class_names: tuple[str, ...]
    licence: str
    source: str


def _cifar_entry(layers: int) -> ZooEntry:
    return ZooEntry(
        constructor=partial(cifar_resnet, layers),
        input_shape=(3, 32, 32),
        preprocessing=Preprocessing(scale=1 / 255, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
        class_names=CIFAR10_CLASSES,
        licence="BSD-2-Clause",
        source="github akamaster/pytorch_resnet_cifar10",
    )


ZOO: Mapping[str, ZooEntry] = MappingProxyType(
    {f"resnet{layers}_cifar10": _cifar_entry(layers) for layers in (20, 32, 44, 56, 110)}
    | {
        "resnet8_mlperf_tiny": ZooEntry(
            constructor=MlperfTinyResNet8,
            input_shape=(3, 32, 32),
            preprocessing=Preprocessing(scale=1.0, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0)),
            class_names=CIFAR10_CLASSES,
            licence="Apache-2.0",
            source="github mlcommons/tiny",
        ),
        "resnet_digits": ZooEntry(
            constructor=resnet_digits,
            input_shape=(1, 8, 8),
            preprocessing=Preprocessing(scale=1 / 16, mean=(0.305,), std=(0.376,), channels=1),
            class_names=tuple("0123456789"),
            licence="Apache-2.0",
            source="Pathweave",
        ),
    }
)
