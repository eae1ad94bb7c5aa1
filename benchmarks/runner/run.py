"""The bench runner: finds a benchmark, runs it, compares it with its targets and stores the result.

A measurement is a module ``benchmarks/NAME.py``, or ``benchmarks/NAME/bench.py`` beside helpers of its own, dashes as
underscores, with ``TARGETS: dict[str, Target]`` and ``run(options: BenchOptions) -> BenchOutcome``. Its result is
written unchanged to ``NAME.json`` (``NAME-quick.json`` for ``--quick``), missed targets included.
"""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import json
import math
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import msgspec

from device_sdk.commands.command_line import to_json
from device_sdk.errors import DataError
from device_sdk.files.atomic import write_atomically
from device_sdk.machine import usable_cores
from device_sdk.progress import Progress

PACKAGE = "benchmarks"
LIBRARIES = ("pathweave", "numpy", "onnxruntime", "torch", "onnx", "torchvision", "timm", "scikit-learn")


@dataclass(frozen=True)
class BenchOptions:
    """The arguments of a benchmark. ``work_folder`` is empty at the start and deleted afterwards."""

    quick: bool
    data_folder: Path
    work_folder: Path
    progress: Progress


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The required range of a figure, bounds included."""

    minimum: float | None = None
    maximum: float | None = None

    def holds(self, value: float | None) -> bool:
        """True if ``value`` is in the range; False for a missing or non-finite figure."""
        if value is None or not math.isfinite(value):
            return False
        return (self.minimum is None or value >= self.minimum) and (self.maximum is None or value <= self.maximum)

    def __str__(self) -> str:
        bounds = (("at least", self.minimum), ("at most", self.maximum))
        return ", ".join(f"{word} {bound:g}" for word, bound in bounds if bound is not None)


@dataclass(frozen=True)
class BenchOutcome:
    """The outcome of a benchmark: named figures, the rows behind them, and their data."""

    figures: Mapping[str, float]
    table: list[dict[str, object]]
    data: str


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The environment that figures depend on. Contains no host or user name."""

    cpu: str
    cores: int
    os: str
    python: str
    libraries: dict[str, str]


class BenchResult(msgspec.Struct, frozen=True, kw_only=True):
    """The stored result of one run of a benchmark. ``missed`` names the figures outside their target.

    A figure that came out as not a number is ``None`` once it has been in a file.
    """

    bench: str
    quick: bool
    commit: str
    machine: Machine
    data: str
    figures: dict[str, float | None]
    table: list[dict[str, Any]]
    seconds: float
    targets: dict[str, Target]
    missed: list[str]


class Benchmark(Protocol):
    """A benchmark: a module with these two names."""

    TARGETS: Mapping[str, Target]

    def run(self, options: BenchOptions) -> BenchOutcome:
        """Measure."""


def benchmark_names(package: str = PACKAGE) -> list[str]:
    """The names of all benchmarks, sorted. Imports only the package, not the benchmarks."""
    folder = package_folder(package)
    found = [path.stem for path in folder.glob("*.py")] + [path.parent.name for path in folder.glob("*/bench.py")]
    return sorted(name.replace("_", "-") for name in found if not name.startswith("_"))


def benchmark_purpose(name: str, package: str = PACKAGE) -> str:
    """The first line of a benchmark's docstring, read without importing it."""
    source = package_folder(package) / f"{name.replace('-', '_')}.py"
    if not source.exists():
        source = source.with_suffix("") / "bench.py"
    docstring = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8")))
    return docstring.splitlines()[0] if docstring else ""


def load_benchmark(name: str, package: str = PACKAGE) -> Benchmark:
    """Import one of `benchmark_names`."""
    module = name.replace("-", "_")
    if not (package_folder(package) / f"{module}.py").exists():
        module += ".bench"
    return cast(Benchmark, importlib.import_module(f"{package}.{module}"))


def run_benchmark(
    benchmark: Benchmark,
    *,
    name: str,
    quick: bool,
    data_folder: Path,
    progress: Progress,
    clock: Callable[[], float] = time.monotonic,
) -> BenchResult:
    """Run a benchmark in an empty folder and record its environment."""
    started_s = clock()
    with tempfile.TemporaryDirectory(prefix="pathweave-bench-") as work:
        outcome = benchmark.run(
            BenchOptions(quick=quick, data_folder=data_folder, work_folder=Path(work), progress=progress)
        )
    return BenchResult(
        bench=name,
        quick=quick,
        commit=commit_of(package_folder(PACKAGE).parent),
        machine=describe_machine(),
        data=outcome.data,
        figures={figure: float(value) for figure, value in outcome.figures.items()},
        table=json.loads(to_json(outcome.table)),  # numpy values become plain ones
        seconds=round(clock() - started_s, 1),
        targets=dict(benchmark.TARGETS),
        missed=missed_targets(outcome.figures, benchmark.TARGETS),
    )


def missed_targets(figures: Mapping[str, float], targets: Mapping[str, Target]) -> list[str]:
    """The figures outside their target or missing, in the order of ``targets``."""
    return [figure for figure, target in targets.items() if not target.holds(figures.get(figure))]


def write_result(result: BenchResult, folder: Path) -> Path:
    """Write a result to ``folder`` and return its file; NaN and infinity become null.

    Raises:
        StorageError: the file could not be written.
    """
    path = folder / f"{result.bench}{'-quick' if result.quick else ''}.json"
    write_atomically(path, msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")
    return path


def read_results(folder: Path) -> list[BenchResult]:
    """All results of a folder, sorted by file name.

    Raises:
        DataError: there are none, or one is not a result.
    """
    results = []
    for path in sorted(folder.glob("*.json")):
        try:
            results.append(msgspec.json.decode(path.read_bytes(), type=BenchResult))
        except (msgspec.DecodeError, OSError) as error:
            raise DataError(f"{path} is not a bench result: {error}", hint="run that bench again") from error
    if not results:
        raise DataError(f"there are no bench results in {folder}", hint="run one of: python -m benchmarks list")
    return results


def package_folder(package: str) -> Path:
    """The folder that holds the measurements, which a checkout has beside this package.

    Raises:
        DataError: this is an installed Pathweave, without the measurements.
    """
    beside = Path(__file__).parents[1]
    try:
        found = importlib.import_module(package)
    except ModuleNotFoundError:
        if not (beside / package / "__init__.py").exists():
            raise DataError(
                "there are no measurements in an installed Pathweave", hint="clone it, and try there"
            ) from None
        sys.path.append(str(beside))
        found = importlib.import_module(package)
    return Path(next(iter(found.__path__)))


def commit_of(repository: Path) -> str:
    """The checked-out commit, with ``-dirty`` if files outside the results changed, or ``unknown``."""
    if not (repository / ".git").exists():  # installed: a repository around the environment is not ours
        return "unknown"
    revision = git_output(repository, "rev-parse", "HEAD")
    changes = git_output(repository, "status", "--porcelain", "--untracked-files=no", ":(exclude)benchmarks/results")
    return f"{revision or 'unknown'}{'-dirty' if changes else ''}"


def git_output(repository: Path, *arguments: str) -> str:
    """Standard output of a git command; empty if it failed, or there is no git."""
    try:
        done = subprocess.run(["git", *arguments], cwd=repository, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def describe_machine() -> Machine:
    """The machine that this process runs on."""
    return Machine(
        cpu=_cpu_model(),
        cores=usable_cores(),
        os=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        libraries={name: version for name in LIBRARIES if (version := _version(name))},
    )


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor() or "unknown")


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
