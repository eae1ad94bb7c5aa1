from __future__ import annotations

import torch

from packager.tasks import Detection, mixed_loss
from packager.tasks.detection import assigned, boxes_of, overlap

TASK = Detection()
MIX = {"temperature": 2.0, "label_weight": 0.5}
SIZE = (8, 10)  # of the grid
# two boxes and an empty row
BOXES = torch.tensor([[[1, 0.1, 0.2, 0.5, 0.8], [0, 0.6, 0.1, 0.9, 0.4], [-1, 0, 0, 0, 0]]], dtype=torch.float32)


def perfect(targets, sure=20.0):
    wanted = assigned(targets, classes=2, rows=SIZE[0], columns=SIZE[1])
    return torch.cat([sure * (2 * wanted.classes - 1), wanted.distances.log()], dim=1)


def test_cells_at_the_centre_of_a_box_are_its_own():
    wanted = assigned(BOXES, classes=2, rows=SIZE[0], columns=SIZE[1])
    assert wanted.classes[0, 1, 4, 3] == 1
    assert wanted.classes[0, 0, 2, 7] == 1
    assert wanted.classes[0, :, 7, 0].sum() == 0
    boxes = boxes_of(perfect(BOXES))
    torch.testing.assert_close(boxes[0, :, 4, 3], BOXES[0, 0, 1:])
    torch.testing.assert_close(boxes[0, :, 2, 7], BOXES[0, 1, 1:])


def test_a_box_smaller_than_a_cell_still_has_one():
    tiny = torch.tensor([[[0, 0.501, 0.501, 0.505, 0.505]]])
    assert assigned(tiny, classes=2, rows=4, columns=4).classes.sum() >= 1


def test_perfect_answers_score_one_and_have_the_least_loss():
    right, silent = perfect(BOXES), perfect(torch.full_like(BOXES, -1))
    assert TASK.score(right, BOXES).tolist() == [1.0]
    assert TASK.score(silent, BOXES).tolist() == [0.0]
    assert mixed_loss(TASK, right, BOXES, right, **MIX) < 0.02 < 0.5 < mixed_loss(TASK, silent, BOXES, right, **MIX)


def test_the_loss_can_be_learned_from():
    answers = torch.zeros(1, 6, *SIZE, requires_grad=True)
    teacher = perfect(BOXES)
    optimizer = torch.optim.Adam([answers], lr=0.3)
    first = mixed_loss(TASK, answers, BOXES, teacher, **MIX).item()
    for _ in range(80):
        optimizer.zero_grad()
        loss = mixed_loss(TASK, answers, BOXES, teacher, **MIX)
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.2 * first
    assert TASK.score(answers.detach(), BOXES).tolist() == [1.0]


def test_mirrored_twice_is_the_same_and_once_is_the_other_side():
    once = TASK.mirrored(BOXES)
    torch.testing.assert_close(once[0, 0], torch.tensor([1, 0.5, 0.2, 0.9, 0.8]))
    torch.testing.assert_close(TASK.mirrored(once), BOXES)


def test_boxes_move_with_the_image_and_are_dropped_when_most_is_gone():
    moved = TASK.shifted(BOXES, torch.tensor([0]), torch.tensor([28]), size=(100, 100))
    torch.testing.assert_close(moved[0, 1], torch.tensor([0, 0.32, 0.1, 0.62, 0.4]))
    assert moved[0, :, 0].tolist() == [1, 0, -1]  # more than half of the first is left
    gone = TASK.shifted(BOXES, torch.tensor([0]), torch.tensor([35]), size=(100, 100))
    assert gone[0, :, 0].tolist() == [-1, 0, -1]


def test_overlap_is_intersection_over_union():
    one, other = torch.tensor([0.0, 0.0, 0.5, 1.0]), torch.tensor([0.25, 0.0, 0.75, 1.0])
    torch.testing.assert_close(overlap(one, other), torch.tensor(1 / 3))


def test_a_model_that_answers_otherwise_is_told_apart():
    assert TASK.complaint((6, 4, 5), ("a", "b")) is None
    assert "6 × rows" in TASK.complaint((2, 4, 5), ("a", "b"))
