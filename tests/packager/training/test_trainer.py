from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from device_sdk.progress import SilentProgress
from packager.branch_zoo.plain import attach_exits
from packager.data.batches import BatchSource
from packager.errors import TrainingError
from packager.inputs.recipe import Recipe
from packager.output.checkpoints import Checkpoints
from packager.supernet.expansion import Expansion, expand
from packager.supernet.macs_ranges import MacsRanges
from packager.tracing.traced_model import trace
from packager.training.losses import Losses, distillation_errors
from packager.training.trainer import Trainer

RUN = {"run": "test"}
DEFAULTS = {"checkpoint_seconds": 0.0, "device": "cpu", "precision": "float32", "seed": 5, "recalibrate_batches": 0}
TUNING = 1_000_000_000  # batches of the second phase are counted from here
EXITS = 2 * TUNING  # and those of the third from here


class Killed(Exception):
    """The process dies here."""


class RecordingSource(BatchSource):
    """Notes the steps that are asked for; dies, or gives what is no number, at one of them."""

    def __init__(self, dataset, preprocessing, *, killed_at: int | None = None, nan_at: int | None = None, **choices):
        super().__init__(dataset, preprocessing, **choices)
        self.steps: list[int] = []
        self._killed_at, self._nan_at = killed_at, nan_at

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        if step == self._killed_at:
            raise Killed
        self.steps.append(step)
        images, labels = super().batch(step)
        return (images * float("nan") if step == self._nan_at else images), labels


@pytest.fixture(scope="module")
def training_set(digits):
    return digits("train", limit=300)


@pytest.fixture
def make_source(training_set, digits_preprocessing) -> Callable[..., RecordingSource]:
    def make(**faults: int) -> RecordingSource:
        return RecordingSource(training_set, digits_preprocessing, batch=32, seed=5, crop=0.125, **faults)

    return make


@pytest.fixture
def train(make_source, tmp_path) -> Callable[..., Trainer]:
    """Trains an expansion, its work kept in a folder of the test; returns the trainer."""

    def run(expansion: Expansion, *, source: BatchSource | None = None, work: Path | None = None, **choices) -> Trainer:
        recipe = Recipe(**(DEFAULTS | choices))
        checkpoints = Checkpoints(work or tmp_path / "work", RUN)
        checkpoints.begin()
        trainer = Trainer(expansion, source or make_source(), recipe, checkpoints, SilentProgress())
        trainer.train()
        return trainer

    return run


@pytest.fixture
def held_back(digits, digits_preprocessing, make_source) -> torch.Tensor:
    source = BatchSource(digits("search"), digits_preprocessing, batch=64, seed=0)
    return source.plain(0, 200)[0]


@pytest.fixture
def with_exits(tiny_expansion) -> Expansion:
    return attach_exits(tiny_expansion, count=3)


def weights(expansion: Expansion) -> dict[str, torch.Tensor]:
    return {
        f"{block.id}.{name}": value.clone()
        for block in (*expansion.blocks, *expansion.exits)
        for name, value in block.module.state_dict().items()
    }


def differing(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> set[str]:
    return {name for name in first if not torch.equal(first[name], second[name])}


# What training does


def test_distillation_brings_every_block_nearer_to_what_it_replaces(tiny_expansion, train, held_back):
    before = distillation_errors(tiny_expansion, held_back)
    train(tiny_expansion, steps=60, distil_share=1.0)
    after = distillation_errors(tiny_expansion, held_back)
    assert before.keys() == {block.id for block in tiny_expansion.added}
    assert all(after[name] < before[name] for name in before)
    assert sum(after.values()) < 0.7 * sum(before.values())


def test_tuning_brings_subnets_nearer_to_the_full_model(tiny_expansion, train, held_back):
    def disagreement() -> float:
        with torch.no_grad():
            teacher = tiny_expansion.traced.features(held_back)[-1]
            paths = sorted({MacsRanges(tiny_expansion).sample(seed) for seed in range(40)})
            return sum((tiny_expansion.run(path, held_back) - teacher).square().mean().item() for path in paths)

    for block in tiny_expansion.added:
        block.module.eval()
    before = disagreement()
    train(tiny_expansion, steps=60, distil_share=0.0, label_weight=0.0)
    assert disagreement() < 0.7 * before


def test_distillation_from_student_features_trains_the_blocks_of_sampled_paths(tiny_expansion, train, make_source):
    choices = {"steps": 40, "distil_share": 1.0, "distil_from": "student"}
    losses, ranges = Losses(tiny_expansion, make_source(), Recipe(**choices)), MacsRanges(tiny_expansion)
    for step in range(6):
        for block in tiny_expansion.added:
            block.module.zero_grad(set_to_none=True)
        losses.distil(step).backward()
        trained = {b.id for b in tiny_expansion.added if any(p.grad is not None for p in b.module.parameters())}
        assert trained == set(ranges.sample(step).block_ids) & {block.id for block in tiny_expansion.added}

    def error() -> float:
        with torch.no_grad():
            return sum(losses.distil(step).item() for step in range(1000, 1010))

    before = error()
    train(tiny_expansion, **choices)
    assert error() < 0.9 * before


def test_all_kinds_of_blocks_learn_and_skips_have_nothing_to(tiny_traced, train):
    pytest.importorskip("torch_pruning", reason="torch-pruning, which shrinks blocks, is not installed")
    expansion = expand(tiny_traced, max_span=2, shrink_rates=(0.5,), identity=True)
    before = weights(expansion)
    train(expansion, steps=24, distil_share=0.5)
    changed = {name.split(".")[0] for name in differing(before, weights(expansion))}
    assert changed == {block.id for block in expansion.trained}
    assert {block.kind for block in expansion.trained} == {"merged", "shrunk"}


def test_skips_alone_leave_nothing_to_train(tiny_traced, train, make_source):
    source = make_source()
    trainer = train(expand(tiny_traced, max_span=1, identity=True), source=source, steps=5)
    assert (source.steps, sum(trainer.steps_done.values())) == ([], 0)


def test_sandwich_sampling_trains_the_cheapest_path_every_other_step(tiny_expansion, make_source):
    ranges = MacsRanges(tiny_expansion)
    losses = Losses(tiny_expansion, make_source(), Recipe(steps=8, sampling="sandwich"))
    trained = []
    for step in range(8):
        for block in tiny_expansion.added:
            block.module.zero_grad(set_to_none=True)
        losses.tune(step).backward()
        trained.append({b.id for b in tiny_expansion.added if any(p.grad is not None for p in b.module.parameters())})
    cheapest = {edge.block for edge in ranges.cheapest.edges} & {block.id for block in tiny_expansion.added}
    assert all(trained[step] == cheapest for step in (0, 2, 4, 6))
    assert all(trained[step] <= cheapest for step in (1, 5))
    assert [trained[step] for step in (3, 7)] == [
        {edge.block for edge in ranges.sample(step).edges} & {block.id for block in tiny_expansion.added}
        for step in (3, 7)
    ]


def test_cheapest_sampling_leaves_blocks_beside_the_cheapest_path_as_distilled(tiny_traced, train, tmp_path):
    distilled, tuned = (expand(tiny_traced, max_span=2, shrink_rates=(0.5,)) for _ in range(2))
    train(distilled, steps=6, distil_share=1.0, work=tmp_path / "distilled")
    train(tuned, steps=12, distil_share=0.5, sampling="cheapest")
    cheapest = set(MacsRanges(tuned).cheapest.block_ids)
    trained = {block.id for block in tuned.trained}
    changed = {name.split(".")[0] for name in differing(weights(distilled), weights(tuned))}
    assert trained - cheapest
    assert changed == trained & cheapest


def test_exits_come_to_answer_like_the_full_model(tiny_traced, train, held_back):
    expansion = attach_exits(expand(tiny_traced, max_span=1), count=3)

    def agreement() -> dict[str, float]:
        with torch.no_grad():
            features = tiny_traced.features(held_back)
            answers = {exit_.id: exit_.module.eval()(features[exit_.position]) for exit_ in expansion.exits}
        return {name: (a.argmax(1) == features[-1].argmax(1)).float().mean().item() for name, a in answers.items()}

    before = agreement()
    train(expansion, steps=40)
    after = agreement()
    assert len(after) == 6
    assert all(after[name] > before[name] + 0.15 for name in before)
    assert after["x4-conv"] > 0.9
    assert after["x4-conv"] > after["x2-conv"]  # later features know more


def test_training_exits_changes_nothing_but_exits(with_exits, train, held_back):
    for block in with_exits.added:
        block.module.eval()
    before = weights(with_exits)
    with torch.no_grad():
        features = with_exits.traced.features(held_back)
    train(with_exits, steps=10, exit_share=1.0)
    names = {f"{exit_.id}." for exit_ in with_exits.exits}
    trained = {name for name in before if name.startswith(tuple(names))}
    assert differing(before, weights(with_exits)) == trained  # all of it, batch-norm statistics included
    with torch.no_grad():
        assert all(torch.equal(a, b) for a, b in zip(features, with_exits.traced.features(held_back), strict=True))


def test_exits_also_learn_from_the_features_of_sampled_paths(with_exits, tiny_traced, make_source):
    recipe = Recipe(steps=1, precision="float32", seed=5)
    plain = attach_exits(expand(tiny_traced, max_span=1), count=3)
    plain = replace(plain, exits=with_exits.exits)  # the same exits, with no path but the original one
    losses = [Losses(expansion, make_source(), recipe) for expansion in (with_exits, plain)]
    updates = losses[0].exit_updates
    for block in with_exits.added:
        block.module.eval()
    with torch.no_grad():
        assert losses[0].exits(0) == losses[1].exits(0)
        assert losses[0].exits(updates) != losses[1].exits(updates)  # every other step


@pytest.mark.parametrize(("batch", "updates"), [(2, 1), (31, 1), (32, 2), (64, 4), (1000, 4)])
def test_a_batch_is_used_for_as_many_updates_as_its_size_allows(with_exits, training_set, make_source, batch, updates):
    losses = Losses(with_exits, make_source(), Recipe(steps=1, batch=batch))
    assert losses.exit_updates == updates


def test_originals_stay_bit_identical_in_both_phases(tiny_expansion, train):
    before = weights(tiny_expansion)
    train(tiny_expansion, steps=20, distil_share=0.5)
    changed = differing(before, weights(tiny_expansion))
    assert not {name for name in changed if name.startswith("o")}
    for block in tiny_expansion.added:  # every trained tensor moved, batch-norm statistics included
        assert {name for name in before if name.startswith(f"{block.id}.")} <= changed


def test_steps_are_shared_between_the_phases(tiny_expansion, train, make_source):
    source = make_source()
    trainer = train(tiny_expansion, source=source, steps=10, distil_share=0.35)
    assert trainer.steps_done == {"distil": 4, "tune": 6, "exits": 0}
    assert source.steps == [*range(4), *range(TUNING, TUNING + 6)]


def test_exits_have_their_share_and_the_blocks_share_the_rest(with_exits, train, make_source):
    source = make_source()
    trainer = train(with_exits, source=source, steps=20, distil_share=0.25, exit_share=0.2)
    assert trainer.steps_done == {"distil": 4, "tune": 12, "exits": 4}
    assert source.steps == [*range(4), *range(TUNING, TUNING + 12), *range(EXITS, EXITS + 4)]


def test_without_added_blocks_the_exits_have_the_whole_training(tiny_traced, train, make_source):
    source = make_source()
    trainer = train(attach_exits(expand(tiny_traced, max_span=1), count=3), source=source, steps=5)
    assert trainer.steps_done == {"distil": 0, "tune": 0, "exits": 5}
    assert source.steps == [*range(EXITS, EXITS + 5)]


def test_a_time_budget_is_kept(with_exits, train):
    trainer = train(with_exits, budget_minutes=1.0 / 60, distil_share=0.5)
    assert all(steps > 0 for steps in trainer.steps_done.values())


def test_all_that_was_trained_is_left_in_evaluation_mode(with_exits, train):
    train(with_exits, steps=4, exit_share=0.5)
    trained = (*with_exits.added, *with_exits.exits)
    assert not any(module.training for part in trained for module in part.module.modules())


def test_without_added_blocks_there_is_nothing_to_train(tiny_traced, train, make_source):
    source = make_source()
    train(expand(tiny_traced, max_span=1), source=source, steps=50)
    assert source.steps == []


def test_bfloat16_arithmetic_leaves_weights_in_float32(tiny_expansion, train):
    before = weights(tiny_expansion)
    train(tiny_expansion, steps=4, precision="bfloat16")
    assert differing(before, weights(tiny_expansion))
    assert all(p.dtype == torch.float32 for block in tiny_expansion.added for p in block.module.parameters())


def test_statistics_are_taken_again_after_tuning(tiny_traced, train, make_source, tmp_path):
    def tuned(batches: int | None, *, steps: int = 6) -> tuple[dict[str, torch.Tensor], list[int]]:
        expansion, source = expand(tiny_traced, max_span=2), make_source()
        choices = {"steps": steps, "distil_share": 0.0, "recalibrate_batches": batches}
        train(expansion, source=source, work=tmp_path / f"{batches} {steps}", **choices)
        return weights(expansion), [step - 3 * TUNING for step in source.steps if step >= 3 * TUNING]

    (plain, none), (again, taken) = tuned(0), tuned(4)
    changed = differing(plain, again)
    assert changed
    assert all("running" in name or "num_batches" in name for name in changed)
    assert (none, taken) == ([], [0, 1, 2, 3])
    assert tuned(None, steps=1)[1] == [*range(30)]
    assert tuned(None, steps=0)[1] == []
    assert tuned(2, steps=0)[1] == [0, 1]  # asked for, if only for weights that were trained before


# Interruptions


class WithDropout(nn.Sequential):
    """Layers that draw random numbers and keep statistics while they train."""

    def __init__(self) -> None:
        cells = [(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3)) for _ in range(3)]
        super().__init__(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), *[x for c in cells for x in c], nn.Linear(16, 10))


@pytest.fixture(scope="module")
def traced_with_dropout(noise):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return trace(WithDropout(), noise(8, 1, 8, 8))


@pytest.mark.parametrize(
    "killed_at", [0, 1, 5, 11, TUNING, TUNING + 1, TUNING + 7, EXITS, EXITS + 1, EXITS + 2, EXITS + 3]
)
def test_a_resumed_training_ends_bit_identical(traced_with_dropout, train, make_source, tmp_path, killed_at):
    def fresh() -> Expansion:
        return attach_exits(expand(traced_with_dropout, max_span=3), count=2)

    choices = {"steps": 24, "distil_share": 0.6, "exit_share": 1 / 6}
    uninterrupted = fresh()
    train(uninterrupted, work=tmp_path / "uninterrupted", **choices)
    assert any(isinstance(m, nn.Dropout) for block in uninterrupted.added for m in block.module.modules())

    with pytest.raises(Killed):
        train(fresh(), source=make_source(killed_at=killed_at), **choices)
    torch.rand(17)  # the next process has its own random numbers
    resumed, source = fresh(), make_source()
    trainer = train(resumed, source=source, **choices)
    steps = [*range(12), *range(TUNING, TUNING + 8), *range(EXITS, EXITS + 4)]
    assert source.steps == steps[steps.index(killed_at) :]
    assert trainer.steps_done == {"distil": 12, "tune": 8, "exits": 4}
    assert not differing(weights(uninterrupted), weights(resumed))


def test_finished_training_is_not_repeated(tiny_expansion, tiny_traced, train, make_source):
    train(tiny_expansion, steps=4)
    again, source = expand(tiny_traced, max_span=3), make_source()
    trainer = train(again, source=source, steps=4)
    assert source.steps == []
    assert trainer.steps_done == {"distil": 1, "tune": 3, "exits": 0}
    assert not differing(weights(tiny_expansion), weights(again))


def test_training_does_not_touch_the_callers_random_numbers(tiny_expansion, train):
    state = torch.random.get_rng_state()
    train(tiny_expansion, steps=3)
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize(
    ("nan_at", "phase", "rate"),
    [(3, "distil", "distil_rate"), (TUNING + 2, "tune", "tune_rate"), (EXITS + 1, "exits", "exit_rate")],
)
def test_a_loss_that_is_no_number_stops_and_keeps_the_last_good_state(
    with_exits, tiny_traced, train, make_source, tmp_path, nan_at, phase, rate
):
    step = nan_at % TUNING
    choices = {"steps": 15, "distil_share": 0.5, "exit_share": 0.2}
    with pytest.raises(TrainingError, match=rf"the loss became nan at step {step} of {phase}") as caught:
        train(with_exits, source=make_source(nan_at=nan_at), **choices)
    assert f"{rate};" in str(caught.value.hint)
    state = Checkpoints(tmp_path / "work", RUN).state
    assert state is not None
    assert (state["phase"], state["done"]) == (phase, step)
    assert all(value.isfinite().all() for module in state["modules"].values() for value in module.values())
    source = make_source()
    train(attach_exits(expand(tiny_traced, max_span=3), count=3), source=source, **choices)
    assert source.steps[0] == nan_at


def test_a_rate_that_is_far_too_high_is_told(tiny_expansion, train):
    with pytest.raises(TrainingError, match="the loss became"):
        train(tiny_expansion, steps=200, distil_share=1.0, distil_rate=1e30)
