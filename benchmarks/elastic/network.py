"""AlexNet for 32×32 images, as in MEEdge Fig. 9b, trained for a minute: most of its memory is in its last layers."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

from device_sdk.data.datasets import load_dataset
from packager.inputs.job_loader import load_job
from packager.inputs.pixels import Pixels
from packager.pipeline import package
from pathweave.bench import BenchOptions

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
STEPS, QUICK_STEPS = 300, 10
EXIT_STEPS, QUICK_EXIT_STEPS = 200, 10
BATCH = 64


def alexnet() -> nn.Module:
    """7.5 million parameters, 30 MB; 17 MB of them in one layer."""
    widths = [(3, 64, True), (64, 192, True), (192, 384, False), (384, 256, False), (256, 256, True)]
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for number, (inputs, outputs, pooled) in enumerate(widths):
        layer = [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
        layers[f"conv{number}"] = nn.Sequential(*layer, *([nn.MaxPool2d(2)] if pooled else []))
    layers["flatten"] = nn.Flatten()
    layers["fc0"] = nn.Sequential(nn.Linear(256 * 4 * 4, 1024), nn.ReLU())
    layers["fc1"] = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU())
    layers["head"] = nn.Linear(1024, 10)
    return nn.Sequential(layers)


def make_bundle(options: BenchOptions) -> Path:
    """Train the network, package it with exits, and return the folder of the bundle."""
    cifar = options.data_folder / "cifar10"
    weights = options.work_folder / "alexnet.safetensors"
    _train(cifar / "test.zip", weights, options)
    job = load_job(
        "benchmarks.elastic.network:alexnet",
        weights=weights,
        training=f"{cifar / 'test.zip'}#calibration",
        validation=f"{cifar / 'test.zip'}#search",
        input_shape=(3, 32, 32),
        pixels=Pixels(normalisation=(MEAN, STD)),
        overrides={"steps": QUICK_EXIT_STEPS if options.quick else EXIT_STEPS, "max_span": 1},
        progress=options.progress,
    )
    return package(job, options.work_folder / "alexnet", progress=options.progress).folder


def _train(data: Path, weights: Path, options: BenchOptions) -> None:
    """Some hundred steps on the calibration images."""
    torch.manual_seed(0)
    model = alexnet()
    found = load_dataset(f"{data}#calibration", progress=options.progress)
    images = torch.from_numpy(found.images).permute(0, 3, 1, 2).float() / 255
    images = (images - torch.tensor(MEAN).view(1, 3, 1, 1)) / torch.tensor(STD).view(1, 3, 1, 1)
    labels = torch.from_numpy(found.labels)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4)
    steps = QUICK_STEPS if options.quick else STEPS
    with options.progress.task("train AlexNet", steps) as task:
        for _ in range(steps):
            batch = torch.randint(len(images), (BATCH,))
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
            task.advance()
    save_file(model.state_dict(), weights)
