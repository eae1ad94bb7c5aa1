from __future__ import annotations

import pytest
import torch

from device_sdk.supernet.plan import Edge
from packager.data.batches import BatchSource
from packager.supernet.expansion import Expansion, expand
from packager.supernet.macs_ranges import MacsRanges
from packager.training.range_accuracy import RangeAccuracy, without_useless_skips


@pytest.fixture
def expansion(tiny_traced) -> Expansion:
    """Skips over the three blocks that keep their shape."""
    expansion = expand(tiny_traced, max_span=2, identity=True)
    assert [block.id for block in expansion.added if block.kind == "identity"] == ["i1-2", "i2-3", "i4-5"]
    return expansion


@pytest.fixture(scope="module")
def held_out(digits, digits_preprocessing):
    return BatchSource(digits("search"), digits_preprocessing, batch=64, seed=0).plain(0, 200)


def loss_of(expansion: Expansion, skip: str, held_out) -> float:
    """Points lost on the original path by skipping."""
    ranges, original = MacsRanges(expansion), expansion.supernet().original
    skipping = ranges.with_skip(original, Edge(skip))
    whole, skipped = RangeAccuracy(expansion, *held_out).accuracies([original, skipping])
    return 100 * (whole - skipped)


def test_skips_that_cost_more_than_the_limit_are_left_out_and_named(expansion, held_out):
    lost = {skip: loss_of(expansion, skip, held_out) for skip in ("i1-2", "i2-3", "i4-5")}
    assert max(lost.values()) > 1.0  # or there would be nothing to see
    kept = without_useless_skips(expansion, RangeAccuracy(expansion, *held_out), points=0.0, seed=0)
    left_out = {block.id for block in expansion.added} - {block.id for block in kept.added}
    assert max(lost, key=lost.__getitem__) in left_out
    assert left_out <= set(lost)
    assert kept.notes[-1] == f"identity blocks left out, each costs more than 0 points: {', '.join(sorted(left_out))}"
    assert all(name in kept.supernet().original.block_ids for name in ("o0", "o5"))


def test_with_a_generous_limit_all_stay(expansion, held_out):
    assert without_useless_skips(expansion, RangeAccuracy(expansion, *held_out), points=100.0, seed=0) is expansion


def test_a_supernet_without_skips_is_left_alone(tiny_expansion, held_out):
    assert (
        without_useless_skips(tiny_expansion, RangeAccuracy(tiny_expansion, *held_out), points=0.0, seed=0)
        is tiny_expansion
    )


def test_skips_are_judged_where_there_is_nothing_else_to_take(tiny_traced, held_out):
    expansion = expand(tiny_traced, max_span=1)
    assert expansion.added == ()
    alone = expand(tiny_traced, max_span=1, identity=True)
    assert alone.trained == ()
    assert without_useless_skips(alone, RangeAccuracy(alone, *held_out), points=100.0, seed=0) is alone


def test_judging_leaves_blocks_in_the_mode_they_were_in(expansion, held_out):
    expansion.trained[0].module.train()
    before = {k: v.clone() for k, v in expansion.trained[0].module.state_dict().items()}
    without_useless_skips(expansion, RangeAccuracy(expansion, *held_out), points=100.0, seed=0)
    assert expansion.trained[0].module.training
    assert all(torch.equal(v, before[k]) for k, v in expansion.trained[0].module.state_dict().items())
