from __future__ import annotations

import msgspec
import numpy as np
import pytest

from device_sdk.bundles.held_part import HeldPart
from device_sdk.errors import UsageError
from device_sdk.execution.loaded_plan import LoadedPlan
from device_sdk.execution.outcome import AT_END, BY_SECOND
from device_sdk.execution.paging import least_memory_cap_bytes
from device_sdk.execution.plan_segments import segments
from device_sdk.runtimes import OnnxRuntime
from device_sdk.supernet.deciders.port import ease
from device_sdk.supernet.paths import enumerate_subnets
from device_sdk.supernet.plan import (
    UNREACHABLE_CONFIDENCE,
    Abstain,
    Cascade,
    ExitChoice,
    MaxConfidence,
    Plan,
    RemoteRef,
    Split,
    Subnet,
    decode_plan,
    encode_plan,
)
from device_sdk.supernet.plan import Edge as PlanEdge


@pytest.fixture
def tensor(bundle, tiny_bundle):
    from device_sdk.session.samples import SampleChecker

    return SampleChecker(bundle.manifest).prepare(tiny_bundle.images)


@pytest.fixture
def first(bundle) -> Subnet:
    """The quickest path: the one with the fewest blocks."""
    return min(enumerate_subnets(bundle.supernet, limit=200), key=lambda one: len(one.edges))


def logits(bundle, subnet: Subnet, tensor):
    loaded = LoadedPlan(bundle, OnnxRuntime(threads=1), Plan(subnet))
    try:
        return loaded.run(tensor).output
    finally:
        loaded.close()


def halved(bundle, first: Subnet, tensor) -> MaxConfidence:
    """A decider that calls about half of the samples hard."""
    return MaxConfidence(float(np.median(ease(MaxConfidence(0.0), logits(bundle, first, tensor)))))


def test_hard_samples_are_answered_by_the_second_path_and_the_others_by_the_first(bundle, tensor, first):
    second = bundle.supernet.original
    decider = halved(bundle, first, tensor)
    quick, accurate = logits(bundle, first, tensor), logits(bundle, second, tensor)
    hard = ease(decider, quick) < decider.limit
    assert 0 < hard.sum() < len(hard)
    loaded = LoadedPlan(bundle, OnnxRuntime(threads=1), Plan(first, hard=Cascade(decider, second)))
    outcome = loaded.run(tensor)
    loaded.close()
    np.testing.assert_allclose(outcome.output, np.where(hard[:, None], accurate, quick), atol=1e-5)
    assert (outcome.answered_by == np.where(hard, BY_SECOND, AT_END)).all()


def test_the_second_path_goes_on_where_it_leaves_the_first(bundle, tensor):
    original = bundle.supernet.original
    others = [one for one in enumerate_subnets(bundle.supernet, limit=200) if one != original and not one.input_size]
    alike = max(others, key=lambda one: _alike(one, original))
    shared = _alike(alike, original)
    assert shared >= 1
    position = bundle.supernet.block(original.edges[shared - 1].block).end
    plan = Plan(alike, hard=Cascade(MaxConfidence(UNREACHABLE_CONFIDENCE), original, position))
    parts = segments(bundle.supernet, plan)
    assert parts[-1].second
    assert parts[-1].edges == original.edges[shared:]
    loaded = LoadedPlan(bundle, OnnxRuntime(threads=1), plan)
    outcome = loaded.run(tensor)
    loaded.close()
    np.testing.assert_allclose(outcome.output, logits(bundle, original, tensor), atol=1e-5)
    assert (outcome.answered_by == BY_SECOND).all()


def _alike(one: Subnet, other: Subnet) -> int:
    pairs = zip(one.edges, other.edges, strict=False)
    return next((place for place, (own, others) in enumerate(pairs) if own != others), 0)


def test_samples_that_an_exit_answers_take_neither_path(bundle, tensor):
    original = bundle.supernet.original
    exit_ = bundle.supernet.exits_along(original)[0]
    other = next(one for one in enumerate_subnets(bundle.supernet, limit=200) if one != original)
    plan = Plan(original, (ExitChoice(exit_.id, 0.5),), hard=Cascade(MaxConfidence(UNREACHABLE_CONFIDENCE), other))
    loaded = LoadedPlan(bundle, OnnxRuntime(threads=1), plan)
    outcome = loaded.run(tensor)
    loaded.close()
    assert set(outcome.answered_by.tolist()) <= {0, 1 + BY_SECOND}


def test_under_a_memory_cap_both_paths_share_it(bundle, tensor, first):
    second = bundle.supernet.original
    plan = Plan(first, hard=Cascade(MaxConfidence(UNREACHABLE_CONFIDENCE), second))
    whole = LoadedPlan(bundle, OnnxRuntime(threads=1), plan)
    expected = whole.run(tensor[:4]).output
    whole.close()
    least = least_memory_cap_bytes(bundle, plan, batch=4)
    capped = LoadedPlan(bundle, OnnxRuntime(threads=1), plan, memory_cap_bytes=least, batch=4)
    np.testing.assert_allclose(capped.run(tensor[:4]).output, expected, atol=1e-5)
    assert capped.taken_bytes <= least
    capped.close()


def test_a_device_that_holds_a_plans_part_holds_both_paths(bundle, first):
    second = bundle.supernet.original
    held = HeldPart.of_plan(bundle.supernet, Plan(first, hard=Cascade(MaxConfidence(0.5), second)))
    assert all(held.has(edge) for edge in (*first.edges, *second.edges))


def test_a_cascade_survives_json_and_has_a_kind(bundle, first):
    plan = Plan(first, hard=Cascade(MaxConfidence(0.5), bundle.supernet.original))
    assert decode_plan(encode_plan(plan)) == plan
    assert plan.kind == "cascade"
    assert plan.second == bundle.supernet.original
    assert Plan(first, hard=Abstain(MaxConfidence(0.5))).second is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda plan, original: msgspec.structs.replace(plan, subnet=original), "the same as the first"),
        (
            lambda plan, original: msgspec.structs.replace(plan, split=Split(0, (), (), RemoteRef("any"))),
            "no second path here",
        ),
        (
            lambda plan, original: msgspec.structs.replace(plan, hard=msgspec.structs.replace(plan.hard, position=99)),
            "does not pass cut point 99",
        ),
        (
            lambda plan, original: msgspec.structs.replace(
                plan, hard=Cascade(MaxConfidence(0.5), Subnet((PlanEdge("nothing"),)))
            ),
            "there is no block nothing",
        ),
    ],
)
def test_a_cascade_that_does_not_fit_is_refused(bundle, first, change, said):
    original = bundle.supernet.original
    plan = Plan(first, hard=Cascade(MaxConfidence(0.5), original))
    bundle.supernet.check_plan(plan)
    with pytest.raises(UsageError, match=said):
        bundle.supernet.check_plan(change(plan, original))
