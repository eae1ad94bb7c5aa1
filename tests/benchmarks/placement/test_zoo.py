from __future__ import annotations

import pytest

from benchmarks.placement.zoo import CONVOLUTIONS, HIDDEN, Stage, branch_cost, generated_zoo, resnet56


def test_the_stages_are_those_of_resnet56_on_cifar10() -> None:
    stages = resnet56()
    assert len(stages) == 27
    assert len(CONVOLUTIONS) * len(HIDDEN) == 105
    assert sum(stage.macs for stage in stages) + 64 * 10 == 125_485_696


@pytest.mark.parametrize(
    ("convolution", "hidden", "macs", "parameters"),
    [
        (("none", 1, 0), (), 256 * 10, 257 * 10),
        (("depthwise", 3, 1), (), 16 * 9 * 256 + 2560, 16 * 9 + 32 + 2570),
        (("separable", 5, 1), (), (16 * 25 + 256) * 256 + 2560, 16 * 25 + 256 + 32 + 2570),
        (("spatial", 7, 1), (128,), 16 * 14 * 256 + 256 * 128 + 1280, 16 * 14 + 32 + 257 * 128 + 1290),
    ],
)
def test_a_branch_costs_what_its_layers_cost(convolution, hidden, macs, parameters):
    assert branch_cost(Stage(16, 32, 0), convolution, hidden) == (macs, parameters)


def test_a_seed_gives_the_same_zoo_and_the_cut_points_that_were_asked_for() -> None:
    zoo, full_macs = generated_zoo(500, cuts=5, seed=3)
    assert (zoo, full_macs) == generated_zoo(500, cuts=5, seed=3)
    assert len({one.exit for one in zoo}) == 500
    assert {one.position for one in zoo} == {1, 7, 14, 20, 26}
    assert all(one.reach_time < full_macs for one in zoo)
