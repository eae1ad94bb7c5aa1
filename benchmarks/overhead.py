"""Overhead of the SDK over ONNX Runtime: per call, at program start and in installed size."""

from __future__ import annotations

import importlib.metadata
import statistics
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
from packaging.requirements import Requirement

from benchmarks.runner.run import BenchOptions, BenchOutcome, Target, package_folder
from benchmarks.support.bundles import adapted_bundle
from benchmarks.support.reference_bundles import load_part
from device_sdk.data.preprocessing import prepare
from device_sdk.fragments.composition import compose
from device_sdk.profiling.timing import Latency, measure_interleaved
from device_sdk.session.adaptive_model import AdaptiveModel

TARGETS = {"call_over_raw": Target(maximum=1.05), "import_seconds": Target(maximum=0.5)}
ROUNDS, QUICK_ROUNDS = 400, 40
COPIES = 3  # sessions of each side: two equal sessions differ by a percent, by where their weights lie
IMPORTS = 5
OWN_PACKAGES = ("device_sdk", "packager", "server", "pathweave", "benchmarks")
_IMPORT = (
    "import time; started = time.perf_counter(); from pathweave import AdaptiveModel, Goal; "
    "print(time.perf_counter() - started)"
)


def run(options: BenchOptions) -> BenchOutcome:
    """One image at a time, one thread, the full model; fresh interpreters; the files of the base dependencies."""
    calls = _calls(options)
    imports = [_import_seconds() for _ in range(IMPORTS)]
    sizes = _installed_bytes()
    sides = {side: statistics.median(calls[f"{side} {copy}"].median_ms for copy in range(COPIES)) for side in _SIDES}
    figures = {
        "call_over_raw": sides["model"] / sides["raw"],
        "infer_over_run": sides["infer"] / sides["run"],
        "call_ms": sides["model"],
        "import_seconds": statistics.median(imports),
        "install_mb": sum(sizes.values()) / 1e6,
    }
    table: list[dict[str, object]] = [
        {"what": name, "median_ms": one.median_ms, "p25_ms": one.p25_ms, "p75_ms": one.p75_ms}
        for name, one in calls.items()
    ]
    table += [{"what": "import", "seconds": seconds} for seconds in imports]
    table += [{"what": f"installed {name}", "mb": size / 1e6} for name, size in sorted(sizes.items())]
    note = "install_mb: files of the base dependencies and theirs, and of our packages, without compiled caches"
    return BenchOutcome(figures, table, data=f"an image of cifar10/test.zip#report; {note}")


_SIDES = ("model", "raw", "infer", "run")


def _calls(options: BenchOptions) -> dict[str, Latency]:
    """``model(x)`` against manual preprocessing and inference; ``model.infer`` against inference alone; interleaved."""
    import onnxruntime

    folder = adapted_bundle(options)
    models = [AdaptiveModel.open(folder, state_folder=options.work_folder / "state") for _ in range(COPIES)]
    image = load_part(options, "report", models[0]).images[0]
    manifest = models[0].bundle.manifest
    shape, preprocessing = manifest.cut_points[0].tensors[0].shape, manifest.preprocessing.of_images()
    input_shape = (shape[0], shape[1], shape[2])
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = settings.inter_op_num_threads = 1
    composed = compose(models[0].bundle.stretch(models[0].plan.subnet.edges))
    prepared = models[0].prepare(image)
    calls = {}
    for copy, model in enumerate(models):
        session = onnxruntime.InferenceSession(composed, settings, providers=["CPUExecutionProvider"])
        name = session.get_inputs()[0].name

        def raw(session: onnxruntime.InferenceSession = session, name: str = name) -> object:
            return session.run(None, {name: prepare(image, preprocessing, input_shape=input_shape)})

        def run_alone(session: onnxruntime.InferenceSession = session, name: str = name) -> object:
            return session.run(None, {name: prepared})

        calls[f"model {copy}"] = lambda model=model: model(image)
        calls[f"raw {copy}"] = raw
        calls[f"infer {copy}"] = lambda model=model: model.infer(prepared)
        calls[f"run {copy}"] = run_alone
        assert np.array_equal(model(image).output, session.run(None, {name: prepared})[0])
    with options.progress.task("calls", 1) as task:
        timed = measure_interleaved(calls, rounds=QUICK_ROUNDS if options.quick else ROUNDS, warmup=10)
        task.advance()
    for model in models:
        model.close()
    return timed


def _import_seconds() -> float:
    root = package_folder("pathweave").parent
    done = subprocess.run([sys.executable, "-c", _IMPORT], cwd=root, capture_output=True, text=True, check=True)
    return float(done.stdout)


def _installed_bytes() -> dict[str, int]:
    """Bytes on disk of each distribution that ``pip install pathweave`` installs, and of this project's packages."""
    root = package_folder("pathweave").parent
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted, sizes = [Requirement(text).name for text in project["dependencies"]], {}
    while wanted:
        name = wanted.pop()
        distribution = importlib.metadata.distribution(name)
        if distribution.name in sizes:
            continue
        sizes[distribution.name] = sum(_size(Path(str(file.locate()))) for file in distribution.files or [])
        needed = [Requirement(text) for text in distribution.requires or []]
        wanted += [one.name for one in needed if one.marker is None or one.marker.evaluate({"extra": ""})]
    sizes["pathweave"] = sum(_size(file) for name in OWN_PACKAGES for file in (root / name).rglob("*"))
    return sizes


def _size(file: Path) -> int:
    return file.stat().st_size if file.is_file() and file.suffix != ".pyc" else 0
