from __future__ import annotations

import logging
import threading
import tracemalloc

import numpy as np

from device_sdk.errors import StorageError
from device_sdk.live.mix_follower import MixFollower, MixSettings
from device_sdk.supernet.plan import Prior

SETTINGS = MixSettings(window=100, least_answers=40)
CLASSES = 5


def of_class(label: int, prior: Prior | None = None) -> np.ndarray:
    logits = np.zeros((1, CLASSES), dtype=np.float32)
    logits[0, label] = 3.0
    return logits if prior is None else (logits + np.array(prior.log_ratios)).astype(np.float32)


def test_a_new_prior_is_taken_once_until_the_mix_changes_again():
    taken: list[Prior] = []
    follower = MixFollower(lambda prior, answers, moved: taken.append(prior), SETTINGS)
    for _ in range(60):
        follower.note(of_class(2), None)
    follower.look()
    [prior] = taken
    assert int(np.argmax(prior.log_ratios)) == 2
    for _ in range(60):
        follower.note(of_class(2, prior), prior)
    follower.look()
    for _ in range(200):
        follower.note(of_class(4, prior), prior)
    follower.look()
    assert int(np.argmax(taken[-1].log_ratios)) == 4


def test_the_thread_takes_priors_and_survives_one_that_cannot_be_stored(caplog):
    taken = threading.Event()
    calls: list[int] = []

    def adopt(prior: Prior, answers: int, moved_share: float) -> None:
        calls.append(answers)
        if len(calls) == 1:
            raise StorageError("the disk is full")
        taken.set()

    follower = MixFollower(adopt, SETTINGS)
    with caplog.at_level(logging.WARNING):
        follower.start()
        for _ in range(60):
            follower.note(of_class(2), None)
        assert taken.wait(60)
        follower.stop()
    follower.stop()
    assert "the disk is full" in caplog.text


def test_what_waits_to_be_counted_is_bounded():
    follower = MixFollower(lambda prior, answers, moved: None, SETTINGS)
    tracemalloc.start()
    for _ in range(1000):
        follower.note(np.zeros((64, 1000), dtype=np.float32), None)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 20_000_000
