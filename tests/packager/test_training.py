from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from device_sdk.progress import SilentProgress
from packager.batches import BatchSource
from packager.checkpoints import Checkpoints
from packager.errors import TrainingError
from packager.expansion import Expansion, expand
from packager.recipe import Recipe
from packager.tracing import trace
from packager.training import MacsRanges, Trainer, distillation_errors, resolve_precision

RUN = {"run": "test"}
TUNING = 1_000_000_000  # batches of the second phase are counted from here


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
        recipe = Recipe(**({"checkpoint_seconds": 0.0, "precision": "float32", "seed": 5} | choices))
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


def weights(expansion: Expansion) -> dict[str, torch.Tensor]:
    return {
        f"{block.id}.{name}": value.clone()
        for block in expansion.blocks
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
    assert trainer.steps_done == {"distil": 4, "tune": 6}
    assert source.steps == [*range(4), *range(TUNING, TUNING + 6)]


def test_a_time_budget_is_kept(tiny_expansion, train):
    trainer = train(tiny_expansion, budget_minutes=1.0 / 60, distil_share=0.5)
    assert all(steps > 0 for steps in trainer.steps_done.values())


def test_added_blocks_are_left_in_evaluation_mode(tiny_expansion, train):
    train(tiny_expansion, steps=2)
    assert not any(module.training for block in tiny_expansion.added for module in block.module.modules())


def test_without_added_blocks_there_is_nothing_to_train(tiny_traced, train, make_source):
    source = make_source()
    train(expand(tiny_traced, max_span=1), source=source, steps=50)
    assert source.steps == []


def test_bfloat16_arithmetic_leaves_weights_in_float32(tiny_expansion, train):
    before = weights(tiny_expansion)
    train(tiny_expansion, steps=4, precision="bfloat16")
    assert differing(before, weights(tiny_expansion))
    assert all(p.dtype == torch.float32 for block in tiny_expansion.added for p in block.module.parameters())


def test_named_precisions_do_not_ask_the_processor():
    assert resolve_precision("float32") == torch.float32
    assert resolve_precision("bfloat16") == torch.bfloat16
    assert resolve_precision("auto") in (torch.float32, torch.bfloat16)


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


@pytest.mark.parametrize("killed_at", [0, 1, 5, 11, TUNING, TUNING + 1, TUNING + 7])
def test_a_resumed_training_ends_bit_identical(traced_with_dropout, train, make_source, tmp_path, killed_at):
    choices = {"steps": 20, "distil_share": 0.6}
    uninterrupted = expand(traced_with_dropout, max_span=3)
    train(uninterrupted, work=tmp_path / "uninterrupted", **choices)
    assert any(isinstance(m, nn.Dropout) for block in uninterrupted.added for m in block.module.modules())

    with pytest.raises(Killed):
        train(expand(traced_with_dropout, max_span=3), source=make_source(killed_at=killed_at), **choices)
    torch.rand(17)  # the next process has its own random numbers
    resumed, source = expand(traced_with_dropout, max_span=3), make_source()
    trainer = train(resumed, source=source, **choices)
    steps = [*range(12), *range(TUNING, TUNING + 8)]
    assert source.steps == steps[steps.index(killed_at) :]
    assert trainer.steps_done == {"distil": 12, "tune": 8}
    assert not differing(weights(uninterrupted), weights(resumed))


def test_finished_training_is_not_repeated(tiny_expansion, tiny_traced, train, make_source):
    train(tiny_expansion, steps=4)
    again, source = expand(tiny_traced, max_span=3), make_source()
    trainer = train(again, source=source, steps=4)
    assert source.steps == []
    assert trainer.steps_done == {"distil": 1, "tune": 3}
    assert not differing(weights(tiny_expansion), weights(again))


def test_training_does_not_touch_the_callers_random_numbers(tiny_expansion, train):
    state = torch.random.get_rng_state()
    train(tiny_expansion, steps=3)
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize(("nan_at", "phase"), [(3, "distil"), (TUNING + 2, "tune")])
def test_a_loss_that_is_no_number_stops_and_keeps_the_last_good_state(
    tiny_expansion, tiny_traced, train, make_source, tmp_path, nan_at, phase
):
    step = nan_at % TUNING
    with pytest.raises(TrainingError, match=rf"the loss became nan at step {step} of {phase}") as caught:
        train(tiny_expansion, source=make_source(nan_at=nan_at), steps=12, distil_share=0.5)
    assert f"{phase}_rate" in str(caught.value.hint)
    state = Checkpoints(tmp_path / "work", RUN).state
    assert state is not None
    assert (state["phase"], state["done"]) == (phase, step)
    assert all(value.isfinite().all() for block in state["blocks"].values() for value in block.values())
    source = make_source()
    train(expand(tiny_traced, max_span=3), source=source, steps=12, distil_share=0.5)
    assert source.steps[0] == nan_at


def test_a_rate_that_is_far_too_high_is_told(tiny_expansion, train):
    with pytest.raises(TrainingError, match="the loss became"):
        train(tiny_expansion, steps=200, distil_share=1.0, distil_rate=1e30)


# Sampling of paths


def test_the_original_path_is_never_trained_on(tiny_expansion):
    ranges, supernet = MacsRanges(tiny_expansion), tiny_expansion.supernet()
    drawn = {ranges.sample(seed) for seed in range(400)}
    assert supernet.original not in drawn
    for subnet in drawn:
        supernet.check(subnet)
    assert {edge.block for subnet in drawn for edge in subnet.edges} == {block.id for block in supernet.blocks}


def test_a_sampled_path_is_a_function_of_the_seed(tiny_expansion):
    first, second = MacsRanges(tiny_expansion), MacsRanges(copy.copy(tiny_expansion))
    assert [first.sample(seed) for seed in range(20)] == [second.sample(seed) for seed in reversed(range(20))][::-1]


def test_ranges_cover_all_costs_up_to_the_original_path(zoo_traced):
    expansion = expand(zoo_traced("resnet20_cifar10"), max_span=3)
    macs = {block.id: block.macs for block in expansion.blocks}
    whole = sum(block.macs for block in expansion.originals)
    ranges = list(MacsRanges(expansion).samples(5, seed=0))
    assert len(ranges) == 6
    assert [high for _, high, _ in ranges[:-1]] == [low for low, _, _ in ranges[1:]]
    assert ranges[-1][1] == 1.0
    for low, high, subnets in ranges:
        assert 1 <= len(subnets) == len(set(subnets)) <= 5
        ratios = [sum(macs[name] for name in subnet.block_ids) / whole for subnet in subnets]
        assert all(low - 1e-6 <= ratio <= high + 1e-6 for ratio in ratios)


def test_where_nothing_is_cheaper_sampling_ends(tiny_traced):
    with pytest.raises(TrainingError, match="no path with an added block"):
        MacsRanges(expand(tiny_traced, max_span=1)).sample(0)
