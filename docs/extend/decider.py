"""A decider of your own: hard is a sample whose two largest logits lie close together.

``python docs/extend/decider.py BUNDLE`` sets its threshold on drawn inputs so that a tenth of them gets no answer.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import ClassVar

import msgspec
import numpy as np

from device_sdk.bundles.bundle import Bundle
from device_sdk.bundles.runnable import golden_inputs
from device_sdk.execution.workspace import Workspace
from device_sdk.policies.costs.evidence import Evidence
from device_sdk.policies.costs.expected_cost import expected_cost
from device_sdk.policies.costs.route import Route
from device_sdk.policies.costs.threshold_sweep import Ranking
from device_sdk.runtimes import make_runtime, runs_on
from device_sdk.supernet.cost import CostModel, EdgeCost
from device_sdk.supernet.deciders.port import Array, Scores, Thresholded
from device_sdk.supernet.plan import Abstain, Plan

SAMPLES, ABSTAINED = 200, 20


class LogitGap(Thresholded, frozen=True, tag="logit_gap"):
    """Hard is a sample whose two largest logits differ by less than ``threshold``."""

    # in the SDK: a file in device_sdk/supernet/deciders, a name in ``Decider`` of supernet/plan.py, and a case in
    # tests/contract/write_vectors.py. Plans that name it can then be stored and read, and the planner tries it.
    easiest: ClassVar[float] = 1e30  # finite, since plans are stored as JSON

    def score(self, logits: Array) -> Scores:
        """See the port."""
        ordered = np.sort(logits.astype(np.float64), axis=1)
        return np.asarray(ordered[:, -1] - ordered[:, -2])


def main(folder: Path) -> None:
    """Judge a plan that abstains by the decider, on what the bundle's full model answers."""
    workspace = Workspace(Bundle.open(folder, accepts=runs_on()), make_runtime(threads=1))
    supernet = workspace.supernet
    inputs = golden_inputs(supernet.cut_points[0], seed=1, batch=SAMPLES)[0]
    plan = Plan(supernet.original)
    logits = workspace.load_plan(plan, batch=SAMPLES).run(inputs).output
    evidence = Evidence(logits.argmax(axis=1), ends={plan.subnet: logits})
    costs = CostModel({edge: EdgeCost(1.0, 1.0, 1, 1) for edge in supernet.edges})
    ranking = Ranking.of(Route.to_end(supernet, plan, evidence, costs), LogitGap(0.0))
    assert ranking is not None
    number = int(np.searchsorted(ranking.hardest, ABSTAINED))
    chosen = msgspec.structs.replace(plan, hard=Abstain(ranking.decider(number)))
    supernet.check_plan(chosen)
    cost = expected_cost(supernet, chosen, evidence, costs)
    print(msgspec.json.encode(chosen.hard).decode(), f"abstains on {cost.share_abstained:.1%}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
