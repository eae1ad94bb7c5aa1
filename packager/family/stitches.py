"""Stitches: linear maps from a cut point of one member to a cut point of another, fitted in closed form.

A path may run the first blocks of one network and the last ones of another (Pan, Cai and Zhuang, "Stitchable Neural
Networks", CVPR 2023); a 1×1 convolution between them, found by ridge regression on features of unlabelled images, makes
this work without a training step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import nn

from device_sdk.progress import Progress
from packager.family.numbering import Place
from packager.fitting.refit import Rows, solved
from packager.joining.maps import ChannelMap, Shape, extents, picked
from packager.joining.networks import CutNetwork
from packager.supernet.input_sizes import resized
from packager.tracing.traced_model import tensors_of

ROWS = 4_096  # of a regression, from all images together
_HELD_OUT = 8  # one of so many images judges the fit
_LARGEST_ERROR = 0.8  # relative squared, of a stitch that is judged at all
_DEEPEST = 0.35  # difference of depths between start and end
_JUDGED = 96  # stitches, at most, whose paths are run
_BANDS, _PER_BAND = 12, 2
_KEPT = 16
_LEAST_DISTANCE = 0.03  # of the largest member's MACs, between kept stitches of the same two members
_BATCH = 8


@dataclass(frozen=True)
class FittedStitch:
    """A stitch from ``start`` to ``end``; ``error``: relative squared, on images that were not fitted.

    ``loss``: mean total variation distance between the class probabilities of the path through it and those of the
    largest member; ``path_macs``: of that path; ``gain``: how far the loss lies below that of the best rung that takes
    no more work.
    """

    start: Place
    end: Place
    module: ChannelMap
    error: float
    macs: int
    loss: float = 1.0
    path_macs: int = 0
    gain: float = 0.0


@dataclass(frozen=True)
class Rung:
    """A member, by its place, at an input size (empty: the family's own), and what it takes and loses.

    ``macs``: multiply-accumulates, taken to grow with the pixels; ``loss``: as of a ``FittedStitch``.
    """

    member: int
    size: tuple[int, ...]
    macs: int
    loss: float


def halving(source: Sequence[Shape], target: Sequence[Shape]) -> bool | None:
    """Tell whether features of one cut point fit those of another at every input size, given their shapes at each.

    False: as they are; True: with height and width halved, rounded up; None: not at all.
    """
    if len(source[0]) != len(target[0]) or len(source[0]) not in (1, 2, 3):
        return None
    pairs = [(extents(a)[0], extents(b)[0]) for a, b in zip(source, target, strict=True)]
    if all(a == b for a, b in pairs):
        return False
    if len(source[0]) == 3 and all(tuple(-(-side // 2) for side in a) == b for a, b in pairs):
        return True
    return None


class Joint(NamedTuple):
    """Cut points of two members whose features a linear map can join.

    ``halved``: it halves height and width; ``path_macs``: of the path through it, the map itself left out.
    """

    start: Place
    end: Place
    halved: bool
    path_macs: int


def joints(networks: Sequence[CutNetwork]) -> list[Joint]:
    """All joints between ``networks``, the first of which takes the most work, more than any path through a joint."""
    found = []
    for a, source in enumerate(networks):
        for b, target in enumerate(networks):
            for start in source.inner if a != b else ():
                for end in target.inner:
                    if abs(source.depth(start) - target.depth(end)) > _DEEPEST:
                        continue
                    halved = halving(source.shapes(start), target.shapes(end))
                    macs = path_macs(networks, (a, start), (b, end))
                    if halved is not None and macs < networks[0].macs_until[-1]:
                        found.append(Joint((a, start), (b, end), halved, macs))
    return found


def path_macs(networks: Sequence[CutNetwork], start: Place, end: Place) -> int:
    """Multiply-accumulates of the path that leaves a member at ``start`` and goes on in another at ``end``."""
    source, target = networks[start[0]], networks[end[0]]
    return source.macs_until[start[1]] + target.macs_until[-1] - target.macs_until[end[1]]


class StitchFitter:
    """Fits and judges stitches between members, the first of which is the largest.

    Args:
        images: unlabelled, prepared [n, *input], for the fits.
        judges: further ones, for choosing.
        smaller: a further input size at which half of the images are fitted, so that stitches hold there as well.
    """

    def __init__(
        self,
        networks: Sequence[CutNetwork],
        images: torch.Tensor,
        judges: torch.Tensor,
        *,
        smaller: tuple[int, ...] | None,
        seed: int,
        progress: Progress,
    ) -> None:
        self._networks, self._judges, self._seed, self._progress = networks, judges, seed, progress
        half = len(images) // 2 if smaller is not None else len(images)
        self._images = [images[:half], *([resized(images[half:], smaller)] if half < len(images) else [])]

    def promising(self) -> tuple[FittedStitch, ...]:
        """Fitted stitches, judged by the paths through them: the best ones of each band of work."""
        rows = self._rows()
        fitted = list(self._fitted(rows))
        del rows
        return best_of_bands(self._judged(shortlist(fitted)))

    def chosen(self, fitted: Sequence[FittedStitch], trained: Sequence[FittedStitch] = ()) -> tuple[FittedStitch, ...]:
        """The stitches that earn their bytes, the best first; each as fitted or as trained, whichever loses less."""
        after = {(one.start, one.end): one for one in self._judged(trained)}
        pairs = [(one, after.get((one.start, one.end), one)) for one in fitted]
        better = [min(pair, key=lambda one: one.loss) for pair in pairs]
        return chosen(better, self.rungs)

    def _rows(self) -> dict[tuple[Place, bool], tuple[torch.Tensor, torch.Tensor]]:
        """Features at drawn positions, [rows, channels] to fit and to judge the fit, by cut point and halving.

        Positions are equal for equal extents, so that rows of different members belong together.
        """
        found: dict[tuple[Place, bool], tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
        wanted = self._pairs
        total = sum(len(images) for images in self._images) * len(self._networks)
        per_image = max(1, ROWS * len(self._networks) // max(total, 1))
        pool = nn.AvgPool2d(2, ceil_mode=True, count_include_pad=False)
        with self._progress.task("features of members", total) as task:
            for member, network in enumerate(self._networks):
                sides = {(cut, halved) for (place, cut), _, halved, _ in wanted if place == member}
                sides |= {(cut, False) for _, (place, cut), _, _ in wanted if place == member}
                for images in self._images:
                    for first in range(0, len(images), _BATCH):
                        batch = images[first : first + _BATCH]
                        judges = torch.arange(first, first + len(batch)) % _HELD_OUT == 0
                        for cut, features in network.features(batch):
                            for halved in (False, True):
                                if (cut, halved) in sides:
                                    assert isinstance(features, torch.Tensor)
                                    read = pool(features) if halved else features
                                    rows = picked(read, per_image, seed=self._seed)  # [n, positions, c]
                                    fit, judge = found.setdefault(((member, cut), halved), ([], []))
                                    fit.append(rows[~judges].flatten(0, 1))
                                    judge.append(rows[judges].flatten(0, 1))
                        task.advance(len(batch))
        return {key: (torch.cat(fit), torch.cat(judge)) for key, (fit, judge) in found.items()}

    @cached_property
    def _pairs(self) -> list[Joint]:
        return joints(self._networks)

    def _fitted(self, rows: Mapping[tuple[Place, bool], tuple[torch.Tensor, torch.Tensor]]) -> Iterator[FittedStitch]:
        """All stitches of a small enough error. Those from one cut point share their matrix."""
        ends: dict[tuple[Place, bool, bool], list[Place]] = {}
        for start, end, halved, _ in self._pairs:
            rectified = bool(rows[end, False][0].min() >= 0)
            ends.setdefault((start, halved, rectified), []).append(end)
        with self._progress.task("fit stitches", len(ends)) as task:
            for (start, halved, rectified), group in ends.items():
                read, judges = rows[start, halved]
                shape = self._networks[start[0]].cuts[start[1]][0].shape
                if len(read) >= 2 * read.shape[1] and bool(torch.isfinite(read).all()):
                    targets = [rows[end, False] for end in group]
                    for end, weight, bias, error in _solutions(read, judges, targets, group, rectified=rectified):
                        maps = len(shape) == 3
                        module = ChannelMap(weight, bias, maps=maps, halved=halved, rectified=rectified).eval()
                        macs = weight.numel() * self._positions(end)
                        yield FittedStitch(
                            start, end, module, error, macs, path_macs=path_macs(self._networks, start, end) + macs
                        )
                task.advance()

    def _positions(self, place: Place) -> int:
        """The number of pixels or tokens at a cut point."""
        return math.prod(extents(self._networks[place[0]].cuts[place[1]][0].shape)[0])

    def _judged(self, stitches: Sequence[FittedStitch]) -> list[FittedStitch]:
        """The stitches with the losses of the paths through them."""
        judged: list[FittedStitch] = []
        expected = self._probabilities[0]
        with self._progress.task("judge stitches", len(stitches)) as task:
            for member, network in enumerate(self._networks):
                mine = [one for one in stitches if one.start[0] == member]
                losses = [0.0] * len(mine)
                for first in range(0, len(self._judges), _BATCH):
                    batch, want = self._judges[first : first + _BATCH], expected[first : first + _BATCH]
                    for cut, features in network.features(batch) if mine else ():
                        for place, one in enumerate(mine):
                            if one.start[1] == cut:
                                with torch.no_grad():
                                    made = one.module(*tensors_of([features]))
                                answer = self._networks[one.end[0]].answers_from(one.end[1], made)
                                losses[place] += float((answer - want).abs().sum()) / 2
                    task.advance(len(mine) * len(batch) / len(self._judges))
                count = len(self._judges)
                judged += [replace(one, loss=loss / count) for one, loss in zip(mine, losses, strict=True)]
        return judged

    @cached_property
    def rungs(self) -> tuple[Rung, ...]:
        """Each member at each input size, its own first, judged against the largest member at its own."""
        own, largest = self._judges.shape[2:], self._probabilities[0]
        rungs = []
        with self._progress.task("judge members", len(self._networks)) as task:
            for member, network in enumerate(self._networks):
                macs = network.macs_until[-1]
                rungs.append(Rung(member, (), macs, _distance(self._probabilities[member], largest)))
                for shapes in network.sizes:
                    size = (shapes[0][1], shapes[0][2])
                    answers = network.answers_from(0, resized(self._judges, size))
                    at_size = round(macs * size[0] * size[1] / (own[0] * own[1]))
                    rungs.append(Rung(member, size, at_size, _distance(answers, largest)))
                task.advance()
        return tuple(rungs)

    def members_alone(self) -> list[Rung]:
        """Each member at the family's own input size."""
        return [one for one in self.rungs if not one.size]

    @cached_property
    def _probabilities(self) -> list[torch.Tensor]:
        return [network.answers_from(0, self._judges) for network in self._networks]


def _distance(answers: torch.Tensor, expected: torch.Tensor) -> float:
    """Mean total variation distance of class probabilities [n, classes]."""
    return float((answers - expected).abs().sum(1).mean()) / 2


def _solutions(
    read: torch.Tensor,
    judges: torch.Tensor,
    targets: Sequence[tuple[torch.Tensor, torch.Tensor]],
    ends: Sequence[Place],
    *,
    rectified: bool,
) -> Iterator[tuple[Place, torch.Tensor, torch.Tensor, float]]:
    """For each end whose features [rows, channels] can be reached: weight, bias, and the error on the judges.

    The targets are fitted side by side, each in units of its own deviation.
    """
    spreads = [target.std().clamp_min(1e-6) for target, _ in targets]
    aim = torch.cat([target / spread for (target, _), spread in zip(targets, spreads, strict=True)], dim=1)
    solution = solved(Rows(read, torch.zeros_like(aim), aim), centred=True, rectified=rectified)
    if solution is None:
        return
    widths = [target.shape[1] for target, _ in targets]
    parts = zip(*(one.float().split(widths) for one in solution), strict=True)
    for end, (weight, bias), spread, (_, expected) in zip(ends, parts, spreads, targets, strict=True):
        scaled, shift = weight * spread, bias * spread
        answer = judges @ scaled.T + shift
        off = ((answer.clamp_min(0) if rectified else answer) - expected).square().mean()
        error = float(off / expected.var().clamp_min(1e-12))
        if error <= _LARGEST_ERROR:
            yield end, scaled, shift, error


def shortlist(stitches: Sequence[FittedStitch]) -> list[FittedStitch]:
    """The stitches worth running: from each cut point to each other member the ends of least error and of least work.

    The latter among those of nearly the least error. Of all these the ones of least error are kept.
    """
    groups: dict[tuple[Place, int], list[FittedStitch]] = {}
    for one in stitches:
        groups.setdefault((one.start, one.end[0]), []).append(one)
    found: list[FittedStitch] = []
    for group in groups.values():
        best = min(group, key=lambda one: one.error)
        near = [one for one in group if one.error <= 1.5 * best.error]
        found += dict.fromkeys([best, min(near, key=lambda one: one.path_macs)])
    return sorted(found, key=lambda one: one.error)[:_JUDGED]


def best_of_bands(stitches: Sequence[FittedStitch]) -> tuple[FittedStitch, ...]:
    """The stitches of least loss in each of twelve bands of work, evenly spaced in its logarithm."""
    if not stitches:
        return ()
    least = math.log(min(one.path_macs for one in stitches))
    width = max(math.log(max(one.path_macs for one in stitches)) - least, 1e-9) / _BANDS
    bands: dict[int, list[FittedStitch]] = {}
    for one in sorted(stitches, key=lambda one: one.loss):
        bands.setdefault(min(int((math.log(one.path_macs) - least) / width), _BANDS - 1), []).append(one)
    return tuple(one for band in sorted(bands) for one in bands[band][:_PER_BAND])


def chosen(stitches: Sequence[FittedStitch], rungs: Sequence[Rung]) -> tuple[FittedStitch, ...]:
    """Stitches whose paths lose less than everything of no more work: all rungs, and the other stitches' paths.

    Of neighbours on this front, nearly alike in work, the better one; the best first.
    """
    largest = max((one.macs for one in rungs if not one.size), default=0)
    front: list[FittedStitch] = []
    for one in sorted(stitches, key=lambda one: (one.path_macs, one.loss)):
        gain = min((rung.loss for rung in rungs if rung.macs <= one.path_macs), default=0.0) - one.loss
        if gain <= 0 or any(other.loss <= one.loss for other in front):
            continue
        if front and one.path_macs - front[-1].path_macs < _LEAST_DISTANCE * largest:
            front.pop()
        front.append(replace(one, gain=gain))
    return tuple(sorted(front, key=lambda one: -one.gain)[:_KEPT])
