"""Joint exits: what exits save that learned with a copy of ResNet-56, against exits on the network as it is.

Both are packaged without training, with the weights of zoo/, and chosen by ``adapt`` on #calibration and #search for
the least mean latency at half a point less accuracy; latency and accuracy are those on #report, beside ResNet-56 alone.
The exits on the frozen network are 31 of the zoo's structures, linear heads among them; ``linear`` may use these alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from benchmarks.exits.networks import RESNET56
from benchmarks.exits.sets import zoo_bundle
from benchmarks.runner.run import BenchOptions, BenchOutcome, Target
from benchmarks.support.bundles import ZOO
from benchmarks.support.exit_latency import EXITS_GOAL, QUICK_SAMPLES, TIMED_SAMPLES
from benchmarks.support.paired import bootstrap_points
from benchmarks.support.reference_bundles import Made, answers, load_part
from device_sdk.execution.loaded_plan import LoadedPlan
from device_sdk.profiling.plans import mean_latencies_ms
from device_sdk.runtimes import make_runtime
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.supernet.goal import Kind
from device_sdk.supernet.plan import Plan
from packager.inputs.job import load_job
from packager.joint_exits.pipeline import package_with_joint_exits

TARGETS = {
    "exit_latency_ratio": Target(maximum=0.65),
    "exit_accuracy_drop_points": Target(maximum=0.5),
    "over_frozen_exits": Target(maximum=0.9),
}
RECIPE = "resnet56-cifar10-joint-exits.toml"
LINEAR = ("none-p1", "none-p2", "none-p4")


def run(options: BenchOptions) -> BenchOutcome:
    """``over_frozen_exits``: latency of the plan with joint exits over that of the plan with exits on the frozen trunk.

    ``copy_kilobytes``: of the blocks that learned and their exits, which a device holds beside or instead of the model.
    """
    made, frozen = _joint_bundle(options), zoo_bundle(options, RESNET56)
    joint = _leave_early(made, options, "joint", {"subnets", "exits"})
    plain = _leave_early(frozen, options, "frozen", {"exits"})
    linear = _leave_early(frozen, options, "linear", {"exits"}, structures=LINEAR)
    figures = {
        "exit_latency_ratio": joint.ratio,
        "exit_accuracy_drop_points": joint.drop,
        "exit_accuracy_drop_high": joint.interval[1],
        "frozen_latency_ratio": plain.ratio,
        "frozen_accuracy_drop_points": plain.drop,
        "linear_latency_ratio": linear.ratio,
        "linear_accuracy_drop_points": linear.drop,
        "over_frozen_exits": joint.ratio / plain.ratio,
        "copy_kilobytes": joint.exit_bytes / 1e3,
        "frozen_exit_kilobytes": plain.exit_bytes / 1e3,
    }
    data = "cifar10/test.zip#report; chosen on #calibration and #search"
    return BenchOutcome(figures, [joint.row(), plain.row(), linear.row()], data=data)


class _Left:
    """A plan that answers early, on #report: ``ratio`` of ResNet-56's mean latency, ``drop`` of its accuracy."""

    def __init__(
        self,
        name: str,
        plan: Plan,
        latencies_ms: tuple[float, float],
        right: tuple[np.ndarray, np.ndarray],
        accuracies: Mapping[str, float | None],
        exit_bytes: int,
    ) -> None:
        self.name, self.plan, self.latencies_ms, self.exit_bytes = name, plan, latencies_ms, exit_bytes
        difference = right[1].astype(np.float64) - right[0]
        self.ratio = latencies_ms[0] / latencies_ms[1]
        self.drop, self.interval = 100 * float(difference.mean()), bootstrap_points(difference)
        self._accuracy = 100 * float(right[0].mean())
        self._accuracies = accuracies

    def row(self) -> dict[str, object]:
        """For the report."""
        return {
            "what": f"exits: {self.name}",
            "mean_ms": self.latencies_ms[0],
            "without_exits_ms": self.latencies_ms[1],
            "accuracy": self._accuracy,
            "drop_interval": list(self.interval),
            "thresholds": {choice.exit: choice.threshold for choice in self.plan.exits if choice.decides},
            "exit_accuracy_calibration": dict(self._accuracies),
        }


def _leave_early(
    made: Made, options: BenchOptions, name: str, kinds: Collection[Kind], structures: Collection[str] | None = None
) -> _Left:
    state = options.work_folder / f"state-{name}"
    with AdaptiveModel.open(made.folder, state_folder=state) as model:
        if structures is not None:
            model.exits.hold(
                [one.id for one in model.bundle.manifest.exits if one.branch.removesuffix("-merged") in structures]
            )
        calibration, search, report = (load_part(options, part, model) for part in ("calibration", "search", "report"))
        images = np.concatenate([calibration.images, search.images])
        labels = np.concatenate([calibration.labels, search.labels])
        supernet = model.bundle.supernet
        full = _right(model, report)
        found = model.adapt(images, EXITS_GOAL, kinds, labels, progress=options.progress)
        early = _right(model, report)
        samples = model.prepare(report.images[: QUICK_SAMPLES if options.quick else TIMED_SAMPLES])
        runtime = make_runtime("onnxruntime", threads=1)
        plans = [LoadedPlan(model.bundle, runtime, plan) for plan in (found.plan, Plan(supernet.original))]
        early_ms, full_ms = mean_latencies_ms(plans, samples)
        learned = found.plan.subnet != supernet.original
        blocks = [edge.block for edge in found.plan.subnet.edges[: _last_exit(model, found.plan)]] if learned else []
        parts = [supernet.block(one) for one in blocks] + [supernet.exit(one.exit) for one in found.plan.exits]
        accuracies = {one.id: one.accuracy for one in model.bundle.manifest.exits}
    exit_bytes = sum(one.renditions[0].size_bytes for one in parts)
    return _Left(name, found.plan, (early_ms, full_ms), (early, full), accuracies, exit_bytes)


def _last_exit(model: AdaptiveModel, plan: Plan) -> int:
    """The number of edges up to the last exit of ``plan``."""
    supernet = model.bundle.supernet
    last = max((supernet.exit(one.exit).position for one in plan.exits), default=0)
    return sum(block.end <= last for _, block in supernet.walk(plan.subnet))


def _right(model: AdaptiveModel, data: object) -> np.ndarray:
    found = np.concatenate([answer.output.argmax(axis=1) for answer in answers(model, data)])  # type: ignore[arg-type]
    return np.asarray(found == data.labels)  # type: ignore[attr-defined]


def _joint_bundle(options: BenchOptions) -> Made:
    weights = options.data_folder / "pretrained" / RESNET56.weights
    few = str(options.data_folder / f"{RESNET56.held_out}#calibration")
    job = load_job(
        RESNET56.model,
        weights=weights,
        training=few,
        validation=few,
        recipe_path=ZOO / RECIPE,
        progress=options.progress,
    )
    packaged = package_with_joint_exits(job, options.work_folder / "joint", progress=options.progress).packaged
    return Made(job.model, weights, packaged.folder, packaged.seconds / 60)
