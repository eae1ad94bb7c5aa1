"""The networks of ``exits``: their data, the training that zoo and rivals share, and the memory budgets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from device_sdk.data.datasets import ImageDataset, load_dataset
from device_sdk.progress import Progress
from device_sdk.session.adaptive_model import AdaptiveModel
from packager.inputs.pixels import Pixels


@dataclass(frozen=True, kw_only=True)
class ExitNetwork:
    """One network with its exits.

    ``prefix``: of its figures. ``training``, ``held_out``: archives in the data folder; the second has the parts.
    ``positions``: cut points with exits of the zoo; ``steps``: of training at each cut point, for rivals too;
    ``settings``: further ones of that training. ``recipe``: in zoo/; the bundle is made from it without training.
    ``among_present``: answers are judged among the classes of the data alone. Exits that were trained on a few classes
    prefer these, so that over all of the model's classes they would seem better than the model.
    """

    name: str
    prefix: str
    model: str
    weights: str
    recipe: str
    training: str
    held_out: str
    positions: int
    steps: int
    settings: Mapping[str, object]
    budgets_bytes: tuple[int, ...]
    classes: str | None = None
    pixels: Pixels | None = None
    among_present: bool = False

    def held_out_part(self, model: AdaptiveModel, part: str, data_folder: Path, *, progress: Progress) -> ImageDataset:
        """A part of the held-out images, resized for ``model`` and labelled as it numbers its classes."""
        manifest = model.bundle.manifest
        reference = f"{data_folder / self.held_out}#{part}"
        found = load_dataset(reference, progress=progress, preprocessing=manifest.preprocessing.of_images())
        return found.relabelled(manifest.task.class_names, manifest.task.class_ids)


RESNET56 = ExitNetwork(
    name="ResNet-56",
    prefix="",
    model="zoo:resnet56_cifar10",
    weights="resnet56_cifar10.safetensors",
    recipe="resnet56-cifar10-exits.toml",
    training="cifar10/train.zip",
    held_out="cifar10/test.zip",
    positions=8,
    steps=1500,
    settings={"variants": 1, "cache_mb": 6000},
    budgets_bytes=(8_000, 32_000, 128_000, 512_000, 2_000_000),
)
LITE0 = ExitNetwork(
    name="EfficientNet-Lite0",
    prefix="lite0_",
    model="timm:tf_efficientnet_lite0",
    weights="efficientnet_lite0_imagenet.safetensors",
    recipe="efficientnet-lite0-exits.toml",
    training="imagenette/train.zip",
    held_out="imagenette/val.zip",
    positions=7,
    steps=600,
    settings={"variants": 4, "cache_mb": 12000, "label_weight": 0.0},
    budgets_bytes=(250_000, 500_000, 1_000_000, 2_000_000, 4_000_000),
    classes="imagenet-1k",
    pixels=Pixels(None, "bicubic", "whole"),
    among_present=True,
)
NETWORKS = (RESNET56, LITE0)
