from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from packager.data.batches import BatchSource
from packager.errors import TrainingError
from packager.supernet.expansion import expand


class SmallMemory(BatchSource):
    """Has room for so many samples at a time."""

    room = 0
    asked: tuple[int, ...] = ()

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.asked += (step,)
        images, labels = super().batch(step)
        return Crowded.of(images, self.room), labels


class Crowded(torch.Tensor):
    """Images that do not fit into memory, unless they are cut to ``room``."""

    @staticmethod
    def of(images: torch.Tensor, room: int) -> torch.Tensor:
        crowded = images.as_subclass(Crowded)
        crowded.room = room
        return crowded

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function is torch.Tensor.to and len(args[0]) > args[0].room:
            raise torch.OutOfMemoryError("out of memory")
        with torch._C.DisableTorchFunctionSubclass():
            found = function(*args, **(kwargs or {}))
        if function is torch.Tensor.__getitem__:
            return Crowded.of(found, args[0].room)
        return found.as_subclass(torch.Tensor) if isinstance(found, Crowded) else found


@pytest.fixture
def small_memory(digits, digits_preprocessing) -> Callable[[int], SmallMemory]:
    def make(room: int) -> SmallMemory:
        source = SmallMemory(digits("train", limit=128), digits_preprocessing, batch=32, seed=5)
        source.room = room
        return source

    return make


def test_short_memory_halves_the_batch_once_and_says_so(tiny_expansion, tiny_traced, small_memory, run_training):
    source = small_memory(16)
    trainer = run_training(tiny_expansion, source, steps=6)
    assert trainer.notes == ("memory was too short: trained with batches of 16",)
    assert sum(trainer.steps_done.values()) == 6
    assert source.asked[:2] == (0, 0)  # the step that did not fit, again
    resumed = run_training(expand(tiny_traced, max_span=3), source, steps=6)
    assert resumed.notes == trainer.notes  # what was saved says so too


def test_memory_that_is_still_too_short_is_an_error(tiny_expansion, small_memory, run_training):
    with pytest.raises(TrainingError, match="too short for a batch of 16") as caught:
        run_training(tiny_expansion, small_memory(15), steps=6)
    assert "lower the recipe's batch" in str(caught.value.hint)
