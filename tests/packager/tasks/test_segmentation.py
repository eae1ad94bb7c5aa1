from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.data.unlabelled import IGNORED
from packager.tasks import Segmentation, mixed_loss

TASK = Segmentation()
MIX = {"temperature": 2.0, "label_weight": 0.5}


def answers_for(targets, classes=3, sure=20.0):
    hot = torch.nn.functional.one_hot(targets.long().clamp_max(classes - 1), classes)
    return sure * hot.permute(0, 3, 1, 2).float()


def test_right_pixels_score_and_ignored_ones_do_not_count():
    targets = torch.tensor([[[0, 1], [2, IGNORED]]], dtype=torch.uint8)
    wrong = torch.tensor([[[0, 1], [1, 0]]], dtype=torch.uint8)
    assert TASK.score(answers_for(targets), targets).tolist() == [1.0]
    torch.testing.assert_close(TASK.score(answers_for(wrong), targets), torch.tensor([2 / 3]))


def test_coarse_answers_are_judged_at_the_resolution_of_the_targets():
    targets = torch.zeros(2, 8, 8, dtype=torch.uint8)
    assert TASK.score(answers_for(torch.zeros(2, 2, 2)), targets).tolist() == [1.0, 1.0]


def test_the_loss_is_least_where_answers_agree_with_targets_and_teacher():
    targets = torch.tensor([[[0, 1], [2, IGNORED]]], dtype=torch.uint8)
    right, wrong = answers_for(targets), answers_for(2 - targets.clamp_max(2))
    assert mixed_loss(TASK, right, targets, right, **MIX) < 1e-3
    assert mixed_loss(TASK, wrong, targets, right, **MIX) > 1.0


@given(rows=st.integers(-3, 3), columns=st.integers(-3, 3))
def test_targets_move_with_their_image(rows, columns):
    pixels = torch.arange(1, 26, dtype=torch.uint8).view(1, 5, 5)
    padded = torch.nn.functional.pad(pixels, [3] * 4)
    image = padded[:, 3 + rows : 8 + rows, 3 + columns : 8 + columns]
    moved = TASK.shifted(pixels, torch.tensor([rows]), torch.tensor([columns]), size=(5, 5))
    assert torch.equal(moved, torch.where(image == 0, torch.full_like(image, IGNORED), image))


def test_a_model_that_answers_otherwise_is_told_apart():
    assert TASK.complaint((3, 4, 5), ("a", "b", "c")) is None
    assert "3 classes" in TASK.complaint((3,), ("a", "b", "c"))
