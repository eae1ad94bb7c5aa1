"""NVIDIA's FastNAS as a competitor, if it is installed: prune, then train for the same time as the supernet.

pip install nvidia-modelopt 'torchprofile<0.1'    # torchprofile: it counts operations with an interface of 0.0
"""

from __future__ import annotations

import importlib.util
import math
import time

import torch
from torch import nn

from benchmarks.runner.run import BenchOptions
from benchmarks.support.peers import INPUT_SHAPE, Samples
from benchmarks.support.variants import BATCH, TUNE_RATE
from device_sdk.data.datasets import load_dataset
from device_sdk.supernet.blocks import TensorSpec
from packager.data.batches import BatchSource
from packager.exporting.onnx_exporter import export_whole
from packager.inputs.model_loader import load_model
from packager.tasks import Classification, mixed_loss
from packager.torch_noise import torch_silenced

AVAILABLE = all(importlib.util.find_spec(name) for name in ("modelopt", "torchprofile"))
FLOPS = "50%"  # of the original's; what it saves in latency is measured
_DIVISOR = 4  # channels come in multiples of this; CIFAR's ResNets have 16 to 64
_CALIBRATION_BATCHES = 80
_JUDGED = 256  # samples that tell a pruned model's worth while it searches
_QUICK_STEPS = 2


def pruned(options: BenchOptions, network: str, search: Samples, *, minutes: float) -> bytes:
    """``network`` pruned to half of its work and trained for ``minutes``, labels and the original's logits mixed."""
    weights = options.data_folder / "pretrained" / f"{network}_cifar10.safetensors"
    loaded = load_model(f"zoo:{network}_cifar10", weights=weights)
    archive = options.data_folder / "cifar10" / ("test.zip" if options.quick else "train.zip")
    data = load_dataset(f"{archive}#calibration" if options.quick else str(archive), progress=options.progress)
    source = BatchSource(data, loaded.preprocessing, batch=BATCH, seed=0, flip=True, crop=0.125)
    student = _searched(load_model(f"zoo:{network}_cifar10", weights=weights).module, source, search, options)
    _train(student, loaded.module, source, minutes=minutes, options=options)
    return export_whole(student.eval(), TensorSpec("input", INPUT_SHAPE, "float32"))


def _searched(model: nn.Module, source: BatchSource, search: Samples, options: BenchOptions) -> nn.Module:
    import modelopt.torch.prune as pruning

    images, labels = torch.from_numpy(search.inputs[:_JUDGED]), torch.from_numpy(search.labels[:_JUDGED])

    def accuracy(candidate: nn.Module) -> float:
        with torch.no_grad():
            return float((candidate.eval()(images).argmax(1) == labels).float().mean())

    rule = {"*": {"channel_divisor": _DIVISOR}}
    with torch_silenced():
        student, _ = pruning.prune(
            model=model,
            mode=[("fastnas", {"nn.Conv2d": rule, "nn.BatchNorm2d": {"*": {"feature_divisor": _DIVISOR}}})],
            constraints={"flops": FLOPS},
            dummy_input=torch.zeros(1, *INPUT_SHAPE),
            config={
                "data_loader": [source.batch(step) for step in range(_CALIBRATION_BATCHES)],
                "score_func": accuracy,
                "checkpoint": str(options.work_folder / "fastnas.pth"),
                "verbose": False,
            },
        )
    return student


def _train(
    student: nn.Module, teacher: nn.Module, source: BatchSource, *, minutes: float, options: BenchOptions
) -> None:
    optimizer = torch.optim.SGD(student.parameters(), lr=TUNE_RATE, momentum=0.9, nesterov=True, weight_decay=1e-4)
    task, started_s, step = Classification(), time.monotonic(), 0
    student.to(memory_format=torch.channels_last).train()
    with options.progress.task("fine-tune what FastNAS found", 1.0) as shown:
        while True:
            done = step / _QUICK_STEPS if options.quick else (time.monotonic() - started_s) / (60 * minutes)
            if done >= 1.0:
                return
            for group in optimizer.param_groups:
                group["lr"] = TUNE_RATE * max(0.5 * (1 + math.cos(math.pi * done)), 1e-3)
            images, labels = source.batch(step)
            with torch.no_grad():
                wanted = teacher(images)
            loss = mixed_loss(task, student(images), labels, wanted, temperature=4.0, label_weight=0.1)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(student.parameters(), 5.0)
            optimizer.step()
            step += 1
            shown.note(f"loss {loss.item():.3f}")
