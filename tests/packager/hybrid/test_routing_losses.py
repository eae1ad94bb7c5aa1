"""The losses against values that are computed by hand."""

from __future__ import annotations

import math

import pytest
import torch

from packager.hybrid.router_fit import (
    answer_losses,
    base_weights,
    global_weights,
    routing_loss,
    routing_oracle,
    weighted,
)

RIGHT, WRONG = [2.0, 0.0], [0.0, 2.0]


def test_the_oracle_is_one_where_the_base_is_wrong_and_the_global_right():
    base = torch.tensor([WRONG, WRONG, RIGHT, RIGHT])
    global_ = torch.tensor([RIGHT, WRONG, RIGHT, WRONG])
    assert routing_oracle(base, global_, torch.zeros(4, dtype=torch.long)).tolist() == [True, False, False, False]


def test_samples_that_gain_weigh_three_times_in_the_routing_loss():
    # ease is a half for each: both cross entropies are ln 2, nothing counts as asked
    scores = torch.zeros(2)
    loss = routing_loss(scores, torch.tensor([True, False]), coverage=0.0)
    assert float(loss) == pytest.approx((3 * math.log(2) + math.log(2)) / 2)


def test_the_penalty_is_what_the_coverage_lacks():
    # ease = 1/4: r1 − r0 = 1/2; one of two samples: a quarter is asked, 0.75 is covered, 0.9 wanted
    scores = torch.tensor([math.log(1 / 3), math.log(3)])
    oracle = torch.tensor([True, False])
    without = routing_loss(scores, oracle, coverage=0.75)
    assert float(routing_loss(scores, oracle, coverage=0.9) - without) == pytest.approx(0.15)
    assert float(routing_loss(scores, oracle, coverage=0.9, coverage_weight=2.0) - without) == pytest.approx(0.30)
    cross_entropy = (3 * -math.log(3 / 4) + -math.log(3 / 4)) / 2
    assert float(without) == pytest.approx(cross_entropy)


@pytest.mark.parametrize("coverage", [0.0, 1.0])
def test_the_ends_of_the_coverage_have_a_loss(coverage):
    loss = routing_loss(torch.tensor([800.0, -800.0]), torch.tensor([True, False]), coverage=coverage)
    assert math.isfinite(float(loss))


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
