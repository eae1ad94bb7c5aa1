"""The families of ``family``: bundles, samples that choose, and samples that judge."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.runner.run import BenchOptions
from benchmarks.support.bundles import CHECKOUT, cache_folder, makers_digest
from benchmarks.support.lite import SIDES, lite_weights, missing_weights, model_name
from benchmarks.sure.networks import Samples, Skipped, cifar_samples, photograph_samples
from device_sdk import __version__

LITE, CIFAR = "lite", "cifar"
_DEPTHS, _QUICK_DEPTHS = (20, 32, 44, 56), (20, 32)  # of the ResNets
_LATENCIES, _QUICK_LATENCIES = 12, 3
_LITE_LIMIT_S, _CIFAR_LIMIT_S, _QUICK_LIMIT_S = 20.0, 10.0, 1.0  # of each search
_LEAST_MEMBERS = 2
_RECIPES = {LITE: "efficientnet-lite-family.toml", CIFAR: "resnet-cifar10-family.toml"}  # in zoo/
_ONE_THREAD = ("--threads", "1")  # beside other work, which --quick is run beside, ten times as fast as two
_PHOTOGRAPHS = ("--classes", "imagenet-1k", "--interpolation", "bicubic", "--crop", "whole")


@dataclass(frozen=True)
class Family:
    """A bundle of several networks, with the samples that it is adapted on (``search``) and judged on (``report``).

    ``latencies``: number of latencies that it is adapted to; ``time_limit_s``: of each search. ``left_out``: reasons
    why networks are not among the members.
    """

    name: str
    folder: Path
    search: Samples
    report: Samples
    latencies: int
    time_limit_s: float
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Member:
    """A network as ``pathweave package`` takes it: ``specification`` of the model, file of its ``weights``."""

    specification: str
    weights: Path


@dataclass(frozen=True)
class _Data:
    """Archives below the data folder, and further choices of the packager for their images."""

    training: str
    validation: str
    choices: tuple[str, ...] = ()


def families(options: BenchOptions) -> Iterator[Family | Skipped]:
    """Each family, made when it is its turn; bundles are cached between runs."""
    if not options.quick:
        yield _lite(options)
    yield _cifar(options)


def _lite(options: BenchOptions) -> Family | Skipped:
    """EfficientNet-Lite0, 1 and 2, as far as their weights can be had."""
    reasons = {variant: missing_weights(options, variant) for variant in SIDES}
    left_out = tuple(f"lite{variant}: {reason}" for variant, reason in reasons.items() if reason is not None)
    present = [variant for variant, reason in reasons.items() if reason is None]
    if len(present) < _LEAST_MEMBERS:
        return Skipped(LITE, "; ".join(left_out))
    members = [_Member(model_name(variant), lite_weights(options, variant)) for variant in present]
    data = _Data("imagenette/train.zip", "imagenette/val.zip#calibration", _PHOTOGRAPHS)
    folder = _bundle(options, LITE, members, data)
    search, report = (photograph_samples(options, folder, part) for part in ("search", "report"))
    return Family(LITE, folder, search, report, _LATENCIES, _LITE_LIMIT_S, left_out)


def _cifar(options: BenchOptions) -> Family:
    """The zoo's ResNets of four depths; of two with ``--quick``."""
    weights = options.data_folder / "pretrained"
    names = [f"resnet{depth}_cifar10" for depth in (_QUICK_DEPTHS if options.quick else _DEPTHS)]
    members = [_Member(f"zoo:{name}", weights / f"{name}.safetensors") for name in names]
    training = "cifar10/test.zip#calibration" if options.quick else "cifar10/train.zip"
    folder = _bundle(options, CIFAR, members, _Data(training, "cifar10/test.zip#calibration"))
    search, report = (cifar_samples(options, folder, part) for part in ("search", "report"))
    count, limit_s = (_QUICK_LATENCIES, _QUICK_LIMIT_S) if options.quick else (_LATENCIES, _CIFAR_LIMIT_S)
    return Family(CIFAR, folder, search, report, count, limit_s)


def _bundle(options: BenchOptions, name: str, members: Sequence[_Member], data: _Data) -> Path:
    """The folder of the family, untrained, in fp32 and int8.

    Packaging takes minutes, so the bundle stays in the cache for as long as members, recipe, version and the code that
    makes fragments are the same.
    """
    recipe = CHECKOUT / "zoo" / _RECIPES[name]
    described = [[one.specification for one in members], data.training, data.validation, recipe.read_text()]
    described.append([*data.choices])
    digest = hashlib.sha256(json.dumps([described, __version__, makers_digest()]).encode()).hexdigest()
    folder = cache_folder().resolve() / "bench" / f"family-{name}-{digest[:12]}"
    if not (folder / "manifest.json").exists():
        with options.progress.task(f"package family {name}", 1) as task:
            _package(options, folder, members, recipe, data)
            task.advance()
    return folder


def _package(options: BenchOptions, out: Path, members: Sequence[_Member], recipe: Path, data: _Data) -> None:
    """Run ``pathweave package`` in a process of its own, so that its peak memory is that of packaging alone."""
    (first, *others), data_folder = members, options.data_folder.resolve()
    command = [sys.executable, "-m", "pathweave", "package"]
    command += ["--model", first.specification, "--weights", str(first.weights.resolve())]
    for one in others:
        command += ["--member", f"{one.specification}={one.weights.resolve()}"]
    command += ["--data", str(data_folder / data.training), "--val", str(data_folder / data.validation)]
    command += ["--out", str(out), "--recipe", str(recipe), "--restart", "--json", *data.choices]
    command += _ONE_THREAD if options.quick else ()
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"packaging {out.name} failed: {done.stderr[-500:]}")
