"""Gain of early exits by temperature scaling per exit, and an upper bound of their gain by joint training.

Both are computed from measured answers and latencies: thresholds are chosen as ``adapt`` chooses them, on
#calibration and #search, and judged on #report.

Joint training changes the backbone, so that it needs a copy. An exit at a share of the full model's work is then hardly
better than a network of that work trained for itself alone; the published networks of fewer layers stand in for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch

from benchmarks.exits.networks import ExitNetwork
from benchmarks.runner.run import BenchOptions
from benchmarks.support.exit_latency import EXITS_GOAL
from benchmarks.support.reference_bundles import Made, Part
from device_sdk.data.datasets import ImageDataset
from device_sdk.execution.workspace import Workspace
from device_sdk.policies.costs.answers import Answers, answer_everywhere
from device_sdk.policies.deciding.thresholds import Confidences, ExitSamples, Rights, choose_exits
from device_sdk.policies.exits.placed_exits import placed_exits
from device_sdk.runtimes import make_runtime
from device_sdk.runtimes.port import Array
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.supernet.cost import CostModel
from device_sdk.supernet.deciders.port import confidence
from device_sdk.supernet.plan import UNREACHABLE_CONFIDENCE, ExitChoice
from packager.inputs.model_loader import load_model
from packager.supernet.expansion import count_macs

SHORTER = ("resnet20_cifar10", "resnet32_cifar10", "resnet44_cifar10")  # than ResNet-56, by the same authors
TEMPERATURES = np.geomspace(0.25, 8.0, 61)
QUICK_SAMPLES = 100
_BATCH = 100


@dataclass(frozen=True)
class Cascade:
    """Exits on some samples, in order, and the end: a mask of its correct answers, and its confidence."""

    exits: tuple[ExitSamples, ...]
    right_at_end: Rights
    confidence_at_end: Confidences

    def answered(self, thresholds: dict[str, float], full_ms: float) -> tuple[float, float]:
        """The accuracy, and the mean latency, with an exit's threshold by its name; others are not tried."""
        rest, right = np.ones(len(self.right_at_end), dtype=bool), self.right_at_end.copy()
        latency_ms, tried_ms = np.zeros(len(rest)), 0.0
        for exit_ in self.exits:
            if exit_.choice.exit in thresholds:
                tried_ms += exit_.branch_ms
                leaves = rest & (exit_.confidence >= thresholds[exit_.choice.exit])
                latency_ms[leaves], right[leaves] = exit_.reach_ms + tried_ms, exit_.right[leaves]
                rest &= ~leaves
        latency_ms[rest] = full_ms + tried_ms
        return float(right.mean()), float(latency_ms.mean())


@dataclass(frozen=True)
class Saved:
    """Savings by exits: mean latency over that of the full model, points lost, the exits' accuracies in percent."""

    latency_ratio: float
    accuracy_drop_points: float
    accuracies: dict[str, float]
    thresholds: dict[str, float]


def bounds(options: BenchOptions, network: ExitNetwork, zoo: Made) -> Part:
    """Early exits as they are, with temperatures, and as accurate as networks of their own."""
    state = options.work_folder / f"state-{zoo.folder.name}"
    with AdaptiveModel.open(zoo.folder, state_folder=state) as model:
        costs = model.profile(progress=options.progress).cost_model()
        workspace = Workspace(model.bundle, make_runtime("onnxruntime", threads=1))
        subnet = model.bundle.supernet.original
        parts = [_part(options, network, model, names) for names in (("calibration", "search"), ("report",))]
        inputs = [model.prepare(part.images) for part in parts]
        chosen, judged = (
            answer_everywhere(workspace, subnet, images, part.labels, use_exits=True, batch=64)
            for images, part in zip(inputs, parts, strict=True)
        )
    kept = placed_exits(chosen, costs)
    full_ms = costs.latency_ms(subnet)
    temperatures = [_temperature(chosen.logits[number], chosen.labels) for number in range(len(chosen.exits))]
    plain, scaled = (
        _saved(_cascade(chosen, kept, scales, costs), _cascade(judged, kept, scales, costs), full_ms)
        for scales in ([1.0] * len(temperatures), temperatures)
    )
    alone = [networks_alone(options, images, part.labels, full_ms) for images, part in zip(inputs, parts, strict=True)]
    together = [
        Cascade(exits, answers.right(-1), answers.confidences(-1))
        for exits, answers in zip(alone, (chosen, judged), strict=True)
    ]
    joint = _saved(together[0], together[1], full_ms)
    figures = {
        "temperature_ratio_gain": plain.latency_ratio - scaled.latency_ratio,
        "joint_bound_latency_ratio": joint.latency_ratio,
    }
    fitted = {chosen.exits[number].id: temperatures[number] for number in kept}
    rows = [
        _row(network, "as they are", plain),
        _row(network, "temperature scaling per exit", scaled) | {"temperatures": fitted},
        _row(network, "bound of joint training: exits as good as ResNet-20, -32, -44", joint),
    ]
    return Part(figures, rows)


def _part(options: BenchOptions, network: ExitNetwork, model: AdaptiveModel, names: Sequence[str]) -> ImageDataset:
    """The images of several parts together."""
    found = [network.held_out_part(model, name, options.data_folder, progress=options.progress) for name in names]
    images, labels = np.concatenate([one.images for one in found]), np.concatenate([one.labels for one in found])
    whole = ImageDataset(images, labels, found[0].class_names, tuple(name for one in found for name in one.names))
    return whole.take(range(QUICK_SAMPLES)) if options.quick else whole


def _temperature(logits: Array, labels: np.ndarray) -> float:
    """The temperature of least negative log-likelihood (Guo et al. 2017)."""

    def likelihood(temperature: float) -> float:
        scaled = logits.astype(np.float64) / temperature
        scaled -= scaled.max(axis=1, keepdims=True)
        scaled -= np.log(np.exp(scaled).sum(axis=1, keepdims=True))
        return float(scaled[np.arange(len(labels)), labels].mean())

    return max(TEMPERATURES.tolist(), key=likelihood)


def _cascade(answers: Answers, kept: Sequence[int], temperatures: Sequence[float], costs: CostModel) -> Cascade:
    exits = tuple(
        replace(answers.at_exit(number, costs), confidence=confidence(answers.logits[number] / temperatures[number]))
        for number in kept
    )
    return Cascade(exits, answers.right(-1), answers.confidences(-1))


def networks_alone(options: BenchOptions, images: Array, labels: np.ndarray, full_ms: float) -> tuple[ExitSamples, ...]:
    """Each shorter network as an exit at its share of the full model's work, whose branch costs nothing."""
    folder = options.data_folder / "pretrained"
    full_macs = macs_of(folder, "resnet56_cifar10", images)
    found = []
    for name in SHORTER:
        logits = logits_of(folder, name, images)
        reach_ms = full_ms * macs_of(folder, name, images) / full_macs
        choice = ExitChoice(name, UNREACHABLE_CONFIDENCE)
        found.append(ExitSamples(choice, confidence(logits), logits.argmax(axis=1) == labels, reach_ms, 0.0))
    return tuple(found)


def macs_of(folder: Path, name: str, images: Array) -> int:
    """Operations of a published network on one of prepared ``images`` [count, *input]."""
    return count_macs(load_model(f"zoo:{name}", weights=folder / f"{name}.safetensors").module, images.shape[1:])


def logits_of(folder: Path, name: str, images: Array) -> Array:
    """The logits of a published network on prepared ``images`` [count, *input]: [count, classes]."""
    module = load_model(f"zoo:{name}", weights=folder / f"{name}.safetensors").module.eval()
    with torch.inference_mode():
        return torch.cat([module(part) for part in torch.from_numpy(images).split(_BATCH)]).numpy()


def _saved(chosen: Cascade, judged: Cascade, full_ms: float) -> Saved:
    """Savings by exits on ``judged`` with the thresholds that ``adapt`` would choose on ``chosen``."""
    choices = choose_exits(
        chosen.exits,
        right_at_end=chosen.right_at_end,
        confidence_at_end=chosen.confidence_at_end,
        full_ms=full_ms,
        accuracy_drop=EXITS_GOAL.max_drop or 0.0,
    )
    thresholds = {choice.exit: choice.threshold for choice in choices}
    accuracy, latency_ms = judged.answered(thresholds, full_ms)
    drop_points = 100 * (float(judged.right_at_end.mean()) - accuracy)
    accuracies = {one.choice.exit: 100 * float(one.right.mean()) for one in judged.exits}
    return Saved(latency_ms / full_ms, drop_points, accuracies, thresholds)


def _row(network: ExitNetwork, name: str, saved: Saved) -> dict[str, object]:
    return {"what": f"{network.name}, predicted: {name}", **asdict(saved)}
