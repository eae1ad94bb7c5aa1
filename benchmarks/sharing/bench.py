"""Self-merged exits: parameters, bytes on disk and in the runtime that they save, and the accuracy that it costs.

Five structures with hidden layers are trained at each of 4 exits of ResNet-20. Each that is left gets a self-merged
sibling, whose merged neurons are folded into smaller layers, retrained on a fifth of the data (MEEdge §3.5, Eq. 2).
Figures compare all siblings with their originals: ``params_saved`` and ``disk_bytes_saved`` (the fragments as a bundle
stores and sends them), ``resident_bytes_saved`` (memory that one ONNX Runtime session each adds to a process of its
own, median of ``RUNS``), ``accuracy_loss_points`` (mean on #report). Retraining itself may help, so
``accuracy_loss_points_to_retrained`` compares with the originals retrained in the same way.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from benchmarks.runner.run import BenchOptions, BenchOutcome, Target
from benchmarks.sharing.resident import resident_of_sessions
from benchmarks.support.branch_zoo import ZooSetting, exit_accuracies, load_cifar_part, prepared, zoo_setting
from benchmarks.support.zoo_processes import trained_in_processes
from packager.branch_zoo.cultivation import Grown
from packager.branch_zoo.features import StemmedBatches, held_out_batches
from packager.branch_zoo.modules import Branch
from packager.branch_zoo.rungs import ZooSettings
from packager.branch_zoo.selection import KEPT_SHARE, RUNGS
from packager.branch_zoo.self_merge import DATA_SHARE, MergedBranch, retrain_to_least_loss
from packager.branch_zoo.specs import parse
from packager.exporting.export import export_blocks
from packager.supernet.expansion import TrainableExit

TARGETS = {
    "params_saved": Target(minimum=0.30),
    "resident_bytes_saved": Target(minimum=0.25),
    "accuracy_loss_points": Target(maximum=0.2),
}
NETWORK, EXITS = "resnet20_cifar10", 4
IMAGES, QUICK_IMAGES = 5_000, 256
NAMES = ("none-p4h256", "none-p2h512h256", "separable3-p4h256", "spatial5-p4h256", "dilated3-p2h512h256")
FIRST_EPOCHS = 0.5  # of the first rung; each later rung doubles it
RUNS = 3
CACHE_BYTES = 1e9


@dataclass(frozen=True)
class _Pair:
    """An exit and its self-merged sibling."""

    whole: TrainableExit
    merged: TrainableExit


def run(options: BenchOptions) -> BenchOutcome:
    """Train originals and siblings; branches are chosen on #calibration, accuracy is judged once on #report."""
    images_trained = QUICK_IMAGES if options.quick else IMAGES
    setting = zoo_setting(options, NETWORK, exits=EXITS, images=images_trained)
    epochs = FIRST_EPOCHS * sum(KEPT_SHARE**-rung for rung in range(RUNGS))
    steps = RUNGS if options.quick else round(setting.steps_per_epoch * epochs)
    grid = tuple(spec for name in NAMES if (spec := parse(name)) is not None)
    settings = ZooSettings(steps=steps, cache_bytes=CACHE_BYTES, grid=grid)
    grown = trained_in_processes(options, setting, "sharing", settings, images=images_trained).grown
    pairs = _pairs(grown)
    whole, merged = [pair.whole for pair in pairs], [pair.merged for pair in pairs]
    images, labels = prepared(setting.model, load_cifar_part(options, "report"))
    every = max(1, len(labels) // QUICK_IMAGES) if options.quick else 1
    exits = [*whole, *merged, *_retrained(options, setting, whole, steps=steps)]
    before, after, control = np.array(exit_accuracies(setting, exits, (images[::every], labels[::every]))).reshape(
        3, -1
    )
    of_whole, of_merged = (_measured(setting, exits, runs=RUNS) for exits in (whole, merged))
    parameters = [sum(exit_.parameters for exit_ in exits) for exits in (whole, merged)]
    losses = 100 * (before - after)
    figures = {
        "params_saved": 1 - parameters[1] / parameters[0],
        "disk_bytes_saved": 1 - of_merged.disk_bytes / of_whole.disk_bytes,
        "resident_bytes_saved": 1 - of_merged.resident_bytes / of_whole.resident_bytes,
        "accuracy_loss_points": float(losses.mean()),
        "accuracy_loss_points_to_retrained": float(100 * (control - after).mean()),
        "accuracy_loss_points_max": float(losses.max()),
        "pairs": float(len(pairs)),
    }
    rows: list[dict[str, object]] = [
        {
            "what": "pair",
            "exit": pair.whole.id,
            "parameters": pair.whole.parameters,
            "merged_parameters": pair.merged.parameters,
            "accuracy_report": 100 * whole_accuracy,
            "merged_accuracy_report": 100 * merged_accuracy,
            "retrained_accuracy_report": 100 * retrained_accuracy,
        }
        for pair, whole_accuracy, merged_accuracy, retrained_accuracy in zip(pairs, before, after, control, strict=True)
    ]
    for name, found in (("originals", of_whole), ("siblings", of_merged)):
        rows.append({"what": "bytes", "exits": name, "disk": found.disk_bytes, "resident": found.resident_runs})
    data = f"{len(setting.source)} images of cifar10/train.zip; chosen on test.zip#calibration, accuracy on #report"
    return BenchOutcome(figures, rows, data)


def _pairs(grown: Sequence[Grown]) -> list[_Pair]:
    exits = {one.exit.id: one.exit for one in grown}
    return [_Pair(exits[name.removesuffix("-merged")], exits[name]) for name in exits if name.endswith("-merged")]


def _retrained(
    options: BenchOptions, setting: ZooSetting, exits: Sequence[TrainableExit], *, steps: int
) -> list[TrainableExit]:
    """Copies of ``exits``, retrained as siblings are, with nothing merged."""
    batches = StemmedBatches(
        setting.expansion.traced,
        setting.source,
        setting.positions,
        folder=options.work_folder / "control",
        limit_bytes=CACHE_BYTES,
        wanted=steps,
        device=torch.device("cpu"),
    )
    calibration = held_out_batches(
        setting.expansion.traced, setting.positions, *setting.calibration, device=torch.device("cpu")
    )
    found = []
    for exit_ in exits:
        assert isinstance(exit_.module, Branch)
        copied = replace(exit_, module=copy.deepcopy(exit_.module))
        few = batches.few(exit_.position, DATA_SHARE)
        retrain_to_least_loss(MergedBranch(copied.module, {}), few, calibration[exit_.position])
        found.append(copied)
    batches.close()
    return found


@dataclass(frozen=True)
class _Bytes:
    """Bytes of a set of exits on disk and, in each run, in the runtime."""

    disk_bytes: int
    resident_runs: list[int]

    @property
    def resident_bytes(self) -> float:
        """The median."""
        return float(np.median(self.resident_runs))


def _measured(setting: ZooSetting, exits: Sequence[TrainableExit], *, runs: int) -> _Bytes:
    exported = export_blocks(replace(setting.expansion, exits=tuple(exits)))
    needed = {name for exit_ in exits for name in exported.needs[exit_.id]}
    disk = sum(len(exported.own[exit_.id]) for exit_ in exits) + sum(len(exported.shared[name]) for name in needed)
    stretches = [exported.stretch([], exit_.id) for exit_ in exits]
    return _Bytes(disk, [resident_of_sessions(stretches) for _ in range(runs)])
