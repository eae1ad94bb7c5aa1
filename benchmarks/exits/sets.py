"""The bundles of ResNet-56 with exits: the branch zoo's, and those with the structures of the rivals."""

from __future__ import annotations

from pathlib import Path

from benchmarks.support.bundles import CHECKOUT
from benchmarks.support.reference_bundles import Made
from packager.inputs.job_loader import load_job
from packager.pipeline import package
from pathweave.bench import BenchOptions

NETWORK = "resnet56_cifar10"
POSITIONS = 8
STEPS, QUICK_STEPS = 300, 3  # at each cut point, as many as the zoo's
LINEAR, CONVOLUTIONAL = ("none-p1", "none-p2", "none-p4"), "separable3x2-p1"
SPINN_EXITS, BRANCHYNET_EXITS = 6, 2


def zoo_bundle(options: BenchOptions) -> Made:
    """Packaged without training, from zoo/resnet56-cifar10-exits.safetensors."""
    recipe = CHECKOUT / "zoo" / "resnet56-cifar10-exits.toml"
    return _packaged(options, "zoo", {}, recipe=recipe)


def rival_bundles(options: BenchOptions) -> dict[str, Made]:
    """``linear`` layers at as many cut points as the zoo's, ``spinn`` and ``branchynet`` at theirs, of equal work."""
    return {
        "linear": _trained(options, "linear", LINEAR, POSITIONS),
        "spinn": _trained(options, "spinn", (CONVOLUTIONAL,), SPINN_EXITS),
        "branchynet": _trained(options, "branchynet", (CONVOLUTIONAL,), BRANCHYNET_EXITS),
    }


def _trained(options: BenchOptions, name: str, branches: tuple[str, ...], positions: int) -> Made:
    """Exits of some structures, trained for as many steps as the zoo's were."""
    steps = positions * (QUICK_STEPS if options.quick else STEPS)
    settings = {"max_span": 1, "exit_positions": positions, "branches": branches, "variants": 4, "cache_mb": 1500}
    return _packaged(options, name, {**settings, "steps": steps}, recipe=None)


def _packaged(options: BenchOptions, name: str, overrides: dict[str, object], *, recipe: Path | None) -> Made:
    cifar = options.data_folder / "cifar10"
    weights = options.data_folder / "pretrained" / f"{NETWORK}.safetensors"
    training = "test.zip#calibration" if options.quick or recipe is not None else "train.zip"
    job = load_job(
        f"zoo:{NETWORK}",
        weights=weights,
        training=str(cifar / training),
        validation=str(cifar / "test.zip#calibration"),
        recipe_path=recipe,
        overrides=overrides,
        progress=options.progress,
    )
    packaged = package(job, options.work_folder / name, progress=options.progress)
    return Made(job.model, weights, packaged.folder, packaged.seconds / 60)
