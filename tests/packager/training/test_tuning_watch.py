from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch

from device_sdk.progress import SilentProgress, Task
from packager.data.batches import BatchSource
from packager.supernet.expansion import expand
from packager.supernet.macs_ranges import MacsRanges
from packager.training.range_accuracy import RangeAccuracy, TuningWatch
from packager.training.schedule import Schedule


class Rising:
    """Judges like RangeAccuracy: better at every look up to ``looks``, then no more."""

    def __init__(self, looks: int) -> None:
        self._left = looks
        self.looks: list[float] = []

    def look(self, count: int | None = None, *, device: torch.device | None = None) -> list[float]:
        self._left -= 1
        self.looks.append(0.9 - 0.1 * max(self._left, 0))
        return [self.looks[-1], 0.95]


class RisingJudge(RangeAccuracy):
    """Looks like ``Rising``, and judges everything else as it is."""

    def __init__(self, rising: Rising, *given) -> None:
        super().__init__(*given)
        self.look = rising.look


class Noting(SilentProgress):
    """Keeps what is noted beside the bars."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    @contextlib.contextmanager
    def task(self, name: str, total: float, *, done: float = 0.0) -> Iterator[Task]:
        with super().task(name, total) as silent:
            silent.note = self.notes.append  # type: ignore[method-assign]
            yield silent


def tuned(judge: Rising, *, patience: int, steps: int = 600, killed_at: int | None = None) -> Schedule:
    """A phase in which nothing is trained, watched by ``judge``; all of it begins anew from the saved state once."""
    schedule = Schedule(steps=steps, seconds=None)
    watch = TuningWatch(judge, patience=patience, device=torch.device("cpu"))
    while not schedule.over:
        schedule.done += 1
        watch.after_step(schedule)
        if schedule.done == killed_at:
            resumed = TuningWatch(judge, patience=patience, device=torch.device("cpu"))
            resumed.restore(watch.state)
            watch = resumed
            schedule = Schedule(steps=steps, seconds=None, done=schedule.done, winding_from=schedule.winding_from)
    return schedule


@pytest.mark.parametrize("killed_at", [None, 250, 300, 405])
def test_tuning_ends_early_when_patience_is_out(killed_at):
    judge = Rising(2)  # the best look is that after 200 steps
    assert tuned(judge, patience=2, killed_at=killed_at).done == 440  # two looks without a better one, then a tenth
    assert len(judge.looks) == 4


def test_without_patience_tuning_never_ends_early():
    judge = Rising(1)
    assert tuned(judge, patience=0).done == 600
    assert len(judge.looks) == 6


class Slow(Rising):
    """Each look takes 2 s by ``clock``."""

    def __init__(self) -> None:
        super().__init__(1)
        self.seconds = 0.0

    def clock(self) -> float:
        return self.seconds

    def images_within(self, seconds: float, *, device: torch.device | None = None) -> int:
        return max(1, int(seconds))

    def look(self, count: int | None = None, *, device: torch.device | None = None) -> list[float]:
        assert count == 6  # 1 % of 600 s
        self.seconds += 2.0
        return super().look(count, device=device)


def test_where_the_time_is_limited_looks_take_a_small_part_of_it():
    judge, schedule = Slow(), Schedule(steps=6000, seconds=None)
    watch = TuningWatch(judge, patience=0, device=torch.device("cpu"), clock=judge.clock)
    watch.limit(600.0)
    while not schedule.over:
        schedule.done += 1
        judge.seconds += 0.1  # a step; every look would be one in 10 s
        watch.after_step(schedule)
    assert 8 <= len(judge.looks) <= 10  # one in 62 s or more


def test_accuracy_by_cost_stands_beside_the_loss(tiny_traced, digits, digits_preprocessing, run_training):
    expansion = expand(tiny_traced, max_span=4).without(["m1-3", "m1-4", "m2-4", "m2-5", "m3-5"])
    source = BatchSource(digits("train", limit=64), digits_preprocessing, batch=4, seed=0)
    progress = Noting()
    choices = {"steps": 101, "distil_share": 0.0, "checkpoint_seconds": 60.0}
    judge = RisingJudge(Rising(1), expansion, *source.plain(0, 16))
    run_training(expansion, source, judge=judge, progress=progress, **choices)
    assert "accuracy" not in progress.notes[98]
    assert all(note.endswith(", accuracy by cost 90 95 %") for note in progress.notes[99:])


def test_ranges_are_judged_by_the_mean_of_their_paths(tiny_expansion, digits, digits_preprocessing):
    source = BatchSource(digits("search"), digits_preprocessing, batch=64, seed=0)
    images, labels = source.plain(0, 100)
    ranges = [paths for _, _, paths in MacsRanges(tiny_expansion).samples(2, seed=0)]
    judge = RangeAccuracy(tiny_expansion, images, labels, ranges=ranges)
    alone = [judge.accuracies(paths) for paths in ranges]
    assert judge.look() == [pytest.approx(sum(shares) / len(shares)) for shares in alone]
    original = tiny_expansion.supernet().original
    with torch.no_grad():
        expected = (tiny_expansion.traced.whole(images).argmax(1) == labels).float().mean().item()
    assert judge.accuracies([original]) == [pytest.approx(expected)]
