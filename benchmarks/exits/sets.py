"""The two bundles of ResNet-56 with exits: the branch zoo's, and one with the structures of the rivals."""

from __future__ import annotations

from pathlib import Path

from benchmarks.support.bundles import CHECKOUT
from benchmarks.support.reference_bundles import Made
from packager.inputs.job_loader import load_job
from packager.pipeline import package
from pathweave.bench import BenchOptions

NETWORK = "resnet56_cifar10"
POSITIONS = 8
RIVAL_MINUTES, QUICK_STEPS = 7.0, 24
RIVALS = ("none-p1", "none-p2", "none-p4", "separable3x2-p1")


def zoo_bundle(options: BenchOptions) -> Made:
    """Packaged without training, from zoo/resnet56-cifar10-exits.safetensors."""
    recipe = CHECKOUT / "zoo" / "resnet56-cifar10-exits.toml"
    return _packaged(options, "zoo", {}, recipe=recipe)


def rival_bundle(options: BenchOptions) -> Made:
    """Exits of ``RIVALS`` at as many cut points, trained as the zoo's were."""
    trained = {"steps": QUICK_STEPS} if options.quick else {"budget_minutes": RIVAL_MINUTES}
    overrides = {"max_span": 1, "exit_positions": POSITIONS, "branches": RIVALS, "variants": 4, **trained}
    return _packaged(options, "rivals", overrides, recipe=None)


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
