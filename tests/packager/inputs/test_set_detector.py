"""Detectors of transformers, whose answers are sets of boxes, as detectors of cells."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from device_sdk.bundles.bundle import Bundle
from device_sdk.tasks.detection import BoxesFound, boxes_of
from packager.errors import ModelLoadError
from packager.inputs.model_loader import load_model
from packager.inputs.set_detector import GRID, cells_of_boxes
from pathweave.cli import main

SIDE = 64


class Told(nn.Module):
    """Answers with these logits and boxes whatever it sees."""

    def __init__(self, logits, boxes, classes=2):
        super().__init__()
        self.config = SimpleNamespace(num_labels=classes)
        self.answer = SimpleNamespace(logits=torch.tensor([logits]), pred_boxes=torch.tensor([boxes]))

    def forward(self, pixel_values):
        count = len(pixel_values)
        return SimpleNamespace(
            logits=self.answer.logits.expand(count, -1, -1), pred_boxes=self.answer.pred_boxes.expand(count, -1, -1)
        )


def found_by(model):
    """Boxes that devices read in its answer to two images, those of the first: rows of class and sides."""
    answers = cells_of_boxes(model, (SIDE, SIDE))(torch.zeros(2, 3, SIDE, SIDE)).numpy()
    assert answers.shape == (2, 2 + 4, GRID, GRID)
    np.testing.assert_array_equal(answers[0], answers[1])
    found = BoxesFound(2).stand_in(answers)[0]
    return found[found[:, 0] >= 0]


def test_boxes_of_a_set_are_those_that_devices_find():
    boxes = [[0.3, 0.4, 0.2, 0.1], [0.75, 0.8, 0.3, 0.2], [0.5, 0.5, 0.9, 0.9]]
    found = found_by(Told([[4.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 5.0]], boxes))  # the last is no object
    np.testing.assert_allclose(found, [[0, 0.2, 0.35, 0.4, 0.45], [1, 0.6, 0.7, 0.9, 0.9]], atol=1e-5)


def test_the_surest_of_two_boxes_in_one_cell_is_kept():
    boxes = [[0.3, 0.4, 0.2, 0.1], [0.3, 0.4, 0.6, 0.6]]
    found = found_by(Told([[2.0, 0.0, 0.0], [0.0, 4.0, 0.0]], boxes))
    np.testing.assert_allclose(found, [[1, 0.0, 0.1, 0.6, 0.7]], atol=1e-5)


def test_logits_are_of_a_class_against_everything_else():
    shares = torch.tensor([0.7, 0.1, 0.2])
    boxes = [[0.5 + 0.5 / GRID, 0.5 + 0.5 / GRID, 0.2, 0.2]]
    softmax, sigmoid = ([shares.log().tolist()], [torch.logit(shares[:2]).tolist()])
    for logits in (softmax, sigmoid):
        answers = cells_of_boxes(Told(logits, boxes), (SIDE, SIDE))(torch.zeros(1, 3, SIDE, SIDE))
        at = GRID // 2
        np.testing.assert_allclose(answers[0, :2, at, at], torch.logit(shares[:2]), atol=1e-5)
        np.testing.assert_allclose(boxes_of(answers.numpy())[0, :, at, at], [0.4156, 0.4156, 0.6156, 0.6156], atol=1e-3)


def test_another_answer_is_a_line():
    with pytest.raises(ModelLoadError, match="answers with no set of boxes"):
        cells_of_boxes(Told([[1.0, 2.0, 3.0, 4.0]], [[0.5, 0.5, 0.1, 0.1]]), (SIDE, SIDE))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    transformers = pytest.importorskip("transformers", reason="needs the extra huggingface")
    folder = tmp_path_factory.mktemp("yolos")
    torch.manual_seed(0)
    config = transformers.YolosConfig(
        image_size=[SIDE, SIDE],
        patch_size=16,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        num_detection_tokens=6,
        id2label={0: "cell", 1: "plate"},
    )
    transformers.YolosForObjectDetection(config).save_pretrained(folder)
    transformers.YolosImageProcessor().save_pretrained(folder)
    return folder


def test_images_without_a_size_of_their_own_need_one(folder):
    with pytest.raises(ModelLoadError, match="no size of their own") as caught:
        load_model(f"hf:{folder}")
    assert "--input-shape" in caught.value.hint


def test_a_folder_becomes_a_bundle_of_boxes(folder, tmp_path):
    random = np.random.default_rng(0)
    for part in ("images", "labels"):
        (tmp_path / "data" / part).mkdir(parents=True)
    for number in range(8):
        Image.fromarray(random.integers(0, 255, (48, 80, 3), dtype=np.uint8)).save(
            tmp_path / "data" / "images" / f"{number}.png"
        )
        (tmp_path / "data" / "labels" / f"{number}.txt").write_text(f"{number % 2} 0.5 0.5 0.4 0.3\n")
    (tmp_path / "data" / "classes.txt").write_text("cell\nplate\n")
    data = str(tmp_path / "data")
    arguments = ["package", "--task", "detection", "--model", f"hf:{folder}", "--input-shape", f"3x{SIDE}x{SIDE}"]
    assert main([*arguments, "--data", data, "--val", data, "--steps", "0", "--out", str(tmp_path / "bundle")]) == 0
    bundle = Bundle.open(tmp_path / "bundle")
    assert (bundle.manifest.task.kind, bundle.manifest.task.class_names) == ("detection", ("cell", "plate"))
    assert len(bundle.supernet.blocks) > len(bundle.supernet.original.edges)
