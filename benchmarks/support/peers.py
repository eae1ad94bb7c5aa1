"""Alternatives to a supernet: separately trained networks, each in float and quantised to 8 bits as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from benchmarks.runner.run import BenchOptions
from device_sdk.data.datasets import ImageDataset, load_dataset
from device_sdk.data.preprocessing import prepare
from device_sdk.supernet.blocks import TensorSpec
from packager.exporting.onnx_exporter import export_whole
from packager.inputs.model_loader import load_model
from packager.renditions.int8 import quantised

INPUT_SHAPE = (3, 32, 32)

Features = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True)
class Peer:
    """One network as a plain ONNX model. ``rendition``: fp32 or int8."""

    network: str
    rendition: str
    model: bytes

    @property
    def name(self) -> str:
        """As figures call it: resnet44, resnet44_int8."""
        return self.network if self.rendition == "fp32" else f"{self.network}_{self.rendition}"


@dataclass(frozen=True)
class Samples:
    """Images as CIFAR-10's networks take them [count, 3, 32, 32], and their classes [count]."""

    inputs: Features
    labels: np.ndarray[Any, np.dtype[np.int64]]


def load_samples(options: BenchOptions, part: str) -> Samples:
    """A part of CIFAR-10's test images."""
    data: ImageDataset = load_dataset(f"{options.data_folder / 'cifar10' / 'test.zip'}#{part}")
    preprocessing = load_model(
        "zoo:resnet20_cifar10"
    ).preprocessing.of_images()  # all CIFAR-10 networks of the zoo have the same
    return Samples(prepare(data.images, preprocessing, input_shape=INPUT_SHAPE), data.labels)


def make_peers(options: BenchOptions, networks: list[str], calibration: Features) -> Iterator[Peer]:
    """Each network in float, then in 8 bits: static, per channel, ranges from ``calibration`` [count, 3, 32, 32]."""
    for network in networks:
        weights = options.data_folder / "pretrained" / f"{network}_cifar10.safetensors"
        whole = export_whole(
            load_model(f"zoo:{network}_cifar10", weights=weights).module, TensorSpec("input", INPUT_SHAPE, "float32")
        )
        yield Peer(network, "fp32", whole)
        int8 = quantised(onnx.ModelProto.FromString(whole), (calibration,))
        yield Peer(network, "int8", int8.SerializeToString())
