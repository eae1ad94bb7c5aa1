"""The branch zoo of a pretrained CIFAR ResNet, trained here on cached features, for the benches that judge it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.runner.run import BenchOptions
from device_sdk.data.datasets import ImageDataset, load_dataset
from device_sdk.policies.placement import ExitCandidate
from packager.branch_zoo.cultivation import Cultivation
from packager.branch_zoo.features import held_out_batches
from packager.branch_zoo.modules import Branch
from packager.branch_zoo.plain import exit_positions
from packager.branch_zoo.rungs import ZooSettings, branch_accuracy
from packager.branch_zoo.selection import answer_times
from packager.data.batches import BatchSource
from packager.inputs.loaded_model import LoadedModel
from packager.inputs.model_loader import load_model
from packager.supernet.expansion import Expansion, TrainableExit, expand
from packager.tracing.traced_model import trace
from packager.training.ranks import Ranks

BATCH = 128
VARIANTS = 4  # augmented editions of the training images
_TRACED = 16


@dataclass(frozen=True)
class ZooSetting:
    """A traced network with its data: trained on ``images`` of train.zip, branches chosen on #calibration."""

    network: str
    model: LoadedModel
    expansion: Expansion
    positions: tuple[int, ...]
    source: BatchSource
    calibration: tuple[torch.Tensor, torch.Tensor]

    def cultivation(
        self, options: BenchOptions, name: str, settings: ZooSettings, *, ranks: Ranks | None = None
    ) -> Cultivation:
        """A run that trains what ``settings`` say; ``name`` of its work folder."""
        folder = options.work_folder / name
        folder.mkdir(parents=True, exist_ok=True)
        return Cultivation(
            self.expansion,
            self.source,
            self.calibration,
            positions=self.positions,
            times=answer_times(self.expansion),
            settings=settings,
            folder=folder,
            progress=options.progress,
            ranks=ranks,
        )

    @property
    def steps_per_epoch(self) -> int:
        """Batches of the training images."""
        return self.source.batches_per_epoch

    @property
    def full_macs(self) -> int:
        """MACs of the original path."""
        return sum(block.macs for block in self.expansion.originals)

    def candidates(self, exits: Sequence[TrainableExit], accuracies: Sequence[float]) -> list[ExitCandidate]:
        """``exits`` for placement, timed in MACs, with float32 parameters."""
        reach = [0, *itertools.accumulate(block.macs for block in self.expansion.originals)]
        return [
            ExitCandidate(e.id, e.position, accuracy, float(reach[e.position]), float(e.macs), 4 * e.parameters)
            for e, accuracy in zip(exits, accuracies, strict=True)
        ]


def zoo_setting(options: BenchOptions, name: str, *, exits: int, images: int) -> ZooSetting:
    """The network ``zoo:name`` with its published weights and so many exits and training images."""
    data = options.data_folder
    weights = data / "pretrained" / f"{name}.safetensors"
    model = load_model(f"zoo:{name}", weights=weights)
    training = load_dataset(str(data / "cifar10" / "train.zip"), limit=images, progress=options.progress)
    calibration = prepared(model, load_cifar_part(options, "calibration"))
    expansion = expand(trace(model.module, calibration[0][:_TRACED]), max_span=1)
    positions = exit_positions([block.macs for block in expansion.originals], count=exits)
    source = BatchSource(
        training.relabelled(model.class_names or ()),
        model.preprocessing,
        batch=BATCH,
        seed=0,
        flip=True,
        crop=0.125,
        variants=VARIANTS,
    )
    return ZooSetting(name, model, expansion, positions, source, calibration)


def load_cifar_part(options: BenchOptions, part: str) -> ImageDataset:
    """A part of CIFAR-10's test images."""
    archive: Path = options.data_folder / "cifar10" / "test.zip"
    return load_dataset(f"{archive}#{part}", progress=options.progress)


def prepared(model: LoadedModel, data: ImageDataset) -> tuple[torch.Tensor, torch.Tensor]:
    """All images of ``data``, preprocessed, and their labels as ``model`` numbers them."""
    found = data.relabelled(model.class_names or ())
    return BatchSource(found, model.preprocessing, batch=len(found), seed=0).plain(0, len(found))


def exit_accuracies(
    setting: ZooSetting, exits: Sequence[TrainableExit], data: tuple[torch.Tensor, torch.Tensor]
) -> list[float]:
    """The accuracy of each exit on ``data``, 0 to 1."""
    positions = sorted({exit_.position for exit_ in exits})
    judged_on = held_out_batches(setting.expansion.traced, positions, *data, device=torch.device("cpu"))
    found = []
    for exit_ in exits:
        assert isinstance(exit_.module, Branch)
        found.append(branch_accuracy(exit_.module, judged_on[exit_.position]))
    return found
