from __future__ import annotations

import io

import pytest
import torch

from device_sdk.progress import SilentProgress
from packager.data.batches import BatchSource
from packager.fitting import applied, fit
from packager.supernet.expansion import expand


@pytest.fixture(scope="module")
def samples(digits, digits_preprocessing) -> torch.Tensor:
    return BatchSource(digits("train"), digits_preprocessing, batch=64, seed=0).plain(0, 160)[0]


@pytest.fixture(scope="module")
def held_out(digits, digits_preprocessing) -> torch.Tensor:
    return BatchSource(digits("search"), digits_preprocessing, batch=64, seed=0).plain(0, 48)[0]


def answer_errors(expansion, images) -> dict[str, float]:
    """Each added block by itself on the original path: the relative distance from the full model's answers."""
    with torch.no_grad():
        features = expansion.traced.features(images)
        errors = {}
        for block in expansion.added:
            answers = block.module.eval()(features[block.start])
            for original in expansion.traced.blocks[block.end :]:
                answers = original(answers)
            errors[block.id] = float((answers - features[-1]).square().mean() / features[-1].var())
    return errors


def test_no_block_starts_worse_than_its_copy_and_most_far_better(tiny_traced, samples, held_out, digits):
    before = answer_errors(expand(tiny_traced, max_span=3), held_out)
    expansion = expand(tiny_traced, max_span=3)
    found = fit(expansion, samples, held_out=held_out, progress=SilentProgress())
    found["left_out"] = {}
    after = answer_errors(applied(expansion, found), held_out)
    assert all(after[name] <= before[name] * 1.02 for name in before)
    assert sum(after.values()) < 0.5 * sum(before.values())


def test_what_no_budget_wants_is_left_out_with_a_note(tiny_traced, samples, held_out):
    expansion = expand(tiny_traced, max_span=4)
    with torch.no_grad():
        for parameter in expansion.added[0].module.parameters():
            parameter.mul_(0).add_(float("nan"))  # nothing can be made of it: not even a fit
    found = applied(expansion, fit(expansion, samples, held_out=held_out, progress=SilentProgress()))
    left_out = {block.id for block in expansion.added} - {block.id for block in found.added}
    assert expansion.added[0].id in left_out
    assert "left out before training, far from the front of error against MACs" in found.notes[-1]
    assert all(name in found.notes[-1] for name in left_out)
    assert [block.id for block in found.originals] == [block.id for block in expansion.originals]


def test_without_training_to_come_fewer_blocks_stay(tiny_traced, samples, held_out):
    left_out = [
        set(fit(expand(tiny_traced, max_span=3, identity=True), samples, **choices)["left_out"])
        for choices in (
            {"held_out": held_out, "progress": SilentProgress()},
            {"held_out": held_out, "progress": SilentProgress(), "trained": False},
        )
    ]
    assert len(left_out[0]) <= len(left_out[1])


def test_a_fit_is_the_same_each_time_and_can_be_saved(tiny_traced, samples, held_out):
    def found():
        return fit(expand(tiny_traced, max_span=3), samples, held_out=held_out, progress=SilentProgress())

    first, second = found(), found()
    buffer = io.BytesIO()
    torch.save(first, buffer)
    buffer.seek(0)
    expansions = [
        applied(expand(tiny_traced, max_span=3), one) for one in (second, torch.load(buffer, weights_only=True))
    ]
    for one, other in zip(*(expansion.added for expansion in expansions), strict=True):
        assert one.id == other.id
        for key, value in one.module.state_dict().items():
            assert torch.equal(value, other.module.state_dict()[key])


def test_originals_stay_as_they_are(tiny_traced, samples, held_out):
    expansion = expand(tiny_traced, max_span=3, identity=True)
    before = [value.clone() for block in expansion.originals for value in block.module.state_dict().values()]
    found = applied(expansion, fit(expansion, samples, held_out=held_out, progress=SilentProgress()))
    after = [value for block in found.originals for value in block.module.state_dict().values()]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert all(parameter.requires_grad for block in found.trained for parameter in block.module.parameters())


def test_when_time_is_short_fewer_samples_are_used_and_at_last_none(tiny_traced, samples, held_out):
    class Clock:
        """Every look at it takes a second."""

        now = 0.0

        def __call__(self) -> float:
            self.now += 1.0
            return self.now

    expansion = expand(tiny_traced, max_span=3)
    hurried = fit(expansion, samples, held_out=held_out, progress=SilentProgress(), seconds=3.0, clock=Clock())
    assert [block["how"] for block in hurried["blocks"].values()][-1] == "copy"
    assert set(hurried["blocks"]) == {block.id for block in expansion.added}
