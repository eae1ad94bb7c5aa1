"""The rungs of the ladder that plans are made of: those that nothing plainer beats on the private samples."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from device_sdk.data.inputs import Inputs
from device_sdk.execution.workspace import Workspace
from device_sdk.policies.costs.answers import answer_everywhere
from device_sdk.progress import Progress
from device_sdk.search.ladder import rungs_near
from device_sdk.supernet.cost import MB, Budget, CostModel
from device_sdk.supernet.plan import Subnet
from device_sdk.supernet.requirement import Requirement

_SAMPLES = 128  # at least, where there are so many, that rungs are compared on
_LIMIT_S = 20.0  # spent at most
_BATCH = 16


def best_rungs(
    workspace: Workspace,
    costs: CostModel,
    inputs: Inputs,
    labels: npt.NDArray[np.int64],
    positions: npt.NDArray[np.int64],
    requirement: Requirement,
    *,
    progress: Progress,
) -> list[Subnet]:
    """Rungs that keep the memory limit and that no faster one matches in accuracy, the slowest first.

    Compared on some of the samples at ``positions``; ``labels`` [count] are of all ``inputs``. The most promising rungs
    for the required latency are tried first, and no further ones once they have taken 20 seconds by prediction.
    """
    few = positions[:: max(1, len(positions) // _SAMPLES)]
    samples, right = inputs.subset(few), labels[few]
    memory_mb = None if requirement.peak_bytes is None else requirement.peak_bytes / MB
    full_ms = costs.latency_ms(workspace.supernet.original)
    latency_ms = full_ms if requirement.latency_ms is None else min(requirement.latency_ms, full_ms)
    left_s, tried = _LIMIT_S, list[tuple[float, float, Subnet]]()
    limits = (Budget(latency_ms=limit_ms, memory_mb=memory_mb) for limit_ms in (latency_ms, full_ms))
    ordered = dict.fromkeys(rung for limit in limits for rung in rungs_near(workspace.supernet, costs, limit))
    near = [one for one in ordered if workspace.memory_cap_bytes is None or workspace.fits(one.edges, batch=1)]
    if not workspace.bundle.manifest.preprocessing.resize:  # images of another size cannot be made
        near = [one for one in near if not one.input_size]
    with progress.task("the ladder", len(near)) as task:
        for rung in near:
            took_ms = costs.latency_ms(rung)
            left_s -= len(few) * took_ms / 1e3
            if left_s < 0 and tried:
                break
            answers = answer_everywhere(workspace, rung, samples, right, use_exits=False, batch=_BATCH)
            tried.append((took_ms, float(answers.right(-1).mean()), rung))
            task.advance()
    tried.sort(key=lambda one: (one[0], -one[1]))
    best, kept = -1.0, list[Subnet]()
    for _, accuracy, rung in tried:
        if accuracy > best:
            best = accuracy
            kept.append(rung)
    return kept[::-1]
