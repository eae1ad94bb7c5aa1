from __future__ import annotations

import numpy as np
import pytest

from device_sdk.bundles.manifest import Task
from device_sdk.data.unlabelled import IGNORED
from device_sdk.errors import InputError
from device_sdk.tasks import TASKS, answer_task
from device_sdk.tasks.classification import Accuracy
from device_sdk.tasks.detection import BoxesFound
from device_sdk.tasks.embedding import Similarity
from device_sdk.tasks.margins import by_margin
from device_sdk.tasks.multilabel import LabelsFound
from device_sdk.tasks.port import Prediction
from device_sdk.tasks.regression import RelativeAgreement
from device_sdk.tasks.segmentation import MeanIoU, interpolated
from device_sdk.tasks.tokens import SpansFound, TokensRight, tag_parts, token_spans

NAMES = ("a", "b", "c")


def maps(*rows):
    return np.array([rows])


def logits_of(classes, count=3):
    """Logits [batch, count, rows, columns] whose largest are ``classes``."""
    return np.moveaxis(np.eye(count, dtype=np.float32)[classes], -1, 1)


def detections(*cells, rows=4, columns=4):
    """One answer with these (class, left, top, right, bottom) in the cells of their centres, nothing in the others."""
    answer = np.full((1, 3 + 4, rows, columns), -5.0, dtype=np.float32)
    for class_, *box in cells:
        x, y = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
        row, column = int(y * rows), int(x * columns)
        centre_x, centre_y = (column + 0.5) / columns, (row + 0.5) / rows
        answer[0, class_, row, column] = 3.0
        sides = [centre_x - box[0], centre_y - box[1], box[2] - centre_x, box[3] - centre_y]
        answer[0, 3:, row, column] = np.log(sides)
    return answer


@pytest.mark.parametrize(
    ("kind", "output", "expected"),
    [
        ("classification", "logits", Accuracy),
        ("segmentation", "logits", MeanIoU),
        ("detection", "cells", BoxesFound),
        ("multilabel", "logits", LabelsFound),
        ("regression", "values", RelativeAgreement),
        ("embedding", "vector", Similarity),
        ("token_classification", "logits", TokensRight),
    ],
)
def test_every_task_has_a_score(kind, output, expected):
    assert isinstance(answer_task(Task(kind, NAMES, output)), expected)


def test_accuracy_is_the_share_of_right_classes():
    answers = np.eye(3, dtype=np.float32)
    assert Accuracy(3).of(answers, np.array([0, 1, 1])) == pytest.approx(2 / 3)


def test_mean_iou_counts_the_classes_that_occur_and_no_ignored_pixels():
    found, wanted = maps([0, 0], [1, 1]), maps([0, 1], [1, IGNORED])
    # class 0: 1 of 2 pixels, class 1: 1 of 2; class 2 occurs nowhere
    assert MeanIoU(3).of(logits_of(found), wanted) == pytest.approx(0.5)


def test_mean_iou_is_that_of_torchmetrics():
    torch = pytest.importorskip("torch")
    metrics = pytest.importorskip("torchmetrics.classification")
    random = np.random.default_rng(0)
    answers = random.normal(size=(3, 4, 5, 6)).astype(np.float32)
    wanted = random.integers(0, 4, (3, 10, 9))
    wanted[random.random(wanted.shape) < 0.1] = IGNORED
    larger = torch.nn.functional.interpolate(torch.from_numpy(answers), size=(10, 9), mode="bilinear")
    metric = metrics.MulticlassJaccardIndex(num_classes=4, ignore_index=IGNORED)
    assert MeanIoU(4).of(answers, wanted) == pytest.approx(float(metric(larger.argmax(1), torch.from_numpy(wanted))))


def test_answers_are_interpolated_as_torch_does():
    torch = pytest.importorskip("torch")
    answer = np.random.default_rng(0).normal(size=(2, 3, 5)).astype(np.float32)
    for size in ((7, 11), (2, 5), (3, 2)):
        expected = torch.nn.functional.interpolate(torch.from_numpy(answer)[None], size=size, mode="bilinear")[0]
        np.testing.assert_allclose(interpolated(answer, size), expected.numpy(), atol=1e-6)


def test_a_box_is_found_by_its_class_and_half_of_its_area():
    boxes = np.array([[[0, 0.1, 0.1, 0.4, 0.4], [1, 0.6, 0.6, 0.9, 0.9], [-1, 0, 0, 0, 0]]], np.float32)
    score = BoxesFound(3)
    assert score.of(detections((0, 0.1, 0.1, 0.4, 0.4), (1, 0.6, 0.6, 0.9, 0.9)), boxes) == 1.0
    assert score.of(detections((0, 0.1, 0.1, 0.4, 0.4), (2, 0.6, 0.6, 0.9, 0.9)), boxes) == 0.5
    assert score.of(detections((1, 0.6, 0.6, 0.7, 0.7)), boxes) == 0.0


def test_boxes_found_are_those_of_the_packager():
    torch = pytest.importorskip("torch")
    from packager.tasks.detection import Detection

    random = np.random.default_rng(0)
    answers = random.normal(size=(6, 7, 5, 4)).astype(np.float32)
    corner = random.random((6, 8, 2)) * 0.5
    boxes = np.concatenate([random.integers(0, 3, (6, 8, 1)), corner, corner + 0.4], axis=2).astype(np.float32)
    answers[:, 3:] = np.log(0.2)
    expected = Detection().score(torch.from_numpy(answers), torch.from_numpy(boxes))
    assert float(expected.mean()) > 0
    assert BoxesFound(3).of(answers, boxes) == pytest.approx(float(expected.mean()))


def drawn(kind, count=9):
    """Random answers of a kind of task, and targets that they meet in part."""
    random = np.random.default_rng(1)
    shapes = {"segmentation": (3, 6, 5), "detection": (7, 6, 5), "token_classification": (3, 8)}
    shape = (count, *shapes.get(kind, (3,)))
    answers, others = random.normal(size=(2, *shape)).astype(np.float32)
    task = TASKS[kind](("O", "B-a", "I-a"))
    return task, answers, task.checked(task.stand_in((answers + others) / 2), count)


@pytest.mark.parametrize("kind", TASKS)
def test_every_task_implements_the_port(kind):
    task, answers, targets = drawn(kind)
    scores, margins = task.scores(answers, targets), task.margins(answers, targets)
    assert scores.shape == margins.shape == (9,)
    assert scores.dtype == np.float32
    assert ((scores >= 0) & (scores <= 1)).all()
    assert 0 < scores.mean() < 1
    assert task.scores(answers, task.stand_in(answers)) == pytest.approx(1.0)
    assert task.margin_scale(margins.astype(np.float64), 9) > 0
    for one in range(9):  # a sample's score does not depend on the others
        assert task.scores(answers[one:][:1], targets[one:][:1]) == pytest.approx(scores[one : one + 1])
    compared = task.compared(answers)
    assert compared.shape[0] == 9
    assert np.array_equal(compared[3:5], task.compared(answers[3:5]))


@pytest.mark.parametrize("kind", [kind for kind in TASKS if kind != "classification"])
def test_scores_between_0_and_1_are_expected_again_of_samples_like_these(kind):
    task, answers, targets = drawn(kind)
    margins = task.margins(answers, targets).astype(np.float64)
    expected = by_margin(margins, task.margin_scale(margins, 9))
    np.testing.assert_allclose(expected, task.scores(answers, targets), atol=1e-5)


def test_labels_found_counts_what_is_there_and_what_is_found():
    task = LabelsFound(3)
    answers = np.array([[1.0, -1.0, 1.0], [-1.0, -1.0, -1.0]], np.float32)
    targets = task.checked([[1, 0, 0], [0, 0, 0]], 2)
    np.testing.assert_allclose(task.scores(answers, targets), [2 / 3, 1.0], rtol=1e-6)
    assert task.of(answers, targets) == pytest.approx(2 / 3)


def test_numbers_agree_whatever_their_unit():
    task = RelativeAgreement(1)
    answers, targets = np.array([[1.0], [3.0]], np.float32), task.checked([1, 1], 2)
    np.testing.assert_allclose(task.scores(answers, targets), [1.0, 0.5])
    np.testing.assert_allclose(task.scores(1000 * answers, 1000 * targets), [1.0, 0.5])


def test_vectors_are_compared_by_their_direction():
    task = Similarity(0)
    wanted = task.checked(np.array([[1, 0], [1, 0], [1, 0]], np.float32), 3)
    answers = np.array([[5, 0], [1, 1], [-1, 0]], np.float32)
    np.testing.assert_allclose(task.scores(answers, wanted), [1, 0.5**0.5, 0], atol=1e-6)


def test_a_coarse_and_a_fine_answer_are_scored_at_the_same_points():
    wanted = np.zeros((1, 200, 160), dtype=np.int64)
    wanted[:, 100:] = 1
    fine, coarse = logits_of(wanted), logits_of(wanted[:, ::50, ::40])
    task = MeanIoU(3)
    assert task.scores(fine, wanted) == pytest.approx(1.0)
    assert task.scores(coarse, wanted) == pytest.approx(task.of(coarse, wanted), abs=0.02)


def test_a_sample_that_is_not_labelled_at_all_scores_nothing():
    assert MeanIoU(3).scores(logits_of(maps([0, 1])), np.full((1, 2, 2), IGNORED)) == pytest.approx(0.0)


def test_boxes_found_where_nothing_is_cost_score_and_none_where_nothing_is_are_right():
    task, one = BoxesFound(3), (0, 0.1, 0.1, 0.4, 0.4)
    there = np.array([[one, (-1, 0, 0, 0, 0)]], np.float32)
    nothing = np.full((1, 2, 5), -1, np.float32)
    assert task.scores(detections(one), there) == pytest.approx(1.0)
    assert task.scores(detections(one, (1, 0.6, 0.6, 0.9, 0.9)), there) == pytest.approx(2 / 3)
    assert task.scores(detections(one), nothing) == pytest.approx(0.0)
    assert task.scores(detections(), nothing) == pytest.approx(1.0)


@pytest.mark.parametrize("score", [Accuracy(3), MeanIoU(3), BoxesFound(3)])
def test_answers_meet_the_targets_that_they_stand_in_for(score):
    random = np.random.default_rng(1)
    shape = {"accuracy": (9, 3), "mIoU": (9, 3, 6, 5), "boxes found": (9, 7, 6, 5)}[score.name]
    answers = random.normal(size=shape).astype(np.float32)
    if score.name == "boxes found":
        answers = np.concatenate([detections((0, 0.1, 0.1, 0.4, 0.4), (1, 0.6, 0.6, 0.9, 0.9))] * 2)
    targets = score.stand_in(answers)
    assert score.of(answers, score.checked(targets, len(answers))) == 1.0


def test_of_boxes_that_overlap_the_surest_stands():
    answer = detections((0, 0.1, 0.1, 0.6, 0.6))
    answer[0, :, 0, 1] = answer[0, :, 1, 1]  # the same size a cell higher, which overlaps it by a half and more
    answer[0, 0, 0, 1] = 2.0
    answer[0, 3:, 0, 1] = np.log([0.2, 0.1, 0.3, 0.5])
    boxes = BoxesFound(3).stand_in(answer)
    assert (boxes[0, :, 0] >= 0).sum() == 1
    np.testing.assert_allclose(boxes[0, 0], [0, 0.1, 0.1, 0.6, 0.6], atol=1e-6)


@pytest.mark.parametrize(
    ("score", "targets"),
    [
        (Accuracy(3), [0, 3]),
        (Accuracy(3), [0.5, 1.0]),
        (Accuracy(3), [[0], [1]]),
        (Accuracy(3), [0]),
        (MeanIoU(3), np.full((2, 4, 4), 3)),
        (MeanIoU(3), np.zeros((2, 4))),
        (LabelsFound(3), [[0, 1, 2], [0, 0, 0]]),
        (LabelsFound(3), [0, 1]),
        (RelativeAgreement(3), np.zeros(2)),
        (RelativeAgreement(3), np.full((2, 3), np.nan)),
        (Similarity(0), np.zeros((2, 3), np.int64)),
        (Similarity(0), np.zeros((3, 3), np.float32)),
        (BoxesFound(3), np.zeros((2, 4, 4))),
        (BoxesFound(3), np.full((2, 1, 5), np.nan)),
        (BoxesFound(3), np.full((2, 1, 5), 3.0)),
    ],
)
def test_targets_that_do_not_fit_are_refused(score, targets):
    with pytest.raises(InputError):
        score.checked(targets, 2)


def tokens(*texts, extent=4):
    """Logits [texts, 3, extent] whose largest are these classes; padding has none."""
    answers = np.zeros((len(texts), 3, extent), dtype=np.float32)
    for answer, classes in zip(answers, texts, strict=True):
        answer[classes, np.arange(len(classes))] = 1
    return answers


def test_tokens_that_do_not_count_are_neither_right_nor_wrong():
    task, targets = TokensRight(3), np.array([[-100, 0, 1, -1], [2, 2, -1, -1], [-1, -1, -1, -1]])
    answers = tokens([2, 0, 2], [2, 2], [1])
    np.testing.assert_allclose(task.scores(answers, task.checked(targets, 3)), [0.5, 1, 1])
    assert task.of(answers, targets) == 0.75
    assert task.stand_in(answers).tolist() == [[2, 0, 2, -1], [2, 2, -1, -1], [1, -1, -1, -1]]


def test_tokens_beyond_a_shorter_length_are_wrong():
    task, answers = TokensRight(3), tokens([2, 0, 2, 1], [1])
    targets = task.stand_in(answers)
    np.testing.assert_allclose(task.scores(answers[:, :, :2], targets), [0.5, 1])
    assert task.of(answers[:, :, :2], targets) == 3 / 5
    assert task.compared(answers[:, :, :2]).shape == task.compared(answers).shape


@pytest.mark.parametrize(("targets", "said"), [([[0, 3]], "between 0 and 2"), ([0], "a class for each token")])
def test_classes_of_tokens_are_checked(targets, said):
    with pytest.raises(InputError, match=said):
        TokensRight(3).checked(np.array(targets), 1)


TAGS = ("O", "B-per", "I-per", "B-org", "I-org", "other-kind")
OUT, PER, MORE_PER, ORG, MORE_ORG, OTHER = range(6)


def spans_found(found, wanted):
    """F1 of one text with these classes of its tokens."""
    task, answers = SpansFound(TAGS), np.zeros((1, 6, len(found)), dtype=np.float32)
    answers[0, found, np.arange(len(found))] = 1
    [score] = task.scores(answers, task.checked(np.array([wanted]), 1))
    assert task.of(answers, np.array([wanted])) == pytest.approx(score)
    return pytest.approx(score)


@pytest.mark.parametrize(
    ("found", "wanted", "score"),
    [
        ([PER, MORE_PER, OUT, ORG], [PER, MORE_PER, OUT, ORG], 1),
        ([OUT, OUT], [OUT, OUT], 1),
        ([OUT, OUT], [OUT, ORG], 0),
        ([PER, OUT], [OUT, OUT], 0),
        ([PER, OUT, OUT], [PER, MORE_PER, OUT], 0),  # too short
        ([PER, PER, OUT], [PER, MORE_PER, OUT], 0),  # two
        ([ORG, MORE_ORG], [PER, MORE_PER], 0),  # another kind
        ([MORE_PER, MORE_PER, OUT], [PER, MORE_PER, OUT], 1),  # begins behind nothing
        ([PER, MORE_ORG], [PER, ORG], 1),  # a mark that continues nothing begins
        ([PER, MORE_PER, ORG], [PER, MORE_PER, PER], 0.5),
        ([PER, ORG, MORE_PER], [PER, -1, MORE_PER], 1),  # passed over
        ([OTHER, OTHER], [OTHER, OTHER], 1),
        ([OTHER, OUT], [OTHER, OTHER], 2 / 3),  # each for itself
    ],
)
def test_spans_count_as_a_whole(found, wanted, score):
    assert spans_found(found, wanted) == score


def test_spans_beyond_a_shorter_length_are_missed():
    task, wanted = SpansFound(TAGS), np.array([[PER, MORE_PER, OUT, ORG], [OUT, PER, MORE_PER, -1]])
    answers = np.zeros((2, 6, 2), dtype=np.float32)
    answers[0, [PER, MORE_PER], [0, 1]] = answers[1, [OUT, PER], [0, 1]] = 1
    np.testing.assert_allclose(task.scores(answers, wanted), [2 / 3, 0])
    assert task.of(answers, wanted) == pytest.approx(2 / 5)


def test_spans_are_judged_of_models_with_a_class_for_what_is_outside():
    assert isinstance(TASKS["token_classification"](TAGS), SpansFound)
    assert TASKS["token_classification"](("noun", "verb")).name == "token accuracy"


@pytest.mark.parametrize(
    ("name", "parts"),
    [("B-per", ("B", "per")), ("E-per", ("E", "per")), ("other-kind", ("", "other-kind")), ("B-", ("", "B-"))],
)
def test_marks_are_told_from_names(name, parts):
    assert tag_parts(name) == parts


def test_predictions_say_what_was_found():
    assert Accuracy(2).predictions(np.array([[0.0, 2.0], [np.nan, 1.0]], np.float32), "ab") == [
        (Prediction("b", pytest.approx(0.880797)),),
        (),
    ]
    assert LabelsFound(3).predictions(np.array([[1.0, -1.0, 2.0]]), "abc") == [
        (Prediction("c", pytest.approx(0.880797)), Prediction("a", pytest.approx(0.731059)))
    ]
    assert RelativeAgreement(2).predictions(np.array([[0.5, -2.0]]), "ab") == [
        (Prediction("a", value=0.5), Prediction("b", value=-2.0))
    ]
    assert Similarity(0).predictions(np.ones((2, 3)), ()) == [(), ()]
    found = MeanIoU(3).predictions(logits_of(maps([0, 2], [2, 2])), "abc")
    assert found[0] == (Prediction("c", share=0.75), Prediction("a", share=0.25))


def test_a_predicted_box_is_the_surest_of_those_that_overlap():
    answer = detections((0, 0.1, 0.1, 0.6, 0.6), (2, 0.7, 0.7, 0.9, 0.9))
    answer[0, :, 0, 1] = answer[0, :, 1, 1]
    answer[0, 0, 0, 1] = 2.0
    answer[0, 3:, 0, 1] = np.log([0.2, 0.1, 0.3, 0.5])
    answer[0, 2, 3, 3] = 1.0
    [found] = BoxesFound(3).predictions(answer, "abc")
    assert [(one.label, one.confidence) for one in found] == [
        ("a", pytest.approx(0.952574)),
        ("c", pytest.approx(0.731059)),
    ]
    np.testing.assert_allclose(found[1].box, [0.7, 0.7, 0.9, 0.9], atol=1e-6)


def test_spans_and_tokens_are_predicted_with_their_places():
    task, answers = SpansFound(TAGS), np.zeros((1, 6, 6), dtype=np.float32)
    answers[0, [OUT, PER, MORE_PER, OTHER, OUT], np.arange(5)] = 1
    assert task.predictions(answers, TAGS) == [
        (Prediction("per", tokens=(1, 3)), Prediction("other-kind", tokens=(3, 4)))
    ]
    [found] = TokensRight(6).predictions(answers, tuple("abcdef"))
    assert [one.label for one in found] == ["a", "b", "c", "f", "a"]


def test_a_word_belongs_to_the_span_of_its_first_token():
    classes, joined = np.array([-1, PER, OUT, ORG, ORG, -1]), np.array([False, False, True, False, True, False])
    assert token_spans(TAGS, classes, joined) == [(1, 3, "per"), (3, 5, "org")]
