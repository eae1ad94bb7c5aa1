"""Early exits of a bundle's full path: what they save, and what they cost in accuracy."""

from __future__ import annotations

import numpy as np

from benchmarks.runner.run import BenchOptions, Target
from benchmarks.support.reference_bundles import Made, Part, accuracy, load_part
from device_sdk.execution.loaded_plan import LoadedPlan
from device_sdk.profiling.plans import mean_latencies_ms
from device_sdk.runtimes import make_runtime
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.supernet.goal import Goal
from device_sdk.supernet.plan import Plan

EXIT_TARGETS = {
    "exit_latency_ratio": Target(maximum=0.99),  # less than 1, and more than noise
    "exit_accuracy_drop_points": Target(maximum=0.5),
}
# half of what is allowed: cross-validation on the calibration data has the drop on new samples up to twice as large
EXITS_GOAL = Goal(optimise="latency_ms", max_drop=0.005)
TIMED_SAMPLES, QUICK_SAMPLES = 1000, 100


def exit_early(made: Made, options: BenchOptions) -> Part:
    """Exits and thresholds are chosen on test.zip#calibration and #search; the figures are those on #report."""
    state = options.work_folder / "exits"
    with AdaptiveModel.open(made.folder, state_folder=state) as model:
        calibration, search, report = (load_part(options, part, model) for part in ("calibration", "search", "report"))
        images = np.concatenate([calibration.images, search.images])  # nothing was searched: both are free
        labels = np.concatenate([calibration.labels, search.labels])
        without = accuracy(model, report)
        found = model.adapt(images, EXITS_GOAL, {"exits"}, labels, progress=options.progress)
        with_exits = accuracy(model, report)
        samples = model.prepare(report.images[: QUICK_SAMPLES if options.quick else TIMED_SAMPLES])
        runtime = make_runtime("onnxruntime", threads=1)
        plans = [LoadedPlan(model.bundle, runtime, plan) for plan in (found.plan, Plan(found.plan.subnet))]
        with_ms, without_ms = mean_latencies_ms(plans, samples)
        exits = {exit_.id: exit_ for exit_ in model.bundle.manifest.exits}
    figures = {
        "exit_latency_ratio": with_ms / without_ms,
        "exit_accuracy_drop_points": without - with_exits,
    }
    row: dict[str, object] = {
        "what": "early exits on the full path",
        "mean_ms": with_ms,
        "without_exits_ms": without_ms,
        "accuracy": with_exits,
        "accuracy_without_exits": without,
        "share_early_calibration": 100 * found.expected.share_early,
        "thresholds": {choice.exit: choice.threshold for choice in found.plan.exits},
    }
    rows = [{"what": f"exit {exit_.id}", **_described(exit_.accuracy, exit_.macs)} for exit_ in exits.values()]
    return Part(figures, [row, *rows])


def _described(accuracy_search: float | None, macs: int) -> dict[str, object]:
    return {"accuracy_search": None if accuracy_search is None else 100 * accuracy_search, "macs": macs}
