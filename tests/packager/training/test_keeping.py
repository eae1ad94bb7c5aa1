from __future__ import annotations

import pytest
import torch

from packager.branch_zoo.plain import attach_exits
from packager.data.batches import BatchSource
from packager.training.keeping import BestOnTheWay, RangeSeen, guarded_paths, is_worse
from packager.training.range_accuracy import RangeAccuracy
from packager.training.ranks import Alone

pytestmark = pytest.mark.alone

RUIN = {"steps": 4, "distil_rate": 1.0, "tune_rate": 30.0, "exit_rate": 30.0, "recalibrate_batches": 0}


@pytest.fixture(scope="module")
def held_out(digits, digits_preprocessing):
    return BatchSource(digits("search"), digits_preprocessing, batch=64, seed=0).plain(0, 96)


@pytest.fixture
def source(digits, digits_preprocessing) -> BatchSource:
    return BatchSource(digits("train", limit=300), digits_preprocessing, batch=32, seed=5)


def states(parts) -> dict[str, torch.Tensor]:
    return {f"{p.id}.{key}": value.clone() for p in parts for key, value in p.module.state_dict().items()}


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(value, second[name]) for name, value in first.items())


def test_distillation_that_harms_is_undone(tiny_expansion, source, held_out, run_training):
    judge = RangeAccuracy(tiny_expansion, *held_out)
    run_training(tiny_expansion, source, judge=judge, work="first", steps=60, distil_share=1.0)
    good, errors = states(tiny_expansion.trained), judge.imitation_errors(32)
    trainer = run_training(tiny_expansion, source, judge=judge, **RUIN, distil_share=1.0)
    assert same(good, states(tiny_expansion.trained))
    assert judge.imitation_errors(32) == pytest.approx(errors)
    assert trainer.report[0].gain.kept == 0.0
    assert trainer.report[0].gain.before == trainer.report[0].gain.after


def test_distillation_that_helps_is_kept_block_by_block(tiny_expansion, source, held_out, run_training):
    judge = RangeAccuracy(tiny_expansion, *held_out)
    before = judge.imitation_errors(32)
    trainer = run_training(tiny_expansion, source, judge=judge, steps=60, distil_share=1.0)
    after = judge.imitation_errors(32)
    assert all(after[name] <= before[name] for name in before)
    gain = trainer.report[0].gain
    assert (gain.measure, gain.kept) == ("imitation error", 1.0)
    assert gain.after == pytest.approx(sum(after.values()) / len(after), rel=1e-4)


def test_tuning_that_harms_is_undone(tiny_expansion, source, held_out, run_training):
    judge = RangeAccuracy(tiny_expansion, *held_out)
    run_training(tiny_expansion, source, judge=judge, work="first", steps=60)
    good = states(tiny_expansion.trained)
    trainer = run_training(tiny_expansion, source, judge=judge, **RUIN, distil_share=0.0)
    tune = trainer.report[-1]
    assert (tune.phase, tune.gain.kept) == ("tune", 0.0)
    assert same(good, states(tiny_expansion.trained))
    assert tune.gain.after == tune.gain.before


def test_without_time_for_another_look_the_start_of_tuning_is_kept(tiny_expansion, held_out):
    modules = {block.id: block.module for block in tiny_expansion.trained}
    judge = RangeAccuracy(tiny_expansion, *held_out)
    keeper = BestOnTheWay(modules, judge, Alone(), torch.device("cpu"), expansion=tiny_expansion, seed=0)
    before = states(tiny_expansion.trained)
    keeper.begin(seconds=None)
    with torch.no_grad():
        for module in modules.values():
            for parameter in module.parameters():
                parameter.mul_(-1.0)
    gain = keeper.finish(seconds_left=lambda: 1e-6)  # enough for the first look alone
    assert gain.kept == 0.0
    assert same(before, states(tiny_expansion.trained))


def test_ranges_are_never_worse_after_tuning(tiny_expansion, source, held_out, run_training):
    judge = RangeAccuracy(tiny_expansion, *held_out)
    for rate in (0.02, 2.0):
        paths = guarded_paths(tiny_expansion, seed=0)
        before = [RangeSeen(*judge.answers_of(each)) for each in paths]
        choices = {"steps": 20, "distil_share": 0.0, "tune_rate": rate}
        run_training(tiny_expansion, source, judge=judge, work=f"{rate}", **choices)
        after = [RangeSeen(*judge.answers_of(each)) for each in paths]
        assert not any(is_worse(one, other) for one, other in zip(before, after, strict=True))


def test_exits_are_never_worse_than_their_best(tiny_expansion, source, held_out, run_training):
    expansion = attach_exits(tiny_expansion, count=3)
    judge = RangeAccuracy(expansion, *held_out)
    run_training(expansion, source, judge=judge, work="first", steps=60, exit_share=1.0)
    good, errors = states(expansion.exits), judge.exit_errors()
    trainer = run_training(expansion, source, judge=judge, **RUIN, exit_share=1.0)
    assert all(error <= errors[name] + 1e-9 for name, error in judge.exit_errors().items())
    assert trainer.report[-1].gain.after <= trainer.report[-1].gain.before
    assert good.keys() == states(expansion.exits).keys()


def test_an_interrupted_phase_keeps_the_start_of_the_whole(
    tiny_traced, dying_source, digits, digits_preprocessing, held_out, run_training
):
    from packager.supernet.expansion import expand

    choices = {"steps": 12, "distil_share": 0.5, "tune_rate": 0.5, "distil_rate": 0.05}
    whole = expand(tiny_traced, max_span=3)
    expected = run_training(whole, dying_source, judge=RangeAccuracy(whole, *held_out), work="whole", **choices)
    halted = expand(tiny_traced, max_span=3)
    dying_source.dies_at = 4
    with pytest.raises(type(dying_source).Killed):
        run_training(halted, dying_source, judge=RangeAccuracy(halted, *held_out), **choices)
    dying_source.dies_at = None
    resumed = expand(tiny_traced, max_span=3)
    trainer = run_training(resumed, dying_source, judge=RangeAccuracy(resumed, *held_out), **choices)
    assert same(states(whole.trained), states(resumed.trained))
    assert [one.gain for one in trainer.report] == [one.gain for one in expected.report]


def seen(*scores: float, distance: float = 1.0) -> RangeSeen:
    return RangeSeen(torch.tensor(scores), distance)


@pytest.mark.parametrize(
    ("before", "after", "worse"),
    [
        (seen(1, 1, 1, 1, 0), seen(1, 1, 0, 0, 0), True),
        (seen(1, 1, 1, 1, 0), seen(1, 1, 1, 0, 0), False),  # one answer may be chance
        (seen(1, 1, 0, 0), seen(0, 0, 1, 1), False),
        (seen(0, 0, distance=2.0), seen(0, 0, distance=3.0), True),
        (seen(0, 0, distance=2.0), seen(0, 0, distance=1.0), False),
        (seen(1, 0, distance=2.0), seen(1, 1, distance=3.0), False),
    ],
)
def test_a_range_is_worse_if_it_lost_more_than_by_chance(before, after, worse):
    assert is_worse(before, after) is worse


@pytest.mark.slow
def test_a_time_budget_chooses_the_batch_and_is_kept(tiny_expansion, source, held_out, run_training):
    judge = RangeAccuracy(tiny_expansion, *held_out)
    trainer = run_training(tiny_expansion, source, judge=judge, budget_minutes=0.2)
    assert [one.phase for one in trainer.report] == ["distil", "tune"]
    assert all(8 <= one.batch <= 32 for one in trainer.report)
    assert all(one.steps > 0 for one in trainer.report)
    assert trainer.report[0].rate < 2e-3
    assert trainer.report[1].rate < 2e-2
    assert sum(one.minutes for one in trainer.report) < 0.4
    assert "distil: " in str(trainer.report[0])
