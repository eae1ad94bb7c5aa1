"""Answers of a plan to a batch, collected segment by segment."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from device_sdk.runtimes.port import Array

AT_END = 0  # the end of the subnet, here
AT_SERVER = 1  # the end of the subnet, at the server
AFTER_FAILURE = 2  # the split's fallback, here, since the server did not answer
UNANSWERED = 3  # nothing: the split's server did not answer, and the plan abstains without it
BY_SECOND = 4  # the end of a cascade's second path


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
class Waiting:
    """Samples between two segments of a plan: their positions in the batch [count], and the next segment's inputs.

    ``tensors``: at the cut point, [count, ...] each; ``segment``: the number of the next segment; ``latest``: answer of
    the last exit that they passed, logits [count, classes] and its position in the plan's exits; None without one.
    """

    samples: npt.NDArray[np.int64]
    tensors: tuple[Array, ...]
    segment: int = 0
    latest: tuple[Array, int] | None = None


@dataclass(frozen=True)
class Outcome:
    """Answers of a plan to a batch.

    ``output``: logits [batch, classes]; ``answered_by`` [batch]: the position in the plan's exits of the one that
    answered; their number plus ``AT_END``, ``AT_SERVER``, ``AFTER_FAILURE`` or ``BY_SECOND`` where it was no exit,
    ``UNANSWERED`` where there is no answer: then the logits are not numbers. ``kept``: activations of hard samples
    that may be sent, or that a second path goes on with; None in other plans. ``asking``: the samples that left the
    path at an exit for a server, a group for each exit; until it answers, the exit's answer stands for them.
    """

    output: Array
    answered_by: npt.NDArray[np.int64]
    kept: KeptActivations | None = None
    asking: tuple[Waiting, ...] = ()


class Answers:
    """The answers to a batch, collected segment by segment. Later answers to a sample replace earlier ones."""

    def __init__(self, batch: int) -> None:
        self._output: Array | None = None
        self._answered_by = np.zeros(batch, dtype=np.int64)

    def put(self, samples: npt.NDArray[np.int64], logits: Array, source: int) -> None:
        """``logits`` [count, classes] answer ``samples`` [count], ascending, by ``source`` (see ``Outcome``)."""
        if len(samples) == len(self._answered_by):  # all of them
            self._output = logits.copy()
            self._answered_by.fill(source)
            return
        if self._output is None:
            self._output = np.empty((len(self._answered_by), *logits.shape[1:]), dtype=logits.dtype)
        self._output[samples] = logits
        self._answered_by[samples] = source

    @classmethod
    def of(cls, outcome: Outcome) -> Answers:
        """A copy of the answers of ``outcome``, to be replaced in part."""
        answers = cls(len(outcome.output))
        answers._output, answers._answered_by = outcome.output.copy(), outcome.answered_by.copy()
        return answers

    def outcome(self, kept: KeptActivations | None = None, asking: tuple[Waiting, ...] = ()) -> Outcome:
        """The collected answers. Every sample must have one."""
        assert self._output is not None
        return Outcome(self._output, self._answered_by, kept, asking)

    def so_far(self) -> Outcome:
        """A copy of the answers so far."""
        assert self._output is not None
        return Outcome(self._output.copy(), self._answered_by.copy())
