"""Initialises every added block without training, and drops useless blocks.

Useless is what lies far from the Pareto front of error against MACs. A path's error is approximated by the sum of its
blocks' errors (the squared distance of the network's answers from the teacher's with that block alone replaced), which
is exact for independent perturbations. MACs are discretised, so the least error at every cost follows from one pass of
dynamic programming over the chain.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from device_sdk.progress import Progress
from packager.errors import ResumeError
from packager.fitting.before_norm import aim_of
from packager.fitting.candidates import COPY, FITTED, Candidate, candidates, sources
from packager.fitting.features import TeacherFeatures, run_originals
from packager.fitting.refit import MOST_ROWS
from packager.output.checkpoints import read_state, write_state
from packager.supernet.blocks.trainable import TrainableBlock, evaluated
from packager.supernet.expansion import Expansion

TRAINED_GAIN = 0.5  # expected error of a block after training, relative to before (docs/adr/0027)
SLACK = 0.25  # of the front's error: uncertainty of the sum of errors along a path
MARGIN = 0.02  # of the front's error: a block that improves it by less is redundant
_WORST_ERROR = 1.0  # of the variance of the teacher's answers: as bad as a constant answer
_LIMIT_BYTES = 256_000_000  # of features in memory at a time
_LEAST_SAMPLES = 32
_HELD_OUT = 48
_FINALISTS = 3  # best candidates by feature error, which are then compared by the network's answers
_TIE = 0.01  # of the error
_SEQUENCE_AXES = 3  # of features that have their channels first or last
_HASTE = 8  # maximum reduction of rows and samples if time is short

Fit = dict[str, Any]
"""The result of ``fit`` as plain values for ``torch.save``: source, state and errors by block, and dropped blocks."""
STEPS = 200  # of the original path's MACs
_Errors = npt.NDArray[np.float64]  # [positions, STEPS + 1]: the least error by MACs


@dataclass(frozen=True)
class _Start:
    """The initialisation of a block: the candidate, and its error in the network's answers."""

    candidate: Candidate
    error: float


def fit(
    expansion: Expansion,
    samples: torch.Tensor,
    *,
    held_out: torch.Tensor,
    progress: Progress,
    seconds: float | None = None,
    trained: bool = True,
    clock: Callable[[], float] = time.monotonic,
) -> Fit:
    """The initialisation of every added block without training; ``applied`` puts it into an equal expansion.

    1. make the candidates of each added block; 2. choose the best by the network's answers; 3. drop useless blocks.
    Deterministic without ``seconds``.

    Args:
        samples: prepared training images [count, *input] that blocks are fitted to.
        held_out: images [count, *input] for choosing among the candidates of a block.
        seconds: time limit. If it is short, fewer samples are used, and blocks at the end of the chain may stay as
            they are.
        trained: whether training follows. Blocks that it may make useful are then kept.
    """
    judge = _Judge(expansion, held_out[:_HELD_OUT])
    teacher = TeacherFeatures(expansion.traced, samples, limit_bytes=_LIMIT_BYTES)
    pace = _Pace(len(expansion.trained), seconds=seconds, clock=clock)
    starts: dict[str, _Start] = {}
    with progress.task("fit", len(expansion.added)) as task:
        for block in sorted(expansion.added, key=lambda block: (block.start, block.end)):
            starts[block.id] = _best_start(expansion, block, teacher, judge, pace)
            task.advance()
    blocks = {
        name: {
            "source": start.candidate.source,
            "how": start.candidate.how,
            "error": start.error,
            "state": start.candidate.block.module.state_dict(),
        }
        for name, start in starts.items()
    }
    return {"blocks": blocks, "left_out": _left_out(expansion, starts, gain=TRAINED_GAIN if trained else 1.0)}


def fit_once(path: Path, expansion: Expansion, make: Callable[[], Fit]) -> Fit:
    """The fit that ``make`` returns, cached at ``path`` for resuming, since with a time limit it is not reproducible.

    Raises:
        StorageError: the file cannot be written.
    """
    with contextlib.suppress(ResumeError):  # damaged
        kept: Fit | None = read_state(path)
        if kept is not None and sorted(kept["blocks"]) == sorted(block.id for block in expansion.added):
            return kept
    found = make()
    write_state(path, found)
    return found


def applied(expansion: Expansion, found: Fit) -> Expansion:
    """``expansion`` with the result of ``fit``: initialised blocks, useless ones dropped, notes added."""
    tensors, originals = expansion.traced.tensors, expansion.originals
    started = {}
    for block in expansion.trained:
        start = found["blocks"][block.id]
        chosen = sources(block, originals, tensors)[start["source"]]
        chosen.module.load_state_dict(start["state"])
        started[block.id] = chosen
    made = expansion.replacing(started).without(found["left_out"])
    fits = sum(found["blocks"][block.id]["how"] == FITTED for block in made.trained)
    notes = [f"{fits} of {len(made.trained)} added blocks start from a fit of their last linear map"] if fits else []
    if found["left_out"]:
        named = ", ".join(f"{name} ({why})" for name, why in found["left_out"].items())
        notes.append(f"left out before training, far from the front of error against MACs: {named}")
    return made.noting(*notes)


def _best_start(
    expansion: Expansion, block: TrainableBlock, teacher: TeacherFeatures, judge: _Judge, pace: _Pace
) -> _Start:
    """The candidate with the least error in the network's answers, among the best few by feature error."""
    judge.move_to(block)
    as_it_is = Candidate(block, 0, COPY)
    if block.properties.skip:
        return _Start(as_it_is, judge.answer_error(as_it_is))
    pace.begin()
    tried = [as_it_is]
    if not pace.over:
        traced = expansion.traced
        wanted = max(_LEAST_SAMPLES, math.ceil(MOST_ROWS / judge.positions))
        features = teacher.at(block.start, max(_LEAST_SAMPLES // 2, wanted // pace.haste))
        before = run_originals(traced, block.start, block.end - 1, features)
        aim = aim_of(traced.blocks[block.end - 1], before)
        copies = sources(block, expansion.originals, traced.tensors)[: 1 if pace.haste > 1 else None]
        seed = block.start * 1009 + block.end
        tried = list(candidates(copies, traced.blocks[block.start], features, aim, seed=seed))
    errors = sorted((judge.feature_error(candidate), number) for number, candidate in enumerate(tried))
    finalists = [tried[number] for _, number in errors[:_FINALISTS]]
    if not any(candidate.source == 0 and candidate.how == COPY for candidate in finalists):
        finalists.append(tried[0])
    ranked = sorted((judge.answer_error(candidate), number) for number, candidate in enumerate(finalists))
    best = ranked[0][0]
    ties = [number for error, number in ranked if error <= (1 + _TIE) * best]
    pace.end()
    return _Start(finalists[min(ties)], best)  # finalists are sorted by feature error


class _Judge:
    """Errors of candidates on held-out images."""

    def __init__(self, expansion: Expansion, held_out: torch.Tensor) -> None:
        self._traced = traced = expansion.traced
        self._features = TeacherFeatures(traced, held_out, limit_bytes=_LIMIT_BYTES)
        last = len(traced.blocks)
        self._taps: dict[int, torch.Tensor] = {}
        features, position = held_out, 0
        for tap in (*traced.taps, last - 1):
            features, position = run_originals(traced, position, tap, features), tap
            self._taps |= {tap: features} if tap in traced.taps else {}
        self._answers = self._head(features, self._taps)
        self._inputs = held_out[:0]
        self._target = held_out[:0]

    def move_to(self, block: TrainableBlock) -> None:
        """Prepare for candidates of ``block``. Blocks must be in order of their starts."""
        self._inputs = self._features.at(block.start, _HELD_OUT)
        self._target = run_originals(self._traced, block.start, block.end, self._inputs)

    @property
    def positions(self) -> float:
        """Positions of a sample's features at the block's end that are not zero as a whole; at least 1."""
        axes = (1, 2) if self._target.dim() == _SEQUENCE_AXES else (1,)  # of the channels
        found = min(int((self._target != 0).any(axis).sum()) for axis in axes)
        return max(1.0, found / max(1, len(self._target)))

    def feature_error(self, candidate: Candidate) -> float:
        """Mean squared error against the teacher's features, divided by their variance."""
        return _relative(_output(candidate, self._inputs), self._target)

    def answer_error(self, candidate: Candidate) -> float:
        """The same for the network's answers, with the originals behind the block."""
        traced, taps = self._traced, dict(self._taps)
        features, position = _output(candidate, self._inputs), candidate.block.end
        for tap in traced.taps:
            if tap >= position:
                features, position = run_originals(traced, position, tap, features), tap
                taps[tap] = features
        features = run_originals(traced, position, len(traced.blocks) - 1, features)
        return _relative(self._head(features, taps), self._answers[: len(features)])

    def _head(self, features: torch.Tensor, taps: dict[int, torch.Tensor]) -> torch.Tensor:
        head = self._traced.blocks[-1]
        with torch.no_grad():
            return head(*(taps[tap][: len(features)] for tap in self._traced.taps), features)


def _output(candidate: Candidate, features: torch.Tensor) -> torch.Tensor:
    module = candidate.block.module
    with evaluated(module):
        return torch.cat([module(batch) for batch in features.split(16)])


def _relative(found: torch.Tensor, target: torch.Tensor) -> float:
    error = (found - target).square().mean() / target.var().clamp_min(1e-12)
    return float(torch.nan_to_num(error, nan=torch.inf, posinf=torch.inf))


class _Pace:
    """Reduces samples so that ``count`` blocks finish within ``seconds``; never without a limit."""

    def __init__(self, count: int, *, seconds: float | None, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._clock = clock
        self._started = self._begun = clock()
        self._left = count
        self.haste = 1
        self.over = False

    def begin(self) -> None:
        """Start timing a block."""
        self._begun = self._clock()
        self.over = self._seconds is not None and self._begun - self._started >= self._seconds

    def end(self) -> None:
        """Stop timing; reduce samples if the remaining blocks would exceed the limit at this speed."""
        self._left -= 1
        if self._seconds is None:
            return
        now = self._clock()
        predicted, remaining = (now - self._begun) * self._left, self._seconds - (now - self._started)
        if predicted > remaining and self.haste < _HASTE:
            self.haste *= 2


def _left_out(expansion: Expansion, starts: dict[str, _Start], *, gain: float) -> dict[str, str]:
    """The useless added blocks, each with the reason.

    1. skips far from the front with the current errors; 2. trained blocks that the front does not need, with the errors
    expected after training.
    """
    kinds = {block.id: block.properties for block in expansion.blocks}

    def choices(gain: float) -> list[Choice]:
        made = []
        for block in expansion.blocks:
            start = starts.get(block.id)
            macs = block.macs if start is None else start.candidate.block.macs
            error = 0.0 if start is None else start.error * (gain if block.properties.weights else 1.0)
            made.append(Choice(block.id, block.start, block.end, macs, error, original=start is None))
        return made

    skips = [name for name in starts if kinds[name].skip]
    useless = off_front(choices(1.0), judged=skips, slack=SLACK, worst=_WORST_ERROR)
    hoped = [choice for choice in choices(gain) if choice.id not in useless]
    trained = [name for name in starts if not kinds[name].skip]
    return useless | of_no_use(hoped, judged=trained, margin=MARGIN, worst=_WORST_ERROR)


@dataclass(frozen=True)
class Choice:
    """A block on the chain of cut points, with its MACs and its error."""

    id: str
    start: int
    end: int
    macs: int
    error: float
    original: bool = False


def off_front(choices: Sequence[Choice], *, judged: Collection[str], slack: float, worst: float) -> dict[str, str]:
    """The blocks in ``judged`` that are far from the front at every cost, with the reason.

    A block is kept if, at some cost, the least error of paths through it is at most 1 + ``slack`` times the least error
    of all paths of that cost, and not above ``worst``, beyond which answers are useless.
    """
    found = {}
    for name in judged:
        over, without = _with_and_without(name, choices)
        if not ((over <= (1 + slack) * without) & (over <= worst)).any():
            found[name] = _reason(over, without)
    return found


def of_no_use(choices: Sequence[Choice], *, judged: Sequence[str], margin: float, worst: float) -> dict[str, str]:
    """The blocks in ``judged`` whose removal does not worsen the front, with the reason.

    Blocks are removed greedily, the one with the smallest improvement first; the others are then judged again without
    it. A block is kept if at some cost the least error without it is larger by a factor of 1 + ``margin``.
    """
    left = list(choices)
    order = sorted(judged, key=lambda name: _improvement(name, left, worst)[0])
    found = {}
    for name in order:
        improvement, reason = _improvement(name, left, worst)
        if improvement < margin:
            found[name] = reason
            left = [choice for choice in left if choice.id != name]
    return found


def _improvement(name: str, choices: Sequence[Choice], worst: float) -> tuple[float, str]:
    """The largest relative reduction of the error by a block at any cost, and a description of it."""
    over, without = _with_and_without(name, choices)
    usable = over <= worst
    if not usable.any():
        return 0.0, _reason(over, without)
    with np.errstate(invalid="ignore"):
        gains = np.where(np.isinf(without), 1.0, 1.0 - over / np.maximum(without, 1e-12))
    return float(gains[usable].max()), _reason(over, without)


def _with_and_without(name: str, choices: Sequence[Choice]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """By steps of MACs: the least error of paths through a block, and of paths without it."""
    whole = sum(choice.macs for choice in choices if choice.original) or 1
    steps = {choice.id: round(STEPS * choice.macs / whole) for choice in choices}
    block = next(choice for choice in choices if choice.id == name)
    others = [other for other in choices if other.id != name]
    ahead, behind = _least(others, steps), _least(others, steps, backwards=True)
    over = _joined(ahead[block.start], behind[block.end], steps[name]) + block.error
    return over, np.minimum.accumulate(behind[0])


def _reason(over: npt.NDArray[np.float64], without: npt.NDArray[np.float64]) -> str:
    """A description of the cost at which a block is nearest to the front."""
    reached = np.flatnonzero(np.isfinite(over) & np.isfinite(without))
    if not len(reached):
        return "no path through it is cheap enough"
    nearest = reached[np.argmin(over[reached] - without[reached])]
    return f"{over[nearest]:.2g} against {without[nearest]:.2g}"


def _least(choices: Sequence[Choice], steps: Mapping[str, int], *, backwards: bool = False) -> _Errors:
    """The least error by steps of MACs from the input to each cut point, or ``backwards`` from each to the output."""
    last = max(choice.end for choice in choices)
    least = np.full((last + 1, STEPS + 1), np.inf)
    least[last if backwards else 0, 0] = 0.0
    ordered = sorted(choices, key=lambda choice: -choice.end if backwards else choice.start)
    for choice in ordered:
        known, reached = (choice.end, choice.start) if backwards else (choice.start, choice.end)
        cost = steps[choice.id]
        moved = np.full(STEPS + 1, np.inf)
        if cost <= STEPS:
            moved[cost:] = least[known, : STEPS + 1 - cost] + choice.error
        least[reached] = np.minimum(least[reached], moved)
    return least


def _joined(ahead: npt.NDArray[np.float64], behind: npt.NDArray[np.float64], cost: int) -> npt.NDArray[np.float64]:
    """The (min, +) convolution of both, shifted by ``cost`` steps."""
    joined = np.full(STEPS + 1, np.inf)
    for first in np.flatnonzero(np.isfinite(ahead)):
        begin = first + cost
        if begin <= STEPS:
            joined[begin:] = np.minimum(joined[begin:], ahead[first] + behind[: STEPS + 1 - begin])
    return joined
