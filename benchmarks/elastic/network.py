"""AlexNet for 32×32 images, as in MEEdge Fig. 9b, with random weights: most of its memory is in its last layers."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

from benchmarks.runner.run import BenchOptions
from benchmarks.support.bundles import cache_folder
from device_sdk import __version__
from packager.inputs.job import load_job
from packager.inputs.pixels import Pixels
from packager.pipeline import package

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
STEPS = 5  # of training exits, which are left out otherwise


def alexnet() -> nn.Module:
    """6.8 million parameters, 27 MB, 17 MB of them in one layer; convolutions a third as wide as AlexNet's."""
    widths = [(3, 32, True), (32, 64, True), (64, 128, False), (128, 128, False), (128, 128, True)]
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for number, (inputs, outputs, pooled) in enumerate(widths):
        layer = [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
        layers[f"conv{number}"] = nn.Sequential(*layer, *([nn.MaxPool2d(2)] if pooled else []))
    layers["flatten"] = nn.Flatten()
    layers["fc0"] = nn.Sequential(nn.Linear(128 * 4 * 4, 2048), nn.ReLU())
    layers["fc1"] = nn.Sequential(nn.Linear(2048, 1024), nn.ReLU())
    layers["head"] = nn.Linear(1024, 10)
    return nn.Sequential(layers)


def make_bundle(options: BenchOptions) -> Path:
    """The network, packaged with exits; kept in the cache for as long as this file is the same."""
    source = f"{__version__} {Path(__file__).read_text()}"
    folder = cache_folder() / "bench" / f"alexnet-{hashlib.sha256(source.encode()).hexdigest()[:12]}"
    if (folder / "manifest.json").exists():
        return folder
    cifar = options.data_folder / "cifar10"
    weights = options.work_folder / "alexnet.safetensors"
    torch.manual_seed(0)
    save_file(alexnet().state_dict(), weights)
    job = load_job(
        "benchmarks.elastic.network:alexnet",
        weights=weights,
        training=f"{cifar / 'test.zip'}#calibration",
        validation=f"{cifar / 'test.zip'}#search",
        input_shape=(3, 32, 32),
        pixels=Pixels(normalisation=(MEAN, STD)),
        overrides={"steps": STEPS, "max_span": 1},
        progress=options.progress,
    )
    return package(job, folder, progress=options.progress).folder
