"""The losses against values that are computed by hand."""

from __future__ import annotations

import math

import pytest
import torch

from packager.hybrid.deciding import answer_losses, base_weights, global_weights, weighted


def test_base_and_global_weigh_what_is_theirs_twice():
    routed = torch.tensor([True, False])
    assert base_weights(routed).tolist() == [1.0, 2.0]
    assert global_weights(routed).tolist() == [2.0, 1.0]
    assert float(weighted(torch.tensor([3.0, 5.0]), base_weights(routed))) == pytest.approx((3 + 10) / 2)


def test_an_answer_s_loss_mixes_its_label_with_the_teacher_s_answer():
    logits, labels = torch.tensor([[1.0, 0.0]]), torch.tensor([0])
    cross_entropy = math.log(1 + math.exp(-1))
    assert float(answer_losses(logits, labels)) == pytest.approx(cross_entropy)
    same = answer_losses(logits, labels, logits, label_weight=0.25, temperature=2.0)
    assert float(same) == pytest.approx(0.25 * cross_entropy, rel=1e-5)
    # a teacher at temperature 2 with logits 0, 0: both halves; the distance is Σ ½ ln(½ / p)
    p = 1 / (1 + math.exp(-0.5))
    distance = 0.5 * math.log(0.5 / p) + 0.5 * math.log(0.5 / (1 - p))
    found = answer_losses(logits, labels, torch.zeros(1, 2), label_weight=0.25, temperature=2.0)
    assert float(found) == pytest.approx(0.25 * cross_entropy + 0.75 * 4 * distance, rel=1e-5)
