"""Promises: how often limits that state a probability hold on new samples, kind by kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.exits.bounds import Cascade, logits_of, networks_alone
from benchmarks.runner.run import BenchOptions, BenchOutcome, Target
from benchmarks.support.bundles import plain_bundle
from device_sdk.data.datasets import load_dataset
from device_sdk.execution.workspace import Workspace
from device_sdk.policies.deciding.thresholds import choose_exits, fewest_asked
from device_sdk.policies.measured_splits.fastest import SplitLimits, fastest
from device_sdk.policies.measured_splits.measuring import SplitScore, caution_of
from device_sdk.policies.scores import score_of
from device_sdk.policies.splitting.path_splits import PacketCoding, SplitCost, split_costs
from device_sdk.runtimes import OnnxRuntime
from device_sdk.supernet.cost import Uplink
from device_sdk.supernet.deciders.port import confidence
from pathweave import AdaptiveModel

TARGETS = {"kept_minus_stated": Target(minimum=-0.02)}
DRAWS, QUICK_DRAWS = 200, 20
CHOSEN_ON = 500  # samples that choose; all others judge
CERTAINTY, TWO_ERRORS = 0.9, 0.977  # what exits promise: two standard errors of their drop
ASKING_ACCURACY, EXITS_DROP, SPLIT_DROP = 0.92, 0.02, 0.01
_EVERY = 4  # cut points
_DEVICE_FACTOR, _UPLINK = 10.0, Uplink(10.0)
_QUICK_SAMPLES = 600

Kept = Callable[[npt.NDArray[np.intp], npt.NDArray[np.intp]], tuple[bool, float]]


@dataclass(frozen=True)
class Kind:
    """A kind of limit. ``kept``: given the places of the samples that choose and of those that judge, whether the
    limit was kept, and what the choice saves (the share of samples not asked about, or of the latency)."""

    name: str
    stated: float
    kept: Kept


def run(options: BenchOptions) -> BenchOutcome:
    """ResNet-20 to 56 on #report: each draw chooses on some samples and judges on all others.

    ``asking``: the fewest samples that ResNet-20 has to send to ResNet-56; ``exits``: ResNet-20, 32 and 44 as exits
    before ResNet-56; ``split``: the fastest split of ResNet-56 in few bits. ``kept_minus_stated``: of the worst kind.
    """
    report = load_dataset(f"{options.data_folder / 'cifar10' / 'test.zip'}#report")
    folder = plain_bundle(options)
    state = options.work_folder / "promises"
    with AdaptiveModel.open(folder, state_folder=state) as model:
        costs = model.profile(progress=options.progress).cost_model()
        data = report.relabelled(model.bundle.manifest.task.class_names)
        data = data.take(range(_QUICK_SAMPLES)) if options.quick else data
        images = model.prepare(data.images)
        kinds = [_asking(options, images, data.labels), _exits(options, images, data.labels)]
        workspace = Workspace(model.bundle, OnnxRuntime())
        ways = split_costs(
            workspace.supernet,
            workspace.supernet.original,
            device=costs.slowed(_DEVICE_FACTOR),
            server=costs,
            uplink=_UPLINK,
            widths=tuple(range(8, 0, -1)),
        )
        kinds.append(_split(workspace, ways, images, data.labels))
    random, count = np.random.default_rng(0), len(data.labels)
    figures, table = dict[str, float](), list[dict[str, object]]()
    with options.progress.task("draw", (QUICK_DRAWS if options.quick else DRAWS) * len(kinds)) as task:
        for kind in kinds:
            found = []
            for _ in range(QUICK_DRAWS if options.quick else DRAWS):
                order = random.permutation(count)
                size = min(CHOSEN_ON, count // 2)
                found.append(kind.kept(order[:size], order[size:]))
                task.advance()
            share, saved = float(np.mean([one for one, _ in found])), float(np.mean([one for _, one in found]))
            figures |= {f"kept_{kind.name}": share, f"saved_{kind.name}": saved}
            table.append({"kind": kind.name, "stated": kind.stated, "kept": share, "saved": saved})
    figures["kept_minus_stated"] = min(figures[f"kept_{kind.name}"] - kind.stated for kind in kinds)
    return BenchOutcome(figures, table, data="cifar10/test.zip: #report, drawn again and again")


def _asking(options: BenchOptions, images: npt.NDArray[np.float32], labels: npt.NDArray[np.int64]) -> Kind:
    folder = options.data_folder / "pretrained"
    small, large = (logits_of(folder, f"resnet{depth}_cifar10", images) for depth in (20, 56))
    eases, here, server = confidence(small), small.argmax(axis=1) == labels, large.argmax(axis=1) == labels

    def kept(chosen: npt.NDArray[np.intp], judged: npt.NDArray[np.intp]) -> tuple[bool, float]:
        limit = fewest_asked(eases[chosen], here[chosen], server[chosen], accuracy=ASKING_ACCURACY, certainty=CERTAINTY)
        if limit is None:
            return True, 0.0  # no promise was made
        asked = eases[judged] < limit
        right = np.where(asked, server[judged], here[judged])
        return bool(right.mean() >= ASKING_ACCURACY), 1 - float(asked.mean())

    return Kind("asking", CERTAINTY, kept)


def _exits(options: BenchOptions, images: npt.NDArray[np.float32], labels: npt.NDArray[np.int64]) -> Kind:
    exits = networks_alone(options, images, labels, 1.0)
    right = logits_of(options.data_folder / "pretrained", "resnet56_cifar10", images).argmax(axis=1) == labels

    def part(places: npt.NDArray[np.intp]) -> Cascade:
        taken = [
            type(one)(one.choice, one.confidence[places], one.right[places], one.reach_ms, one.branch_ms)
            for one in exits
        ]
        return Cascade(tuple(taken), right[places])

    def kept(chosen: npt.NDArray[np.intp], judged: npt.NDArray[np.intp]) -> tuple[bool, float]:
        seen, new = part(chosen), part(judged)
        choices = choose_exits(seen.exits, right_at_end=seen.right_at_end, full_ms=1.0, accuracy_drop=EXITS_DROP)
        accuracy, latency_ms = new.answered({one.exit: one.threshold for one in choices}, 1.0)
        return bool(new.right_at_end.mean() - accuracy <= EXITS_DROP), 1 - latency_ms

    return Kind("exits", TWO_ERRORS, kept)


class _DrawnJudge:
    """Judges splits by the samples of one draw; each way that is measured takes its share of the doubt."""

    def __init__(self, score: SplitScore, chosen: npt.NDArray[np.intp]) -> None:
        self._score, self._chosen = score, chosen
        self._cautions: dict[SplitCost, float] = {}

    def drop(self, cost: SplitCost) -> float:
        """See ``DropJudge``."""
        differences = self._score.differences(cost)[self._chosen]
        if cost.tail:
            self._cautions[cost] = caution_of(differences, CERTAINTY, turn=len(self._cautions) + 1)
        return float(differences.mean())

    def caution(self, cost: SplitCost) -> float:
        """See ``DropJudge``."""
        return self._cautions.get(cost, 0.0)

    def coding(self, position: int, bits: int, per_channel: bool) -> PacketCoding | None:
        """See ``DropJudge``."""
        return self._score.coding(position, bits, per_channel)


def _split(
    workspace: Workspace, ways: Sequence[SplitCost], images: npt.NDArray[np.float32], labels: npt.NDArray[np.int64]
) -> Kind:
    subnet = workspace.supernet.original
    score = SplitScore(workspace, subnet, images, labels, score_of(workspace.bundle.manifest.task))
    few = [one for one in ways if not one.tail or (one.position and one.position % _EVERY == 0)]
    for one in few:
        score.drop(one)  # while the workspace is open

    def kept(chosen: npt.NDArray[np.intp], judged: npt.NDArray[np.intp]) -> tuple[bool, float]:
        limits = SplitLimits(max_drop=SPLIT_DROP, judge=_DrawnJudge(score, chosen))
        best = fastest(few, subnet, limits).best
        return bool(score.differences(best)[judged].mean() <= SPLIT_DROP), 1 - best.latency_ms / few[-1].latency_ms

    return Kind("split", CERTAINTY, kept)
