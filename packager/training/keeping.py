"""What a training phase keeps: the best state seen, that at its start included.

Blocks and exits learn apart from each other, so each has its own best state. Tuning trains paths, whose blocks are
shared: there the whole state is kept or given up, along the straight line from the start to the end.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from device_sdk.supernet.plan import Subnet
from packager.supernet.expansion import Expansion
from packager.supernet.macs_ranges import MacsRanges
from packager.training.range_accuracy import RangeAccuracy
from packager.training.ranks import Ranks
from packager.training.recalibration import average_statistics

_MARKS = (0.25, 0.5, 0.75)  # of a phase: when blocks and exits are looked at, besides its start and its end
_SHARES = (1.0, 0.5, 0.25, 0.0)  # of the way from the start to the end of tuning
_PATHS_PER_RANGE = 2
_BLOCK_IMAGES = 32  # a look at all blocks costs about what a fifth of a step does
_LEAST_IMAGES = 32

State = dict[str, dict[str, torch.Tensor]]


def _for_ever() -> float:
    return math.inf


@dataclass(frozen=True)
class Gain:
    """What a phase was good for. ``measure``: of what ``before`` and ``after`` are the means on held-out images.

    ``kept``: the share of its way that was kept, of modules that learn apart the share whose end was better than the
    start.
    """

    measure: str
    before: float
    after: float
    kept: float


class Keeper(ABC):
    """Looks at what a phase trains, in all processes alike; the first one judges."""

    def __init__(self, modules: Mapping[str, nn.Module], judge: RangeAccuracy | None, ranks: Ranks) -> None:
        self._modules = modules
        self._judge = judge
        self._ranks = ranks

    @abstractmethod
    def begin(self, *, device: torch.device, seconds: float | None) -> None:
        """See the start. ``seconds``: what a look may take; None: as long as it takes."""

    @abstractmethod
    def after_step(self, progress: float, *, device: torch.device) -> None:
        """See how it goes, if it is time to."""

    @abstractmethod
    def finish(self, *, device: torch.device, seconds_left: Callable[[], float] = _for_ever) -> Gain:
        """See the end, and put back what is best of what there is time to look at."""

    @property
    @abstractmethod
    def state(self) -> dict[str, Any]:
        """What an interrupted run needs to go on."""

    @abstractmethod
    def restore(self, state: dict[str, Any]) -> None:
        """Go on from ``state``."""

    def _copied(self) -> State:
        average_statistics(self._modules.values(), self._ranks)
        return {name: _copy(module) for name, module in self._modules.items()}

    def _from_lead(self, values: Sequence[float], count: int) -> list[float]:
        """``count`` values as the first process has them."""
        mine = list(values) if self._ranks.leads else [0.0] * count
        return self._ranks.sum(torch.tensor(mine, dtype=torch.float64)).tolist()


class BestOfEach(Keeper):
    """Keeps the best state of every module by itself; ``_errors`` judges them."""

    measure = "error"

    def __init__(self, modules: Mapping[str, nn.Module], judge: RangeAccuracy | None, ranks: Ranks) -> None:
        super().__init__(modules, judge, ranks)
        self._best: dict[str, float] = {}
        self._first: dict[str, float] = {}
        self._states: State = {}
        self._looks = 0

    @abstractmethod
    def _errors(self, judge: RangeAccuracy, device: torch.device) -> dict[str, float]:
        """How bad each module is on held-out images."""

    def begin(self, *, device: torch.device, seconds: float | None) -> None:
        """See ``Keeper``."""
        self._look(device)
        self._first = dict(self._best)

    def after_step(self, progress: float, *, device: torch.device) -> None:
        """See ``Keeper``."""
        if self._looks <= len(_MARKS) and progress >= _MARKS[min(self._looks, len(_MARKS)) - 1]:
            self._look(device)

    def finish(self, *, device: torch.device, seconds_left: Callable[[], float] = _for_ever) -> Gain:
        """See ``Keeper``. A look at modules that learn apart is short: it is always taken."""
        self._look(device)
        for name, module in self._modules.items():
            module.load_state_dict(self._states[name])
        count = len(self._best)
        better = sum(self._best[name] < self._first[name] for name in self._best)
        return Gain(self.measure, sum(self._first.values()) / count, sum(self._best.values()) / count, better / count)

    def _look(self, device: torch.device) -> None:
        self._looks += 1
        average_statistics(self._modules.values(), self._ranks)
        errors = self._errors(self._judge, device) if self._judge is not None else {}
        told = self._from_lead([errors.get(name, 0.0) for name in self._modules], len(self._modules))
        for (name, module), error in zip(self._modules.items(), told, strict=True):
            if name not in self._best or error < self._best[name]:
                self._best[name], self._states[name] = error, _copy(module)

    @property
    def state(self) -> dict[str, Any]:
        """See ``Keeper``."""
        return {"best": self._best, "first": self._first, "states": self._states, "looks": self._looks}

    def restore(self, state: dict[str, Any]) -> None:
        """See ``Keeper``."""
        self._best, self._first, self._states = dict(state["best"]), dict(state["first"]), dict(state["states"])
        self._looks = state["looks"]


class BestBlocks(BestOfEach):
    """For distillation: added blocks, by how well they imitate what they replace."""

    measure = "imitation error"

    def _errors(self, judge: RangeAccuracy, device: torch.device) -> dict[str, float]:
        return judge.imitation_errors(_BLOCK_IMAGES, device=device)


class BestExits(BestOfEach):
    """For exits, by their wrong answers behind the original path."""

    measure = "wrong answers"

    def _errors(self, judge: RangeAccuracy, device: torch.device) -> dict[str, float]:
        return judge.exit_errors(device=device)


@dataclass(frozen=True)
class RangeSeen:
    """A range of MACs: the scores of its paths' answers [paths · images], and their distance from the teacher's."""

    scores: torch.Tensor
    distance: float

    @property
    def score(self) -> float:
        """The mean."""
        return float(self.scores.mean())


def is_worse(before: RangeSeen, after: RangeSeen) -> bool:
    """Whether more answers were lost than by chance: more than one standard error of their paired difference.

    Where nothing was right before, and nothing is now, the distance tells.
    """
    change = after.scores - before.scores
    if not bool(before.scores.any() | after.scores.any()):
        return after.distance > before.distance
    lost = -float(change.sum())
    return lost > float(change.square().sum().sqrt()) + 1e-9


class BestOnTheWay(Keeper):
    """For tuning: the farthest state on the straight line from the start to the end at which no range is worse.

    Nor may the mean over all ranges be lower.
    """

    measure = "accuracy of paths"

    def __init__(
        self,
        modules: Mapping[str, nn.Module],
        judge: RangeAccuracy | None,
        ranks: Ranks,
        *,
        expansion: Expansion,
        seed: int,
    ) -> None:
        super().__init__(modules, judge, ranks)
        self._paths = guarded_paths(expansion, seed=seed)
        self._start: State = {}
        self._images: int | None = None
        self._per_range = _PATHS_PER_RANGE
        self._before: list[RangeSeen] = []
        self._after: list[RangeSeen] = []

    def begin(self, *, device: torch.device, seconds: float | None) -> None:
        """See ``Keeper``."""
        self._start = self._copied()
        if self._judge is not None:
            if seconds is not None:
                self._fit_into(seconds, self._judge.seconds_per_image(device=device))
            self._before = self._seen(device)

    def _fit_into(self, seconds: float, seconds_per_image: float) -> None:
        """Few images if time is short, and of each range one path if they would be too few for more."""
        count = sum(len(paths) for paths in self._paths)
        if seconds < count * _LEAST_IMAGES * seconds_per_image:
            self._per_range = 1
            count = len(self._paths)
        self._images = max(_LEAST_IMAGES // 2, int(seconds / max(1e-9, count * seconds_per_image)))

    def after_step(self, progress: float, *, device: torch.device) -> None:
        """Nothing: paths are judged at the end."""

    def finish(self, *, device: torch.device, seconds_left: Callable[[], float] = _for_ever) -> Gain:
        """See ``Keeper``. Once there is no time for a further look the start is kept."""
        end = self._copied()
        kept, look_s = 1.0, 0.0
        for share in _SHARES:
            began_s = time.monotonic()
            in_time = bool(self._from_lead([float(look_s <= seconds_left())], 1)[0])
            kept = share if in_time else 0.0
            self._put(end, kept)
            if kept == 0.0 or not self._from_lead([float(self._is_worse(device))], 1)[0]:
                break
            look_s = time.monotonic() - began_s
        after = self._before if kept == 0.0 else self._after
        told = self._from_lead([_mean(self._before), _mean(after)], 2)
        return Gain(self.measure, told[0], told[1], kept)

    def _is_worse(self, device: torch.device) -> bool:
        if self._judge is None:
            return False
        self._after = self._seen(device)
        if _mean(self._after) < _mean(self._before):  # each by no more than chance, but all together
            return True
        return any(is_worse(before, after) for before, after in zip(self._before, self._after, strict=True))

    def _seen(self, device: torch.device) -> list[RangeSeen]:
        assert self._judge is not None
        chosen = [paths[-self._per_range :] for paths in self._paths]
        return [RangeSeen(*self._judge.answers_of(paths, self._images, device=device)) for paths in chosen]

    def _put(self, end: State, share: float) -> None:
        """The state at this share of the way, statistics included; at both ends exactly what was there."""
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
        """See ``Keeper``."""
        before = [{"scores": seen.scores, "distance": seen.distance} for seen in self._before]
        return {"start": self._start, "images": self._images, "per_range": self._per_range, "before": before}

    def restore(self, state: dict[str, Any]) -> None:
        """See ``Keeper``."""
        self._start, self._images, self._per_range = state["start"], state["images"], state["per_range"]
        self._before = [RangeSeen(**seen) for seen in state["before"]]


def guarded_paths(expansion: Expansion, *, seed: int) -> list[list[Subnet]]:
    """A few paths of each range of MACs, in which some added block learns; every other one with a skip if one fits."""
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
