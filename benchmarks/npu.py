"""NPU: the share of 35 networks that Qualcomm's compiler takes, and the accuracy of its emulator against int8 here."""

from __future__ import annotations

import importlib.util

from benchmarks.providers.npu import NETWORKS, npu_figures
from benchmarks.runner.run import BenchOptions, BenchOutcome, Target

_DROP = "htp_accuracy_drop_points"
TARGETS = {"htp_macs_assigned": Target(minimum=0.90), _DROP: Target(maximum=0.5)}


def run(options: BenchOptions) -> BenchOutcome:
    """Compile every block of 35 networks, and answer images along the original paths of two. No latency is measured.

    Raises:
        ModuleNotFoundError: the compiler is not installed.
    """
    if importlib.util.find_spec("onnxruntime_qnn") is None:
        raise ModuleNotFoundError("the compiler for NPUs is not here: pip install 'pathweave[qnn]'")
    with options.progress.task("NPU", 1.0 if options.quick else len(NETWORKS) + 2) as task:
        found = npu_figures(options.data_folder, quick=options.quick, done=lambda _: task.advance())
    drops = [value for name, value in found.figures.items() if name.startswith(f"{_DROP}_")]
    figures = found.figures | ({_DROP: max(drops)} if drops else {})
    return BenchOutcome(figures, found.rows, data="cifar10/test.zip, imagenette/val.zip: #report")
