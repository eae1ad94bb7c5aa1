from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from device_sdk.errors import UsageError
from packager.inputs.job import Job
from packager.inputs.loaded_model import LoadedModel
from packager.inputs.recipe import Recipe
from packager.output.checkpoints import Checkpoints
from packager.planning.estimate import EXPORT, TRAIN, VALIDATE
from packager.planning.run_plan import RunPlan, estimated, estimator_for, memory_in_use, within_limits


class Clock:
    """A clock that only moves when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def job(tiny_traced, digits, digits_preprocessing) -> Callable[..., Job]:
    def build(**choices) -> Job:
        recipe = Recipe(**({"steps": None} | choices))
        model = LoadedModel(tiny_traced.whole, (1, 8, 8), digits_preprocessing, None, "tiny", None, "tests")
        return Job(model, digits("train"), "train", digits("search"), "search", recipe, "tiny")

    return build


@pytest.fixture
def plan(job, tiny_expansion, tmp_path, clock) -> Callable[..., RunPlan]:
    def build(*, memory_bytes: int = 10**12, spent: float = 0.0, state: bool = False, **choices) -> RunPlan:
        checkpoints = Checkpoints(tmp_path / "work", {}, clock=clock)
        if state:
            checkpoints.begin()
            clock.now = 500.0
            checkpoints.save({"phase": "tune"})
            checkpoints = Checkpoints(tmp_path / "work", {}, clock=clock)
        clock.now += spent
        return RunPlan(job(**choices), tiny_expansion, torch.zeros(4, 1, 8, 8), memory_bytes, checkpoints)

    return build


# Minutes


def test_training_gets_what_the_other_steps_leave(plan, clock):
    made = plan(budget_minutes=60)
    kept = 3600 - made.training_seconds()
    assert made.now.least_validation_s < kept < 1.1001 * made.now.after_training
    clock.now = 1000.0
    assert made.training_seconds() == pytest.approx(3600 - 1000 - kept)
    clock.now = 4000.0
    assert made.training_seconds() == 0


def test_steps_that_are_slower_than_expected_leave_less_for_validation_and_calibration(plan, clock):
    made = plan(budget_minutes=60, renditions=("fp32", "int8"))
    expected, wanted = made.now.seconds["int8"], made.calibration_samples()
    assert wanted == made.now.calibration_samples
    made.learn(EXPORT, 10 * made.now.seconds[EXPORT])
    assert made.now.seconds["int8"] > expected
    clock.now = 3600 - 0.5 * made.now.seconds["int8"]
    assert 16 <= made.calibration_samples() < 0.6 * wanted
    assert 0 < made.validation_seconds() < 3600 - clock.now


def test_with_steps_there_is_no_end(plan):
    made = plan(steps=10)
    assert made.training_seconds() == made.validation_seconds() == float("inf")


def test_minutes_below_the_least_are_refused_with_the_least(plan):
    with pytest.raises(UsageError, match=r"0\.01 minutes are too few") as caught:
        plan(budget_minutes=0.01)
    least = float(str(caught.value.hint).split("at least ")[1].split(" minutes")[0])
    assert plan(budget_minutes=3 * least).training_seconds() >= 0


def test_a_run_that_goes_on_is_not_refused_and_counts_what_it_has_spent(plan):
    made = plan(budget_minutes=10, state=True)  # 500 of its 600 seconds are gone
    assert made.training_seconds() < 100


# Memory


def test_memory_below_the_least_is_refused_with_the_least(plan):
    with pytest.raises(UsageError, match="GB of memory are too few") as caught:
        plan(steps=1, memory_bytes=100_000_000)
    least = float(str(caught.value.hint).split("at least ")[1].split(" GB")[0])
    plan(steps=1, memory_bytes=int(least * 1e9) + 10_000_000)


def test_training_batches_fit_into_the_memory_and_a_note_says_so(plan):
    made = plan(steps=1, device="cpu", batch=4096)
    sample = made._estimator._training_sample_bytes()
    room = memory_in_use() + 400_000_000
    small = plan(steps=1, device="cpu", batch=2 * 400_000_000 // sample, memory_bytes=room)
    assert small.now.training_batch < 400_000_000 // sample
    assert small.notes[0].startswith(f"trained with batches of {small.now.training_batch} instead of ")
    assert made.notes == ()


@pytest.mark.parametrize(("most", "relative"), [(None, 1), (4096, 1), (24, 0)])
def test_a_jobs_batches_only_become_smaller(job, most, relative):
    wanted = job(steps=1)
    whole = wanted.batches().batch_size
    assert wanted.batches(most=most).batch_size == (whole if relative else 24)


def test_a_job_recalibrates_with_no_more_batches_than_fit(job):
    assert within_limits(job(steps=1), recalibrate=7).recipe.recalibrate_batches == 7
    assert within_limits(job(steps=1), recalibrate=30).recipe.recalibrate_batches is None
    assert within_limits(job(steps=1, recalibrate_batches=0), recalibrate=7).recipe.recalibrate_batches == 0


# The estimate


def test_an_estimate_says_minutes_memory_and_size(job, tiny_expansion):
    estimator = estimator_for(
        job(budget_minutes=5, renditions=("fp32", "int8")), tiny_expansion, torch.zeros(4, 1, 8, 8)
    )
    said = estimated(estimator, 8_000_000_000, spent=3.0)
    assert said["minutes"] == pytest.approx(5, abs=0.02)
    assert 0 < said["least_minutes"] < 5
    assert list(said["seconds"]) == [
        *("train", "recalibrate", "export", "verify", "int8", "other input sizes", "validate", "write")
    ]
    assert 0 < said["least_memory_gb"] <= said["peak_gb"] < 8
    assert said["memory_limit_gb"] == 8
    weights = sum(block.parameters for block in tiny_expansion.blocks)
    assert said["bundle_mb"] > 5 * weights / 1e6


def test_more_steps_take_longer_and_change_nothing_else(job, tiny_expansion):
    few, many = (
        replace(estimator_for(job(steps=1), tiny_expansion, torch.zeros(4, 1, 8, 8)), recipe=Recipe(steps=steps))
        for steps in (10, 1000)
    )
    many = replace(many, machine=few.machine)
    first, second = (one.estimate(memory_bytes=10**12, resident_bytes=0, spent=0.0) for one in (few, many))
    assert second.seconds[TRAIN] == pytest.approx(100 * first.seconds[TRAIN])
    assert second.seconds[VALIDATE] == first.seconds[VALIDATE]
