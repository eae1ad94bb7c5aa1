"""Running a plan: segment by segment, so that what follows a taken exit is really never computed.

A segment is the stretch from one exit of the plan to the next together with the branch at its end, composed into one
model (docs/bundle_format.md). Samples that an exit answers leave the batch; the others go on, here or at a server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from device_sdk.bundles.bundle import Bundle
from device_sdk.execution.confidence import confidence
from device_sdk.graph import Edge, ExitChoice, Plan, Supernet
from device_sdk.runtimes.port import Array, Runtime

RemoteTail = Callable[[Sequence[Array]], Array | None]
"""Has the tensors at the split run to the end elsewhere: logits [batch, classes], or None if that failed."""


@dataclass(frozen=True)
class Outcome:
    """What a plan answers to a batch.

    ``output``: logits [batch, classes]; ``answered_by`` [batch]: the position in the plan's exits of the one that
    answered; their number plus ``AT_END``, ``AT_SERVER`` or ``AFTER_FAILURE`` where it was no exit.
    """

    output: Array
    answered_by: npt.NDArray[np.int64]


AT_END = 0  # the end of the subnet, here
AT_SERVER = 1  # the end of the subnet, at the server
AFTER_FAILURE = 2  # the end of the subnet, here, since the server did not answer


@dataclass(frozen=True)
class PlanSegment:
    """The edges of a segment, the exit at its end, and whether the path may cross to a server there."""

    edges: tuple[Edge, ...]
    exit: ExitChoice | None
    split: bool = False


class LoadedPlan:
    """A plan that is ready to run. ``run`` may be called from several threads at once.

    What follows a split is loaded too: it runs here when there is no server, or when it fails.

    Raises:
        UsageError: the plan does not fit the bundle's graph.
        BlobError, CompositionError, RuntimeFailedError: a segment does not load.
    """

    def __init__(self, bundle: Bundle, runtime: Runtime, plan: Plan) -> None:
        bundle.supernet.check_plan(plan)
        self._exits = len(plan.exits)
        self._segments = [
            (segment, runtime.load(bundle.stretch(segment.edges, segment.exit)) if segment.edges else None)
            for segment in segments(bundle.supernet, plan)
        ]

    def run(self, tensor: Array, remote_tail: RemoteTail | None = None) -> Outcome:
        """Answer a batch [batch, *input]; ``remote_tail`` goes on behind the plan's split, if it has one.

        Raises:
            RuntimeFailedError: the runtime failed.
        """
        [(_, first), *others] = self._segments
        if first is None or others:
            return self._run_segments(tensor, remote_tail)
        output = first.run([tensor])[-1]
        return Outcome(output, np.zeros(len(output), dtype=np.int64))

    def _run_segments(self, tensor: Array, remote_tail: RemoteTail | None) -> Outcome:
        features: list[Array] = [tensor]
        rest = np.arange(len(tensor))  # the samples that nobody has answered yet
        answers = _Answers(len(tensor))
        end = AT_END
        number = 0
        for segment, stretch in self._segments:
            if stretch is not None:
                features = stretch.run(features)
            if segment.exit is not None:
                *features, logits = features
                sure = confidence(logits) >= segment.exit.threshold
                answers.put(rest[sure], logits[sure], number)
                number += 1
                rest, features = rest[~sure], [feature[~sure] for feature in features] if sure.any() else features
                if not len(rest):
                    break
            if segment.split and remote_tail is not None:
                remote = remote_tail(features)
                if remote is not None:
                    answers.put(rest, remote, self._exits + AT_SERVER)
                    break
                end = AFTER_FAILURE
        else:
            answers.put(rest, features[-1], self._exits + end)
        return answers.outcome()

    def close(self) -> None:
        """Free the sessions. May be called twice."""
        for _, stretch in self._segments:
            if stretch is not None:
                stretch.close()


class _Answers:
    """The answers to a batch as they come in."""

    def __init__(self, batch: int) -> None:
        self._output: Array | None = None
        self._answered_by = np.zeros(batch, dtype=np.int64)

    def put(self, samples: npt.NDArray[np.int64], logits: Array, who: int) -> None:
        if self._output is None:
            self._output = np.empty((len(self._answered_by), *logits.shape[1:]), dtype=logits.dtype)
        self._output[samples] = logits
        self._answered_by[samples] = who

    def outcome(self) -> Outcome:
        assert self._output is not None
        return Outcome(self._output, self._answered_by)


def segments(supernet: Supernet, plan: Plan) -> list[PlanSegment]:
    """The segments of ``plan``, in order; only the first can be without edges: where it is split at the input."""
    exits = {supernet.exit(choice.exit).position: choice for choice in plan.exits}
    split = plan.split.position if plan.split is not None else None
    found = [PlanSegment((), None, split=True)] if split == 0 else []
    edges: list[Edge] = []
    for edge, block in supernet.walk(plan.subnet):
        edges.append(edge)
        if block.end in exits or block.end == split:
            found.append(PlanSegment(tuple(edges), exits.get(block.end), split=block.end == split))
            edges = []
    found.append(PlanSegment(tuple(edges), None))
    return found
