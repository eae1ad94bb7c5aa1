"""The fastest split of a network in few bits, under a drop of its accuracy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from benchmarks.promises.kinds import CERTAINTY, Kind, Places, Tried
from device_sdk.execution.workspace import Workspace
from device_sdk.policies.deciding.promises import caution_of
from device_sdk.policies.measured_splits.fastest import SplitLimits, fastest
from device_sdk.policies.measured_splits.measuring import SplitScore
from device_sdk.policies.splitting.path_splits import PacketCoding, SplitCost
from device_sdk.tasks import answer_task

SPLIT_DROP = 0.01
_EVERY = 4  # cut points


class _DrawnJudge:
    """Judges splits by the samples of one draw; each way that is measured takes its share of the doubt."""

    def __init__(self, score: SplitScore, chosen: Places) -> None:
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


def split_kind(
    workspace: Workspace, ways: Sequence[SplitCost], images: npt.NDArray[np.float32], labels: npt.NDArray[np.int64]
) -> Kind:
    """Splits of the original network at some of its cut points, in 1 to 8 bits."""
    subnet = workspace.supernet.original
    score = SplitScore(workspace, subnet, images, labels, answer_task(workspace.bundle.manifest.task))
    few = [one for one in ways if not one.tail or (one.position and one.position % _EVERY == 0)]
    for one in few:
        score.drop(one)  # while the workspace is open

    def tried(chosen: Places, judged: Places) -> Tried:
        best = fastest(few, subnet, SplitLimits(max_drop=SPLIT_DROP, judge=_DrawnJudge(score, chosen))).best
        kept = bool(score.differences(best)[judged].mean() <= SPLIT_DROP)
        return Tried(kept, 1 - best.latency_ms / few[-1].latency_ms)

    return Kind("split", tried)
