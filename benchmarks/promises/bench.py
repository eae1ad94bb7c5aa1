"""Promises: how often limits that state a probability hold on new samples, kind by kind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.exits.bounds import logits_of, macs_of
from benchmarks.promises.asking import asking_kind, hybrid_kind
from benchmarks.promises.kinds import Kind, Tried
from benchmarks.promises.planned import planned_kinds
from benchmarks.promises.splits import split_kind
from benchmarks.promises.world import World
from benchmarks.runner.run import BenchOptions, BenchOutcome, Target
from benchmarks.support.bundles import plain_bundle
from device_sdk.data.datasets import load_dataset
from device_sdk.execution.workspace import Workspace
from device_sdk.policies.splitting.path_splits import split_costs
from device_sdk.runtimes import OnnxRuntime
from device_sdk.supernet.cost import Uplink
from pathweave import AdaptiveModel

TARGETS = {
    "kept_minus_stated": Target(minimum=-0.02),
    "cascade_gain_points": Target(minimum=0.0),
    "refused_share": Target(maximum=0.5),
}
DRAWS, QUICK_DRAWS = 200, 10
NETWORKS = tuple(f"resnet{depth}_cifar10" for depth in (20, 32, 44, 56))
_DEVICE_FACTOR, _UPLINK = 10.0, Uplink(10.0)
_QUICK_SAMPLES = 1200


def run(options: BenchOptions) -> BenchOutcome:
    """ResNet-20 to 56 on #report: each draw chooses on 500 samples, cascades on 180, and judges on all others.

    ``asking``: the fewest samples that ResNet-20 has to send to ResNet-56; ``hybrid``: two of the four within a mean
    cost; ``plans``: an accuracy by networks and cascades; ``ee_hi``: one by the exits ResNet-20, 32 and 44 before
    ResNet-56 and asking all four; ``drop``, ``exits``: within 3 points of ResNet-56, by networks and cascades or by
    exits; ``cascade_NN``: the mean latency, of NN % of ResNet-56; ``split``: the fastest split of ResNet-56 in few
    bits. ``kept_minus_stated``: of the worst kind. ``cascade_gain_points``: of all budgets, over the most accurate
    network within each, in hindsight.
    """
    report = load_dataset(f"{options.data_folder / 'cifar10' / 'test.zip'}#report")
    with AdaptiveModel.open(plain_bundle(options), state_folder=options.work_folder / "promises") as model:
        costs = model.profile(progress=options.progress).cost_model()
        data = report.relabelled(model.bundle.manifest.task.class_names)
        data = data.take(range(_QUICK_SAMPLES)) if options.quick else data
        images = model.prepare(data.images)
        world = _world(options.data_folder / "pretrained", images, data.labels)
        workspace = Workspace(model.bundle, OnnxRuntime())
        ways = split_costs(
            workspace.supernet,
            workspace.supernet.original,
            device=costs.slowed(_DEVICE_FACTOR),
            server=costs,
            uplink=_UPLINK,
            widths=tuple(range(8, 0, -1)),
        )
        split = split_kind(workspace, ways, images, data.labels)
    kinds = [asking_kind(world), hybrid_kind(world), *planned_kinds(world), split]
    found = _all_tried(kinds, len(data.labels), options)
    figures, table = dict[str, float](), list[dict[str, object]]()
    for kind in kinds:
        some = found[kind.name]
        kept, saved, refused = (float(np.mean(one)) for one in zip(*map(_row, some), strict=True))
        figures |= {f"kept_{kind.name}": kept, f"saved_{kind.name}": saved}
        row = {"kind": kind.name, "chosen_on": kind.chosen_on, "stated": kind.stated, "kept": kept, "saved": saved}
        table.append(row | {"refused": refused})
    figures["kept_minus_stated"] = min(figures[f"kept_{kind.name}"] - kind.stated for kind in kinds)
    gains = [figures[f"saved_{kind.name}"] for kind in kinds if kind.name.startswith("cascade")]
    figures["cascade_gain_points"] = 100 * float(np.mean(gains))
    figures["refused_share"] = float(np.mean([one.refused for some in found.values() for one in some]))
    return BenchOutcome(figures, table, data="cifar10/test.zip: #report, drawn again and again")


def _row(one: Tried) -> tuple[bool, float, bool]:
    return one.kept, one.saved, one.refused


def _all_tried(kinds: list[Kind], count: int, options: BenchOptions) -> dict[str, list[Tried]]:
    """The outcomes of each kind, every draw of another permutation of ``count`` samples."""
    random, draws = np.random.default_rng(0), QUICK_DRAWS if options.quick else DRAWS
    found: dict[str, list[Tried]] = {}
    with options.progress.task("draw", draws * len(kinds)) as task:
        for kind in kinds:
            for _ in range(draws):
                order = random.permutation(count)
                size = min(kind.chosen_on, count // 2)
                found.setdefault(kind.name, []).append(kind.tried(order[:size], order[size:]))
                task.advance()
    return found


def _world(weights: Path, images: npt.NDArray[np.float32], labels: npt.NDArray[np.int64]) -> World:
    """The published networks with their shares of the last one's operations as latencies."""
    macs = {name: macs_of(weights, name, images) for name in NETWORKS}
    shares = {name: own / macs[NETWORKS[-1]] for name, own in macs.items()}
    return World({name: logits_of(weights, name, images) for name in NETWORKS}, shares, labels)
