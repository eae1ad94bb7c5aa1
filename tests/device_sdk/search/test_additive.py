from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from device_sdk.random_source import SplitMix64
from device_sdk.search.additive import (
    AdditiveModel,
    Observation,
    block_errors,
    log_odds,
    rendition_errors,
    unshared_noise,
)
from device_sdk.supernet.blocks import Block
from device_sdk.supernet.paths import sample_uniformly
from device_sdk.supernet.plan import Edge, Subnet
from device_sdk.supernet.supernet import Supernet

SAMPLES = 10_000


def with_errors(supernet, errors):
    """The supernet with a distillation error for some blocks."""
    blocks = [msgspec.structs.replace(block, distillation_error=errors.get(block.id)) for block in supernet.blocks]
    return Supernet(supernet.cut_points, blocks)


def right_of(subnet, costs):
    return SAMPLES / (1 + math.exp(-(2.5 - sum(costs.get(edge.block, 0.0) for edge in subnet.edges))))


@pytest.fixture
def supernet(elastic_supernet):
    return elastic_supernet(12)


@pytest.fixture
def costs(supernet):
    """What each added block costs in log odds: something between 0.1 and 0.5."""
    random = np.random.default_rng(3)
    return {block.id: random.uniform(0.1, 0.5) for block in supernet.blocks if block.kind != "original"}


def observations(supernet, costs, *, count, seed):
    subnets = dict.fromkeys(sample_uniformly(supernet, count=count, random=SplitMix64(seed)))
    return [Observation(subnet, right_of(subnet, costs), SAMPLES) for subnet in subnets]


def test_an_additive_world_is_learnt(supernet, costs):
    belief = AdditiveModel(supernet).fit(observations(supernet, costs, count=80, seed=1))
    unseen = observations(supernet, costs, count=60, seed=2)
    mean, deviation = belief.predict([one.subnet for one in unseen])
    errors = mean - [one.log_odds for one in unseen]
    assert np.abs(errors).mean() < 0.1
    assert np.abs(errors / deviation).mean() < 1.5
    values = belief.values()
    assert np.corrcoef([values[Edge(name)] for name in costs], [-cost for cost in costs.values()])[0, 1] > 0.9
    assert all(values[edge] == 0 for edge in supernet.original.edges)


def test_before_any_observation_distillation_errors_decide(supernet):
    known = with_errors(supernet, {"m0_2": 0.4, "m2_4": 0.01, "m4_6": 0.1})
    values = AdditiveModel(known).fit([]).values()
    assert values[Edge("m0_2")] < values[Edge("m4_6")] < values[Edge("m2_4")] < 0
    assert values[Edge("o0")] == 0


def test_an_observation_says_most_about_its_own_subnet_and_its_kin(supernet, costs):
    model = AdditiveModel(supernet)
    seen = observations(supernet, costs, count=1, seed=5)[0].subnet
    other = observations(supernet, costs, count=40, seed=6)
    before, wide = model.fit([]).predict([seen, *(one.subnet for one in other)])
    after, narrow = model.fit([Observation(seen, 0.3 * SAMPLES, SAMPLES)]).predict(
        [seen, *(one.subnet for one in other)]
    )
    assert after[0] == pytest.approx(log_odds(0.3 * SAMPLES, SAMPLES), abs=0.05)
    assert after[0] < before[0]
    assert narrow[0] == narrow.min() < 0.1 < wide.min()


def test_draws_scatter_about_the_mean_and_are_equal_for_equal_seeds(supernet, costs):
    belief = AdditiveModel(supernet).fit(observations(supernet, costs, count=30, seed=1))
    drawn = [belief.draw(SplitMix64(seed)) for seed in range(200)]
    edge = Edge("m0_2")
    values = np.array([one[edge] for one in drawn])
    assert values.std() > 0
    assert abs(values.mean() - belief.values()[edge]) < 4 * values.std() / math.sqrt(len(values))
    assert drawn[0] == belief.draw(SplitMix64(0))


def test_few_samples_count_less(supernet):
    subnet = supernet.original
    model = AdditiveModel(supernet)
    few, many = (model.fit([Observation(subnet, 0.5 * n, n)]).predict([subnet])[0][0] for n in (4, 4000))
    nothing = model.fit([]).predict([subnet])[0][0]
    assert nothing > few > many == pytest.approx(0.0, abs=0.01)


def test_guessed_answers_make_an_observation_less_certain(supernet):
    computed, guessed = (Observation(supernet.original, 900, 1000, unseen=unseen) for unseen in (0.0, 90.0))
    assert guessed.log_odds == computed.log_odds
    # all of them guessed: 90 is what the number of correct answers varies by when 1,000 are drawn
    assert guessed.variance == pytest.approx(2 * computed.variance, rel=0.01)


def test_only_disagreement_is_noise():
    alike = np.tile(np.arange(100) < 80, (5, 1))
    random = np.random.default_rng(1).random((50, 400)) < 0.8
    assert unshared_noise(alike) == 0.1  # never none at all
    assert unshared_noise(random) == pytest.approx(1.0, abs=0.05)
    assert unshared_noise(np.ones((3, 10), dtype=bool)) == 0.1


def test_errors_come_from_the_packager_or_from_other_blocks(build_supernet):
    bare = build_supernet(4, [(0, 2), (1, 4)], int8=["o0", "m0_2"])
    assert block_errors(bare)["m1_4"] > block_errors(bare)["m0_2"] > 0 == block_errors(bare)["o0"]
    known = block_errors(with_errors(bare, {"m0_2": 0.3}))
    assert known["m0_2"] == 0.3
    assert known["m1_4"] == pytest.approx(0.45)
    renditions = rendition_errors(bare)
    assert renditions[Edge("m0_2")] == renditions[Edge("o0")] == 0.0
    assert renditions[Edge("m0_2", "int8")] == renditions[Edge("o0", "int8")] > 0


def test_an_original_of_a_smaller_member_costs_what_its_member_loses_there(build_supernet):
    bare = build_supernet(2, [(0, 2)])
    assert block_errors(with_errors(bare, {"o1": 0.1}))["o1"] == 0.1
    assert block_errors(with_errors(bare, {"o1": 50.0}))["o1"] == 2.0  # nothing of the features is left


def measured(supernet, error):
    """The supernet with that ``error`` of every rendition."""

    def with_error(block: Block) -> Block:
        renditions = tuple(msgspec.structs.replace(one, error=error) for one in block.renditions)
        return msgspec.structs.replace(block, renditions=renditions)

    return Supernet(supernet.cut_points, [with_error(block) for block in supernet.blocks])


def test_the_measured_error_of_a_rendition_counts(build_supernet):
    errors = rendition_errors(measured(build_supernet(2, int8=["o0"]), 0.2))
    assert errors == {Edge("o0"): 0.0, Edge("o0", "int8"): 0.2, Edge("o1"): 0.0}


def test_what_is_seen_of_a_block_holds_for_its_renditions_as_far_as_these_compute_the_same(build_supernet):
    gained = []
    for error in (0.0005, 0.5):
        supernet = measured(build_supernet(4, [(0, 2)], int8=["m0_2"]), error)
        original, fp32, int8 = (
            Subnet((*first, Edge("o2"), Edge("o3")))
            for first in ([Edge("o0"), Edge("o1")], [Edge("m0_2")], [Edge("m0_2", "int8")])
        )
        model = AdditiveModel(supernet)
        seen = [Observation(original, 0.9 * SAMPLES, SAMPLES), Observation(fp32, 0.9 * SAMPLES, SAMPLES)]
        known, other = model.fit(seen).predict([fp32, int8])[1]
        gained.append(other - known)
    alike, different = gained
    assert 0 < alike < 0.02
    assert different > 0.3


def test_errors_foretell_losses(supernet):
    known = with_errors(supernet, {"m0_2": 0.4, "m2_4": 0.01, "m4_6": 0.1})
    merged = next(s for s in sample_uniformly(known, count=50, random=SplitMix64(1)) if s != known.original)
    below = AdditiveModel(known).prior_mean([known.original, merged])
    assert below[0] == 0 < below[1]
