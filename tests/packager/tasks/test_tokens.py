from __future__ import annotations

import numpy as np
import pytest
import torch

from device_sdk.tasks.tokens import SpansFound, TokensRight
from packager.tasks import TokenClassification

LEARNING, DEVICE = TokenClassification(("a", "b", "c")), TokensRight(3)
TAGS = ("O", "B-a", "I-a")


@pytest.fixture
def drawn():
    """Answers to four texts of 8, 5, 3 and 1 tokens, and targets that they meet now and then."""
    random = np.random.default_rng(3)
    answers = random.normal(size=(4, 3, 8)).astype(np.float32)
    answers *= (np.arange(8) < np.array([8, 5, 3, 1])[:, None])[:, None]
    targets = np.where(random.random((4, 8)) < 0.5, answers.argmax(axis=1), 0)
    return answers, np.where(DEVICE.stand_in(answers) < 0, -1, targets)


@pytest.mark.parametrize("tokens", [8, 5])
def test_scores_are_those_on_the_device_at_every_length(drawn, tokens):
    answers, targets = drawn
    answers = answers[:, :, :tokens]
    found = LEARNING.score(torch.from_numpy(answers), torch.from_numpy(targets)).numpy()
    np.testing.assert_allclose(found, DEVICE.scores(answers, targets), atol=1e-6)
    assert 0 < found.mean() < 1
    found = LEARNING.with_classes(TAGS).score(torch.from_numpy(answers), torch.from_numpy(targets)).numpy()
    np.testing.assert_allclose(found, SpansFound(TAGS).scores(answers, targets))


def test_answers_that_are_nearer_lose_less(drawn):
    teacher = torch.from_numpy(drawn[0])
    targets = torch.from_numpy(DEVICE.stand_in(drawn[0]))
    assert LEARNING.target_loss(teacher, targets) < LEARNING.target_loss(-teacher, targets)
    assert LEARNING.imitation_loss(teacher[:, :, :5], teacher, 4.0) < LEARNING.imitation_loss(-teacher, teacher, 4.0)
    assert LEARNING.target_loss(teacher, torch.full((4, 8), -100)) == 0


def test_a_token_without_an_answer_is_as_far_as_can_be(drawn):
    whole = torch.from_numpy(drawn[0])
    np.testing.assert_allclose(LEARNING.distance(whole, whole), 0, atol=1e-6)
    np.testing.assert_allclose(LEARNING.distance(whole[:, :, :4], whole), [4 / 8, 1 / 5, 0, 0], atol=1e-6)


def test_the_model_answers_with_classes_and_tokens():
    assert LEARNING.complaint((3, 8), ("a", "b", "c")) is None
    assert LEARNING.complaint((3,), ("a", "b", "c")) == "the model answers with 3, not 3 classes × tokens"
    assert LEARNING.class_count((3, 8)) == 3
