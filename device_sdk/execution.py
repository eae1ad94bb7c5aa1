"""Running a plan: segment by segment, so that what follows a taken exit is really never computed.

A segment is the stretch from one exit of the plan to the next together with the branch at its end, composed into one
model (docs/bundle_format.md). Samples that an exit answers leave the batch; the others go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from device_sdk.bundle import Bundle
from device_sdk.confidence import confidence
from device_sdk.graph import Edge, ExitChoice, Plan, Supernet
from device_sdk.runtimes.port import Array, LoadedStretch, Runtime
from device_sdk.timing import measure_interleaved


@dataclass(frozen=True)
class Outcome:
    """What a plan answers to a batch.

    ``output``: logits [batch, classes]; ``answered_by`` [batch]: the position in the plan's exits of the one that
    answered, their number where it was the end of the subnet.
    """

    output: Array
    answered_by: npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Segment:
    stretch: LoadedStretch
    threshold: float | None  # None: the end of the subnet


class LoadedPlan:
    """A plan that is ready to run. ``run`` may be called from several threads at once.

    Raises:
        UsageError: the plan does not fit the bundle's graph.
        BlobError, CompositionError, RuntimeFailedError: a segment does not load.
    """

    def __init__(self, bundle: Bundle, runtime: Runtime, plan: Plan) -> None:
        bundle.supernet.check_plan(plan)
        self._segments = [
            _Segment(runtime.load(bundle.stretch(edges, choice)), choice.threshold if choice else None)
            for edges, choice in segments(bundle.supernet, plan)
        ]
        self._exits = len(plan.exits)

    def run(self, tensor: Array) -> Outcome:
        """Answer a batch [batch, *input].

        Raises:
            RuntimeFailedError: the runtime failed.
        """
        if not self._exits:
            output = self._segments[0].stretch.run([tensor])[-1]
            return Outcome(output, np.zeros(len(output), dtype=np.int64))
        return self._run_with_exits(tensor)

    def _run_with_exits(self, tensor: Array) -> Outcome:
        features: Sequence[Array] = [tensor]
        rest = np.arange(len(tensor))  # the samples that nobody has answered yet
        answered_by = np.full(len(tensor), self._exits, dtype=np.int64)
        output: Array | None = None
        for number, segment in enumerate(self._segments):
            *features, logits = segment.stretch.run(features)
            if output is None:
                output = np.empty((len(tensor), *logits.shape[1:]), dtype=logits.dtype)
            if segment.threshold is None:
                output[rest] = logits
                break
            sure = confidence(logits) >= segment.threshold
            output[rest[sure]] = logits[sure]
            answered_by[rest[sure]] = number
            rest = rest[~sure]
            if not len(rest):
                break
            if sure.any():
                features = [feature[~sure] for feature in features]
        assert output is not None
        return Outcome(output, answered_by)

    def close(self) -> None:
        """Free the sessions. May be called twice."""
        for segment in self._segments:
            segment.stretch.close()


def mean_latencies_ms(plans: Sequence[LoadedPlan], inputs: Array, *, rounds: int = 3) -> list[float]:
    """The mean latency of each plan over ``inputs`` [count, *input], one sample at a time, the plans in turns.

    Of each sample the median of ``rounds`` counts: an exit makes some samples quick and others not.
    """
    totals = np.zeros(len(plans))
    for at in range(len(inputs)):
        sample = inputs[at : at + 1]
        calls = {str(number): partial(plan.run, sample) for number, plan in enumerate(plans)}
        timed = measure_interleaved(calls, rounds=rounds, warmup=1)
        totals += [timed[str(number)].median_ms for number in range(len(plans))]
    return [float(total) / len(inputs) for total in totals]


def segments(supernet: Supernet, plan: Plan) -> list[tuple[tuple[Edge, ...], ExitChoice | None]]:
    """The edges of each segment and the exit at its end; None at the end of the subnet."""
    choices = {supernet.exit(choice.exit).position: choice for choice in plan.exits}
    found: list[tuple[tuple[Edge, ...], ExitChoice | None]] = []
    edges: list[Edge] = []
    for edge, block in supernet.walk(plan.subnet):
        edges.append(edge)
        if block.end in choices:
            found.append((tuple(edges), choices[block.end]))
            edges = []
    found.append((tuple(edges), None))
    return found
