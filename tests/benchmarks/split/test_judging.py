"""The doubt of one decision is that of the ways that it measures itself."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.split.judging import OneDecision
from device_sdk.policies.deciding.promises import caution_of
from device_sdk.policies.splitting.path_splits import SplitCost

COUNT = 300


class Scores:
    """Of 300 samples each way loses as many as it has bits missing; eight bits lose none, and the whole is exact."""

    def differences(self, cost):
        return np.repeat([1.0, 0.0], [8 - cost.bits[0], COUNT - 8 + cost.bits[0]]) if cost.bits else np.zeros(COUNT)

    def drop(self, cost):
        return float(self.differences(cost).mean())

    def caution(self, cost):
        return 0.5 if cost.bits else 0.0


def way(bits):
    return SplitCost(1, 0.0, 0.0, 0.0, 0, bits=(bits,) if bits else ())


def test_turns_are_counted_from_the_first_way_of_a_decision():
    first, second = OneDecision(Scores(), 0.8), OneDecision(Scores(), 0.8)
    for bits in (8, 7, 6):
        first.drop(way(bits))
    second.drop(way(6))
    third_turn, first_turn = (one.caution(way(6)) for one in (first, second))
    assert third_turn == pytest.approx(caution_of(Scores().differences(way(6)), 0.8, turn=3))
    assert first_turn == pytest.approx(caution_of(Scores().differences(way(6)), 0.8, turn=1))
    assert first_turn < third_turn


def test_a_way_takes_one_turn_and_what_is_exact_none():
    judge = OneDecision(Scores(), 0.8)
    assert (judge.drop(way(0)), judge.caution(way(0))) == (0.0, 0.0)
    judge.drop(way(8))
    judge.drop(way(8))
    judge.drop(way(7))
    assert judge.caution(way(7)) == pytest.approx(caution_of(Scores().differences(way(7)), 0.8, turn=2))
