"""The bundle of device benchmarks: ResNet-56 with the zoo's trained branches, made once and cached."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.runner.run import BenchOptions
from device_sdk import __version__
from packager.inputs.job import load_job
from packager.output.ownership import REPORT
from packager.pipeline import package

CHECKOUT = Path(__file__).parents[2]
ZOO = CHECKOUT / "zoo"
_MODEL, _QUICK_MODEL = "resnet56_cifar10", "resnet20_cifar10"
_QUICK_STEPS = 4
_MAKERS = ("exporting", "family", "fitting", "renditions", "supernet", "tracing")  # rooms of the packager


def adapted_bundle(options: BenchOptions, *, renditions: Sequence[str] = ("fp32",)) -> Path:
    """The folder of the bundle: ResNet-56 rebuilt by its recipe; a hardly trained ResNet-20 for ``--quick``.

    Rebuilding takes minutes, so the bundle stays in ``$PATHWEAVE_CACHE`` (default: ``~/.cache/pathweave``) for as long
    as the recipe, the weights, the version and the code that makes fragments are the same.
    """
    recipe = None if options.quick else ZOO / "resnet56-cifar10.toml"
    overrides: dict[str, object] = {"renditions": list(renditions)}
    if options.quick:
        overrides["steps"] = _QUICK_STEPS
    return _kept(options, "zoo", recipe, overrides)


def variant_bundle(options: BenchOptions, name: str, recipe: Mapping[str, object], *, minutes: float) -> Path:
    """The same network packaged by another ``recipe``, trained for so many minutes here, and kept like the other.

    Nothing else should run at the same time.
    """
    length = {"steps": _QUICK_STEPS} if options.quick else {"budget_minutes": minutes}
    return _kept(options, name, None, {**recipe, **length})


def plain_bundle(options: BenchOptions) -> Path:
    """The same network as it is, without added blocks and exits, and kept like the other; packaged in a minute."""
    return _kept(options, "plain", None, {"max_span": 1, "identity": False, "exit_positions": 0, "steps": 0})


def packaging_cost(folder: Path) -> dict[str, float]:
    """Cost of packaging the bundle when it was made, perhaps in an earlier run.

    Minutes, and the peak memory in GB of its process up to then, earlier work of the process included.
    """
    report = json.loads((folder / REPORT).read_bytes())
    cost = {"packaging_minutes": report["seconds"] / 60}
    peak_bytes = report["peak_rss_bytes"]
    return cost if peak_bytes is None else cost | {"packaging_peak_rss_gb": peak_bytes / 1e9}


def _kept(options: BenchOptions, name: str, recipe: Path | None, overrides: Mapping[str, object]) -> Path:
    cifar = options.data_folder / "cifar10"
    model = _QUICK_MODEL if options.quick else _MODEL
    folder = cache_folder() / "bench" / f"{model}-{name}-{_digest(recipe, overrides)}"
    if (folder / "manifest.json").exists():
        return folder
    job = load_job(
        f"zoo:{model}",
        weights=options.data_folder / "pretrained" / f"{model}.safetensors",
        training=str(cifar / ("test.zip#calibration" if options.quick else "train.zip")),
        validation=str(cifar / "test.zip#search"),
        recipe_path=recipe,
        overrides=overrides,
        progress=options.progress,
    )
    return package(job, folder, progress=options.progress).folder


def cache_folder() -> Path:
    """The cache folder of bundles between runs."""
    own = os.environ.get("PATHWEAVE_CACHE")
    return Path(own) if own else Path.home() / ".cache" / "pathweave"


def makers_digest(checkout: Path = CHECKOUT) -> str:
    """A digest of the code that makes fragments: a bundle of other code must not pass for one of this."""
    digest = hashlib.sha256()
    for room in _MAKERS:
        for path in sorted((checkout / "packager" / room).rglob("*.py")):
            digest.update(path.relative_to(checkout).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


def _digest(recipe: Path | None, overrides: Mapping[str, object]) -> str:
    digest = hashlib.sha256(f"{__version__} {makers_digest()} {sorted(overrides.items())}".encode())
    for path in [recipe, recipe.with_suffix(".safetensors")] if recipe else []:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
