"""Selection of the best state of a training phase, its start included, and batch-norm statistics.

Distilled blocks and exits train independently, so each keeps its own best state. Tuning trains paths that share
blocks: there one state is selected for all, on the straight line between the weights at its start and at its end.
"""

from __future__ import annotations

import contextlib
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from device_sdk.supernet.plan import Subnet
from packager.supernet.blocks.trainable import averaging, norms
from packager.supernet.expansion import Expansion
from packager.supernet.macs_ranges import MacsRanges
from packager.training.range_accuracy import RangeAccuracy
from packager.training.ranks import Ranks

_MARKS = (0.25, 0.5, 0.75)  # of a phase: when blocks and exits are evaluated, besides its start and its end
_SHARES = (1.0, 0.5, 0.25, 0.0)  # interpolation weights between the start and the end of tuning
_PATHS_PER_RANGE = 2
BLOCK_IMAGES = 32  # evaluating all blocks costs about a fifth of a step
_LEAST_IMAGES = 32

State = dict[str, dict[str, torch.Tensor]]


def _for_ever() -> float:
    return math.inf


@dataclass(frozen=True)
class Gain:
    """The effect of a phase: means ``before`` and ``after`` of ``measure`` on held-out images.

    ``kept``: the interpolation weight that was selected; for modules that train independently, the fraction whose end
    was better than the start.
    """

    measure: str
    before: float
    after: float
    kept: float


class Keeper(ABC):
    """Evaluates a phase's modules and restores their best state. All processes take part; rank 0 evaluates."""

    def __init__(
        self, modules: Mapping[str, nn.Module], judge: RangeAccuracy | None, ranks: Ranks, device: torch.device
    ) -> None:
        self._modules, self._judge, self._ranks, self._device = modules, judge, ranks, device

    @abstractmethod
    def begin(self, *, seconds: float | None) -> None:
        """Evaluate the start. ``seconds``: time limit of an evaluation, None for no limit."""

    @abstractmethod
    def after_step(self, progress: float) -> None:
        """Evaluate if ``progress`` has reached the next mark."""

    @abstractmethod
    def finish(self, *, seconds_left: Callable[[], float] = _for_ever) -> Gain:
        """Evaluate the end and restore the best state, among those that the time allows to evaluate."""

    @property
    @abstractmethod
    def state(self) -> dict[str, Any]:
        """State for resuming."""

    @abstractmethod
    def restore(self, state: dict[str, Any]) -> None:
        """Resume from ``state``."""

    def _copied(self) -> State:
        average_statistics(self._modules.values(), self._ranks)
        return {name: _copy(module) for name, module in self._modules.items()}

    def _from_lead(self, values: Sequence[float], count: int) -> list[float]:
        """``count`` values as the first process has them."""
        mine = list(values) if self._ranks.leads else [0.0] * count
        return self._ranks.sum(torch.tensor(mine, dtype=torch.float64)).tolist()


class BestOfEach(Keeper):
    """Keeps the best state of each module separately, by its ``errors`` on held-out images.

    For distillation: added blocks, by their imitation error; for exits: by their error rate behind the original path.
    """

    def __init__(
        self,
        modules: Mapping[str, nn.Module],
        judge: RangeAccuracy | None,
        ranks: Ranks,
        device: torch.device,
        *,
        measure: str,
        errors: Callable[[RangeAccuracy], Mapping[str, float]],
    ) -> None:
        super().__init__(modules, judge, ranks, device)
        self.measure, self._errors = measure, errors
        self._best: dict[str, float] = {}
        self._first: dict[str, float] = {}
        self._states: State = {}
        self._looks = 0

    def begin(self, *, seconds: float | None) -> None:
        self._look()
        self._first = dict(self._best)

    def after_step(self, progress: float) -> None:
        if self._looks <= len(_MARKS) and progress >= _MARKS[min(self._looks, len(_MARKS)) - 1]:
            self._look()

    def finish(self, *, seconds_left: Callable[[], float] = _for_ever) -> Gain:
        """The evaluation is short and always done."""
        self._look()
        for name, module in self._modules.items():
            module.load_state_dict(self._states[name])
        count = len(self._best)
        better = sum(self._best[name] < self._first[name] for name in self._best)
        return Gain(self.measure, sum(self._first.values()) / count, sum(self._best.values()) / count, better / count)

    def _look(self) -> None:
        self._looks += 1
        average_statistics(self._modules.values(), self._ranks)
        errors = self._errors(self._judge) if self._judge is not None else {}
        lead_errors = self._from_lead([errors.get(name, 0.0) for name in self._modules], len(self._modules))
        for (name, module), error in zip(self._modules.items(), lead_errors, strict=True):
            if name not in self._best or error < self._best[name]:
                self._best[name], self._states[name] = error, _copy(module)

    @property
    def state(self) -> dict[str, Any]:
        return {"best": self._best, "first": self._first, "states": self._states, "looks": self._looks}

    def restore(self, state: dict[str, Any]) -> None:
        self._best, self._first, self._states = dict(state["best"]), dict(state["first"]), dict(state["states"])
        self._looks = state["looks"]


@dataclass(frozen=True)
class RangeSeen:
    """Evaluation of a range of MACs: scores [paths · images], and squared distance from the teacher's answers."""

    scores: torch.Tensor
    distance: float

    @property
    def score(self) -> float:
        """Mean score."""
        return float(self.scores.mean())


def is_worse(before: RangeSeen, after: RangeSeen) -> bool:
    """True if the mean score fell by more than one standard error of the paired difference.

    If all scores are 0 before and after, the distance from the teacher decides.
    """
    change = after.scores - before.scores
    if not bool(before.scores.any() | after.scores.any()):
        return after.distance > before.distance
    lost = -float(change.sum())
    return lost > float(change.square().sum().sqrt()) + 1e-9


class BestOnTheWay(Keeper):
    """For tuning: the largest interpolation weight between start and end at which no range is worse.

    The mean over all ranges must not be lower either.
    """

    measure = "accuracy of paths"

    def __init__(
        self,
        modules: Mapping[str, nn.Module],
        judge: RangeAccuracy | None,
        ranks: Ranks,
        device: torch.device,
        *,
        expansion: Expansion,
        seed: int,
    ) -> None:
        super().__init__(modules, judge, ranks, device)
        self._paths = guarded_paths(expansion, seed=seed)
        self._start: State = {}
        self._images: int | None = None
        self._per_range = _PATHS_PER_RANGE
        self._before: list[RangeSeen] = []
        self._after: list[RangeSeen] = []

    def begin(self, *, seconds: float | None) -> None:
        self._start = self._copied()
        if self._judge is not None:
            if seconds is not None:
                self._fit_into(seconds, self._judge.seconds_per_image(device=self._device))
            self._before = self._seen()

    def _fit_into(self, seconds: float, seconds_per_image: float) -> None:
        """Reduce the images to fit into ``seconds``, and then the paths per range to one if images are too few."""
        count = sum(len(paths) for paths in self._paths)
        if seconds < count * _LEAST_IMAGES * seconds_per_image:
            self._per_range = 1
            count = len(self._paths)
        self._images = max(_LEAST_IMAGES // 2, int(seconds / max(1e-9, count * seconds_per_image)))

    def after_step(self, progress: float) -> None:
        """Nothing: paths are evaluated at the end."""

    def finish(self, *, seconds_left: Callable[[], float] = _for_ever) -> Gain:
        """The start is restored if there is no time for another evaluation."""
        end = self._copied()
        kept, look_s = 1.0, 0.0
        for share in _SHARES:
            began_s = time.monotonic()
            in_time = bool(self._from_lead([float(look_s <= seconds_left())], 1)[0])
            kept = share if in_time else 0.0
            self._put(end, kept)
            if kept == 0.0 or not self._from_lead([float(self._is_worse())], 1)[0]:
                break
            look_s = time.monotonic() - began_s
        after = self._before if kept == 0.0 else self._after
        mean_before, mean_after = self._from_lead([_mean(self._before), _mean(after)], 2)
        return Gain(self.measure, mean_before, mean_after, kept)

    def _is_worse(self) -> bool:
        if self._judge is None:
            return False
        self._after = self._seen()
        if _mean(self._after) < _mean(self._before):  # no range is significantly worse, but the mean is
            return True
        return any(is_worse(before, after) for before, after in zip(self._before, self._after, strict=True))

    def _seen(self) -> list[RangeSeen]:
        assert self._judge is not None
        chosen = [paths[-self._per_range :] for paths in self._paths]
        return [RangeSeen(*self._judge.answers_of(paths, self._images, device=self._device)) for paths in chosen]

    def _put(self, end: State, share: float) -> None:
        """Load the interpolated state, batch-norm statistics included; exact for the weights 0 and 1."""
        for name, module in self._modules.items():
            first, last = self._start[name], end[name]
            module.load_state_dict(
                {
                    key: last[key] if share == 1.0 or not value.is_floating_point() else value.lerp(last[key], share)
                    for key, value in first.items()
                }
                if share
                else first
            )

    @property
    def state(self) -> dict[str, Any]:
        before = [{"scores": seen.scores, "distance": seen.distance} for seen in self._before]
        return {"start": self._start, "images": self._images, "per_range": self._per_range, "before": before}

    def restore(self, state: dict[str, Any]) -> None:
        self._start, self._images, self._per_range = state["start"], state["images"], state["per_range"]
        self._before = [RangeSeen(**seen) for seen in state["before"]]


def guarded_paths(expansion: Expansion, *, seed: int) -> list[list[Subnet]]:
    """A few paths per range of MACs with at least one trained block; every second one has a skip if one fits."""
    ranges, supernet = MacsRanges(expansion), expansion.supernet()
    learning = {block.id for block in expansion.trained}
    found: list[list[Subnet]] = []
    for _, _, paths in ranges.samples(2 * _PATHS_PER_RANGE, seed=seed):
        learned = [path for path in paths if path != supernet.original]
        kept = learned[:_PATHS_PER_RANGE]
        for path in learned[_PATHS_PER_RANGE - 1 :]:
            skipping = [made for made in ranges.skipping(path) if learning & set(made.block_ids)]
            if skipping:
                kept = [*kept[: _PATHS_PER_RANGE - 1], skipping[len(skipping) // 2]]
                break
        if kept:
            found.append(kept)
    return found


def _mean(ranges: Sequence[RangeSeen]) -> float:
    return sum(seen.score for seen in ranges) / len(ranges) if ranges else 0.0


def _copy(module: nn.Module) -> dict[str, torch.Tensor]:
    return {key: value.detach().to("cpu", copy=True) for key, value in module.state_dict().items()}


def recalibrate(expansion: Expansion, batches: Iterable[tuple[Subnet, torch.Tensor]]) -> None:
    """Replace the running statistics of the added blocks by their means over ``batches``.

    During tuning they are moving averages over the last few paths through a block; recalibration averages over many.
    ``batches``: paths with their input [batch, *input]. Blocks on none of the paths keep their statistics.
    """
    modules = {block.id: block.module for block in expansion.trained}
    seen: set[str] = set()
    with contextlib.ExitStack() as stack, torch.no_grad():
        for path, images in batches:
            for name in (modules.keys() & set(path.block_ids)) - seen:
                stack.enter_context(averaging(norms(modules[name])))
                seen.add(name)
            expansion.run(path, images)


def average_statistics(modules: Iterable[nn.Module], ranks: Ranks) -> None:
    """Replace the running statistics, which each process computes on its share of the batches, by their mean over all.

    The statistics are linear in each batch's contribution, so the result does not depend on when or how often.
    """
    layers = dict.fromkeys(layer for module in modules for layer in norms(module))
    pairs = [(layer.running_mean, layer.running_var) for layer in layers]
    ranks.average([part for pair in pairs for part in pair if part is not None])
