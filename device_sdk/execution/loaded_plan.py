"""Running a plan: segment by segment, so that what follows a taken exit is really never computed.

A segment is the stretch from one exit of the plan to the next together with the branch at its end, composed into one
model (docs/bundle_format.md), or under a memory cap into several that are loaded in turns (``paging``). Samples that an
exit answers leave the batch; the others go on, here or at a server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from device_sdk.bundles.bundle import Bundle
from device_sdk.execution.deciders import confidence
from device_sdk.execution.loaded_segments import LoadedSegments
from device_sdk.execution.plan_segments import segments
from device_sdk.runtimes.port import Array, Runtime
from device_sdk.supernet.cost import EdgeCost
from device_sdk.supernet.plan import Edge, Plan

RunTail = Callable[[Sequence[Array]], Array | None]
"""Runs the tensors at the split to the end elsewhere: logits [batch, classes], or None if that failed."""


@dataclass(frozen=True)
class KeptActivations:
    """The tensors at the cut point whose activations the plan may send: of ``samples``, positions in the batch."""

    samples: npt.NDArray[np.int64]
    tensors: tuple[Array, ...]

    def of(self, wanted: npt.NDArray[np.intp]) -> tuple[Array, ...]:
        """The tensors of the samples ``wanted``, all of which got there."""
        rows = np.searchsorted(self.samples, wanted)
        return tuple(tensor[rows] for tensor in self.tensors)


@dataclass(frozen=True)
class Outcome:
    """What a plan answers to a batch.

    ``output``: logits [batch, classes]; ``answered_by`` [batch]: the position in the plan's exits of the one that
    answered; their number plus ``AT_END``, ``AT_SERVER`` or ``AFTER_FAILURE`` where it was no exit. ``kept``: None
    where the plan sends no activations of hard samples.
    """

    output: Array
    answered_by: npt.NDArray[np.int64]
    kept: KeptActivations | None = None


AT_END = 0  # the end of the subnet, here
AT_SERVER = 1  # the end of the subnet, at the server
AFTER_FAILURE = 2  # the end of the subnet, here, since the server did not answer


class LoadedPlan:
    """A plan that is ready to run. ``run`` may be called from several threads at once.

    What follows a split is loaded too: it runs here when there is no server, or when it fails.

    ``memory_cap_bytes``: what all that is loaded and runs may take beyond the bare runtime, for batches of up to
    ``batch`` samples. If the plan needs more, it runs in pages, of which as many stay as there is room for: the same
    answers within 1e-5, bit for bit where the pages are the same. ``costs``: the working sets that were measured here.
    A ``runtime`` made ``lean`` keeps to the cap more closely.

    Raises:
        UsageError: the plan does not fit the bundle's graph.
        BudgetError: the cap is too small for the largest block; says the least that works.
        BlobError, CompositionError, RuntimeFailedError: a segment does not load.
    """

    def __init__(
        self,
        bundle: Bundle,
        runtime: Runtime,
        plan: Plan,
        *,
        memory_cap_bytes: int | None = None,
        costs: Mapping[Edge, EdgeCost] | None = None,
        batch: int = 1,
    ) -> None:
        bundle.supernet.check_plan(plan)
        self.input_size = plan.subnet.input_size  # of the tensors that it takes; empty: the model's own
        self._exits = len(plan.exits)
        found = segments(bundle.supernet, plan)
        self._loaded = LoadedSegments(
            bundle, runtime, found, memory_cap_bytes=memory_cap_bytes, costs=costs, batch=batch
        )
        self._segments = list(zip(found, self._loaded.stretches, strict=True))

    @property
    def page_loads(self) -> int | None:
        """How often a page was loaded so far; None without a memory cap."""
        return self._loaded.page_loads

    def release(self) -> None:
        """Under a memory cap, free what no call runs now; the next call loads it again."""
        self._loaded.release()

    def run(self, tensor: Array, run_tail: RunTail | None = None) -> Outcome:
        """Answer a batch [batch, *input]; ``run_tail`` goes on behind the plan's split, if it has one.

        Raises:
            RuntimeFailedError: the runtime failed.
            BlobError: a page had to be loaded again, and its blob is damaged.
        """
        [(_, first), *others] = self._segments
        if first is None or others:
            return self._run_segments(tensor, run_tail)
        output = first.run([tensor])[-1]
        return Outcome(output, np.zeros(len(output), dtype=np.int64))

    def _run_segments(self, tensor: Array, run_tail: RunTail | None) -> Outcome:
        features: list[Array] = [tensor]
        rest = np.arange(len(tensor))  # samples without an answer
        kept: KeptActivations | None = None
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
            if segment.kept:
                kept = KeptActivations(rest, tuple(features))
            if segment.split and run_tail is not None:
                remote = run_tail(features)
                if remote is not None:
                    answers.put(rest, remote, self._exits + AT_SERVER)
                    break
                end = AFTER_FAILURE
        else:
            answers.put(rest, features[-1], self._exits + end)
        return answers.outcome(kept)

    def close(self) -> None:
        """Free the sessions. May be called twice."""
        self._loaded.close()


class _Answers:
    """The answers to a batch, collected segment by segment."""

    def __init__(self, batch: int) -> None:
        self._output: Array | None = None
        self._answered_by = np.zeros(batch, dtype=np.int64)

    def put(self, samples: npt.NDArray[np.int64], logits: Array, source: int) -> None:
        if self._output is None:
            self._output = np.empty((len(self._answered_by), *logits.shape[1:]), dtype=logits.dtype)
        self._output[samples] = logits
        self._answered_by[samples] = source

    def outcome(self, kept: KeptActivations | None) -> Outcome:
        assert self._output is not None
        return Outcome(self._output, self._answered_by, kept)
