from __future__ import annotations

import pytest

from benchmarks.placement import zoo
from benchmarks.placement.zoo import CLASSES, generated_zoo, resnet56, trained_zoo
from packager.branch_zoo.specs import branch_cost, parse, specs_for


def test_the_stages_are_those_of_resnet56_on_cifar10() -> None:
    stages = resnet56()
    assert len(stages) == 27
    assert all(len(specs_for(stage.shape)) == 105 for stage in stages)
    assert sum(stage.macs for stage in stages) + 64 * CLASSES == 125_485_696


def test_a_candidate_costs_what_its_branch_of_the_packagers_zoo_costs() -> None:
    stages, (found, _) = resnet56(), generated_zoo(105, cuts=1, seed=0)
    for one in found:
        name = one.exit.split("-", 1)[1].removesuffix("-0")
        cost = branch_cost(parse(name), stages[one.position - 1].shape, classes=CLASSES)
        assert (one.branch_time, one.memory_bytes) == (cost.macs, cost.nbytes)


@pytest.mark.parametrize(("count", "cuts"), [(1_000, 10), (10_000, 26)])
def test_there_are_as_many_different_candidates_as_the_bench_asks_for(count, cuts):
    assert len({one.exit for one in generated_zoo(count, cuts=cuts, seed=0)[0]}) == count


def test_a_seed_gives_the_same_zoo_and_the_cut_points_that_were_asked_for() -> None:
    zoo, full_macs = generated_zoo(500, cuts=5, seed=3)
    assert (zoo, full_macs) == generated_zoo(500, cuts=5, seed=3)
    assert len({one.exit for one in zoo}) == 500
    assert {one.position for one in zoo} == {1, 7, 14, 20, 26}
    assert all(one.reach_time < full_macs for one in zoo)


def test_without_trained_exits_there_is_no_trained_zoo(monkeypatch, tmp_path):
    monkeypatch.setattr(zoo, "TRAINED", tmp_path / "none.safetensors")
    assert trained_zoo(None) is None
