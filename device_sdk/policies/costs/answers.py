"""Answers of a subnet and of the exits along it to private samples: the evidence that calibration and planning use."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from device_sdk.data.inputs import Inputs, as_inputs, batches, views
from device_sdk.execution.plan_segments import PlanSegment
from device_sdk.execution.workspace import Workspace
from device_sdk.policies.costs.evidence import Evidence
from device_sdk.policies.deciding.thresholds import ExitSamples, Rights
from device_sdk.runtimes.port import Array, LoadedStretch
from device_sdk.supernet.blocks import Exit
from device_sdk.supernet.cost import CostModel
from device_sdk.supernet.deciders.port import confidence
from device_sdk.supernet.plan import UNREACHABLE_CONFIDENCE, ExitChoice, Subnet


@dataclass(frozen=True)
class Answers:
    """Answers of the exits along a subnet and of its end to private samples.

    ``logits``: of each exit, then of the end, [count, classes]; ``edges``: how many of the subnet's an exit needs.
    """

    subnet: Subnet
    exits: tuple[Exit, ...]
    edges: tuple[int, ...]
    logits: tuple[Array, ...]
    labels: npt.NDArray[np.int64]

    @property
    def evidence(self) -> Evidence:
        """The same as ``expected_cost`` takes it."""
        exits = {
            (self.subnet.edges[:count], exit_.id, exit_.renditions[0].name): logits
            for exit_, count, logits in zip(self.exits, self.edges, self.logits, strict=False)
        }
        return Evidence(self.labels, ends={self.subnet: self.logits[-1]}, exits=exits)

    def part(self, positions: npt.NDArray[np.int64]) -> Answers:
        """The same for the samples at ``positions``."""
        logits = tuple(one[positions] for one in self.logits)
        return replace(self, logits=logits, labels=self.labels[positions])

    def right(self, number: int) -> Rights:
        return np.asarray(self.logits[number].argmax(axis=1) == self.labels)

    def confidences(self, number: int) -> npt.NDArray[np.float64]:
        return confidence(self.logits[number])

    def at_exit(self, number: int, costs: CostModel) -> ExitSamples:
        choice = _choice(self.exits[number])
        return ExitSamples(
            choice=choice,
            confidence=self.confidences(number),
            right=self.right(number),
            reach_ms=costs.reach_ms(self.subnet.edges[: self.edges[number]]),
            branch_ms=costs.exit_latency_ms(choice, self.subnet.input_size),
        )


def _choice(exit_: Exit) -> ExitChoice:
    return ExitChoice(exit_.id, threshold=UNREACHABLE_CONFIDENCE, rendition=exit_.renditions[0].name)


def answer_everywhere(
    workspace: Workspace,
    subnet: Subnet,
    inputs: Inputs | Array,
    labels: npt.NDArray[np.int64] | None,
    *,
    use_exits: bool,
    batch: int,
) -> Answers:
    """Run the subnet once over all samples, batch by batch, and every branch on the features at its cut point.

    ``inputs``: samples, or an array [count, *input] of prepared ones; without ``labels`` [count] the subnet's own
    answers stand in.
    """
    exits = workspace.supernet.exits_along(subnet) if use_exits else ()
    ends = [block.end for _, block in workspace.supernet.walk(subnet)]
    needed = [ends.index(exit_.position) + 1 for exit_ in exits]
    parts: list[PlanSegment] = []
    for exit_, start, until in zip(exits, [0, *needed], needed, strict=False):
        parts += [PlanSegment(subnet.edges[start:until], None), PlanSegment((), _choice(exit_))]
    parts.append(PlanSegment(subnet.edges[needed[-1] if needed else 0 :], None))
    parts = [
        part for part in parts if part.runs
    ]  # of several exits at one cut point only the first has edges before it
    batch = workspace.largest_batch(parts, wanted=batch)
    loaded = workspace.load_segments(parts, batch=batch)
    try:
        runs = [(part, stretch) for part, stretch in zip(parts, loaded.stretches, strict=True) if stretch is not None]
        answers = [_answers(runs, some) for some in batches(as_inputs(inputs), batch, subnet.input_size)]
    finally:
        loaded.close()
    logits = [np.concatenate(one) for one in zip(*answers, strict=True)]
    stand_in = logits[-1].argmax(axis=1) if labels is None else labels
    return Answers(subnet, tuple(exits), tuple(needed), tuple(logits), stand_in)


def answer_views(workspace: Workspace, subnet: Subnet, inputs: Inputs | Array, *, batch: int) -> Array:
    """Logits of the end for all views of ``inputs``, as ``answer_everywhere`` takes them: [views, count, classes]."""
    part = PlanSegment(subnet.edges, None)
    batch = workspace.largest_batch([part], wanted=batch)
    with contextlib.closing(workspace.load_segments([part], batch=batch)) as loaded:
        [stretch] = loaded.stretches
        assert stretch is not None
        answers = [
            np.stack([stretch.run([view])[-1] for view in views(some)])
            for some in batches(as_inputs(inputs), batch, subnet.input_size)
        ]
        return np.concatenate(answers, axis=1)


def _answers(runs: Sequence[tuple[PlanSegment, LoadedStretch]], batch: Array) -> list[Array]:
    """Answers of each branch, then of the end, to ``batch`` [batch, *input]."""
    features, answers = [batch], []
    for part, stretch in runs:
        if part.edges:
            features = stretch.run(features)
        else:
            answers.append(stretch.run(features)[-1])
    return [*answers, features[-1]]
