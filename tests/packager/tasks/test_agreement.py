"""Scores while learning are those on the device; losses are least for the targets."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from device_sdk.tasks import TASKS
from packager.tasks import Embedding, MultiLabel, Regression

LEARNING = {"multilabel": MultiLabel(), "regression": Regression(), "embedding": Embedding()}
VALUES = 4


@pytest.fixture(params=LEARNING)
def drawn(request):
    random = np.random.default_rng(3)
    answers, others = random.normal(size=(2, 12, VALUES)).astype(np.float32)
    task = TASKS[request.param](tuple("abcd"))
    return LEARNING[request.param], task, answers, task.checked(task.stand_in((answers + others) / 2), 12)


def test_scores_are_those_on_the_device(drawn):
    learning, task, answers, targets = drawn
    found = learning.score(torch.from_numpy(answers), torch.from_numpy(targets)).numpy()
    np.testing.assert_allclose(found, task.scores(answers, targets), atol=1e-6)
    assert 0 < found.mean() < 1


def test_answers_that_are_nearer_lose_less(drawn):
    learning, task, answers, _ = drawn
    teacher = torch.from_numpy(answers)
    targets = torch.from_numpy(task.stand_in(answers))
    own, other = teacher.clone(), -teacher
    assert learning.target_loss(own, targets) < learning.target_loss(other, targets)
    assert learning.imitation_loss(own, teacher, 4.0) < learning.imitation_loss(other, teacher, 4.0)


def test_a_model_that_does_not_fit_the_data_is_told_apart(drawn):
    learning, *_ = drawn
    names = () if learning.kind == "embedding" else ("a", "b")
    assert learning.complaint((2,), names) is None
    assert learning.complaint((3,), ("a", "b")) is not None
    assert learning.complaint((2, 4, 4), names) is not None


def test_targets_of_whole_samples_do_not_move(drawn):
    learning, _, _, targets = drawn
    labels, by = torch.from_numpy(targets), torch.ones(12)
    assert learning.shifted(labels, by, by, size=(8, 8)) is labels
    assert learning.mirrored(labels) is labels
