"""The bundles of a network with exits: the branch zoo's, and one with the structures of the rivals."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.exits.networks import ExitNetwork
from benchmarks.runner.run import BenchOptions
from benchmarks.support.bundles import ZOO
from benchmarks.support.reference_bundles import Made
from packager.inputs.job import load_job
from packager.pipeline import package

QUICK_STEPS = 3  # at each cut point
LINEAR, CONVOLUTIONAL = ("none-p1", "none-p2", "none-p4"), "separable3x2-p1"
SPINN_EXITS, BRANCHYNET_EXITS = 6, 2


def zoo_bundle(options: BenchOptions, network: ExitNetwork) -> Made:
    """Packaged without training, with the exits of zoo/."""
    return _packaged(options, network, "zoo", {}, recipe=ZOO / network.recipe)


def rival_bundle(options: BenchOptions, network: ExitNetwork) -> Made:
    """The structures of all rivals at enough cut points, trained for as many steps on the same batches as the zoo's."""
    positions = max(network.positions, SPINN_EXITS)
    settings = {
        "max_span": 1,
        "exit_positions": positions,
        "branches": (*LINEAR, CONVOLUTIONAL),
        "steps": positions * (QUICK_STEPS if options.quick else network.steps),
        "input_sizes": [],
    }
    return _packaged(options, network, "rivals", {**settings, **network.settings}, recipe=None)


def _packaged(
    options: BenchOptions, network: ExitNetwork, name: str, overrides: Mapping[str, object], *, recipe: Path | None
) -> Made:
    weights = options.data_folder / "pretrained" / network.weights
    few = f"{network.held_out}#calibration"
    job = load_job(
        network.model,
        weights=weights,
        classes=network.classes,
        pixels=network.pixels,
        training=str(options.data_folder / (few if options.quick or recipe is not None else network.training)),
        validation=str(options.data_folder / few),
        recipe_path=recipe,
        overrides=overrides,
        progress=options.progress,
    )
    packaged = package(job, options.work_folder / f"{network.prefix}{name}", progress=options.progress)
    return Made(job.model, weights, packaged.folder, packaged.seconds / 60)
