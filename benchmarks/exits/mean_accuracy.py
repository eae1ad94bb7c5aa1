"""Mean accuracy expectation of sets of exits under memory budgets, by measured latencies."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.exits.networks import ExitNetwork
from benchmarks.exits.sets import BRANCHYNET_EXITS, CONVOLUTIONAL, LINEAR, SPINN_EXITS
from benchmarks.runner.run import BenchOptions, Target
from benchmarks.support.reference_bundles import Made, Part
from device_sdk.execution.workspace import Workspace
from device_sdk.policies.costs.answers import Answers, answer_everywhere
from device_sdk.policies.placement import UNIFORM, ExitCandidate, StopTimes, expectation, place
from device_sdk.progress import Progress
from device_sdk.runtimes import make_runtime
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.supernet.cost import CostModel

FIGURE_TARGETS = {
    "budgets_won": Target(minimum=1.0),
    "gain_over_homogeneous_points_min": Target(minimum=1.0),
    "gain_over_homogeneous_points_max": Target(minimum=5.0),
    "gain_over_single_points_min": Target(minimum=0.0),
}
STOP_TIMES = {"uniform": UNIFORM, "early": StopTimes((0.5, 1.0), (3.0, 1.0)), "late": StopTimes((0.5, 1.0), (1.0, 3.0))}
QUICK_SAMPLES = 300
_OURS, _SINGLE = "branch zoo", "single exit"


@dataclass(frozen=True)
class Pool:
    """Exits that may be kept, timed on this device; their accuracies on the data to choose by, and to judge by.

    ``costs``: what they were timed by.
    """

    chosen_by: tuple[ExitCandidate, ...]
    judged_by: Mapping[str, ExitCandidate]
    full_ms: float
    costs: CostModel

    def only(self, structure: str, count: int) -> Pool:
        """The exits of one structure at up to ``count`` cut points that divide the full model's time evenly."""
        found = [one for one in self.chosen_by if one.exit.partition("-")[2] == structure]
        places = evenly({one.position: one.reach_time for one in found}, count, full_ms=self.full_ms)
        return replace(self, chosen_by=tuple(one for one in found if one.position in places))


@dataclass(frozen=True)
class Kept:
    """A placement: what it promised, and what it has on data that it was not chosen by, in percent."""

    exits: tuple[str, ...]
    memory_bytes: int
    promised: float
    reached: float


def evenly(reach_ms: Mapping[int, float], count: int, *, full_ms: float) -> Collection[int]:
    """Up to ``count`` of the cut points, by when they are reached: the nearest to each share of the full time."""
    chosen: list[int] = []
    for number in range(1, min(count, len(reach_ms)) + 1):
        wanted_ms = full_ms * number / (count + 1)
        left = [position for position in reach_ms if position not in chosen]
        chosen.append(min(left, key=lambda position: abs(reach_ms[position] - wanted_ms)))
    return chosen


def compare(options: BenchOptions, network: ExitNetwork, zoo: Made, rivals: Made) -> Part:
    """The zoo against the rivals, at each budget and distribution of the time."""
    ours = _timed(options, network, zoo)
    theirs = _timed(options, network, rivals, clock=ours.costs)
    linear = {name: theirs.only(name, network.positions) for name in LINEAR}
    candidates = {
        _OURS: ours,
        **{f"linear {name.removeprefix('none-')} at every exit": pool for name, pool in linear.items()},
        "BranchyNet-like": theirs.only(CONVOLUTIONAL, BRANCHYNET_EXITS),
        "SPINN-like": theirs.only(CONVOLUTIONAL, SPINN_EXITS),
    }
    rows: list[dict[str, object]] = [
        {
            "what": f"{network.name}, exit of the {whose}",
            "exit": one.exit,
            "accuracy_calibration": 100 * one.accuracy,
            "accuracy_report": 100 * pool.judged_by[one.exit].accuracy,
            "reach_ms": one.reach_time,
            "branch_ms": one.branch_time,
            "memory_bytes": one.memory_bytes,
        }
        for whose, pool in (("zoo", ours), ("rivals", theirs))
        for one in pool.chosen_by
    ]
    gains: dict[str, list[float]] = {"homogeneous": [], "single": []}
    won = []
    for stop_name, stop in STOP_TIMES.items():
        for budget in network.budgets_bytes:
            kept = {name: _placed(pool, budget, stop) for name, pool in candidates.items()}
            kept[_SINGLE] = _single(ours, budget, stop)
            rows += [_row(network, name, stop_name, budget, one) for name, one in kept.items()]
            best = max(one.reached for name, one in kept.items() if name not in (_OURS, _SINGLE))
            won.append(kept[_OURS].reached >= max(best, kept[_SINGLE].reached))
            gains["homogeneous"].append(kept[_OURS].reached - best)
            gains["single"].append(kept[_OURS].reached - kept[_SINGLE].reached)
    figures = {"budgets_won": float(np.mean(won)), "zoo_exits": float(len(ours.chosen_by))}
    figures["rival_minutes"] = rivals.minutes
    for name, found in gains.items():
        figures[f"gain_over_{name}_points_min"], figures[f"gain_over_{name}_points_max"] = min(found), max(found)
    return Part({network.prefix + name: value for name, value in figures.items()}, rows)


def _timed(options: BenchOptions, network: ExitNetwork, made: Made, *, clock: CostModel | None = None) -> Pool:
    samples = QUICK_SAMPLES if options.quick else None
    state = options.work_folder / f"state-{made.folder.name}"
    return timed_pool(
        network, made.folder, state, options.data_folder, progress=options.progress, samples=samples, clock=clock
    )


def _row(network: ExitNetwork, name: str, stop: str, budget: int, kept: Kept) -> dict[str, object]:
    return {
        "what": f"{network.name} when time is up",
        "exits": name,
        "stop_times": stop,
        "budget_bytes": budget,
        "mae_report": kept.reached,
        "mae_calibration": kept.promised,
        "memory_bytes": kept.memory_bytes,
        "kept": list(kept.exits),
    }


def timed_pool(
    network: ExitNetwork,
    folder: Path,
    state: Path,
    data_folder: Path,
    *,
    progress: Progress,
    samples: int | None = None,
    clock: CostModel | None = None,
) -> Pool:
    """Profile a bundle, and answer at most ``samples`` of both parts of the data at every exit of its full path.

    ``clock``: of another bundle of the same network, whose path and whose overhead of an exit then count: two profiles
    of the same blocks differ by several percent, which moves the expectation more than the exits do.
    """
    with AdaptiveModel.open(folder, state_folder=state) as model:
        costs = model.profile(progress=progress).cost_model()
        if clock is not None:
            costs = msgspec.structs.replace(clock, exit_costs=costs.exit_costs)
        subnet = model.bundle.supernet.original
        workspace = Workspace(model.bundle, make_runtime("onnxruntime", threads=1))

        def candidates(part: str) -> list[ExitCandidate]:
            found = network.held_out_part(model, part, data_folder, progress=progress)
            tensors, labels = model.prepare(found.images[:samples]), found.labels[:samples]
            answers = answer_everywhere(workspace, subnet, tensors, labels, use_exits=True, batch=64)
            return _candidates(_among_present(answers) if network.among_present else answers, costs)

        chosen_by, judged_by = candidates("calibration"), candidates("report")
    return Pool(tuple(chosen_by), {one.exit: one for one in judged_by}, costs.latency_ms(subnet), costs)


def _among_present(answers: Answers) -> Answers:
    """The same with no class possible but those of the labels."""
    absent = np.ones(answers.logits[-1].shape[1], dtype=bool)
    absent[np.unique(answers.labels)] = False
    return replace(answers, logits=tuple(np.where(absent, -np.inf, logits) for logits in answers.logits))


def _candidates(answers: Answers, costs: CostModel) -> list[ExitCandidate]:
    found = []
    for number, exit_ in enumerate(answers.exits):
        one = answers.at_exit(number, costs)
        accuracy, size = float(one.right.mean()), costs.exit_bytes(one.choice)
        found.append(ExitCandidate(exit_.id, exit_.position, accuracy, one.reach_ms, one.branch_ms, size))
    return found


def _placed(pool: Pool, budget_bytes: int, stop: StopTimes) -> Kept:
    placement = place(pool.chosen_by, full_time=pool.full_ms, memory_bytes=budget_bytes, stop_times=stop)
    return _judged(pool, [one for one in pool.chosen_by if one.exit in placement.exits], stop)


def _single(pool: Pool, budget_bytes: int, stop: StopTimes) -> Kept:
    fitting = [one for one in pool.chosen_by if one.memory_bytes <= budget_bytes]
    best = max(fitting, key=lambda one: expectation([one], full_time=pool.full_ms, stop_times=stop), default=None)
    return _judged(pool, [] if best is None else [best], stop)


def _judged(pool: Pool, kept: Sequence[ExitCandidate], stop: StopTimes) -> Kept:
    kept = sorted(kept, key=lambda one: one.position)
    judged = [pool.judged_by[one.exit] for one in kept]
    promised, reached = (100 * expectation(found, full_time=pool.full_ms, stop_times=stop) for found in (kept, judged))
    return Kept(tuple(one.exit for one in kept), sum(one.memory_bytes for one in kept), promised, reached)
