from __future__ import annotations

from collections import Counter

import pytest
import torch

from packager.branch_zoo.modules import build_branch
from packager.branch_zoo.specs import CONVOLUTIONS, DENSE, GRID, branch_cost, parse, specs_for
from packager.supernet.expansion import count_macs
from packager.tracing.traced_model import parameter_count

SHAPES = [(16, 32, 32), (64, 8, 8), (14, 14, 96), (8, 3, 7), (5, 1, 1), (50, 64), (40,)]


def test_the_grid_is_the_papers_fifteen_convolutions_times_seven_fully_connected_parts():
    assert (len(CONVOLUTIONS), len(DENSE), len(set(GRID))) == (15, 7, 105)
    assert Counter(part.kind for part in CONVOLUTIONS) == {
        "none": 1,
        "depthwise": 3,
        "separable": 5,
        "spatial": 3,
        "dilated": 3,
    }
    assert Counter(1 + len(part.hidden) for part in DENSE) == {1: 3, 2: 3, 3: 1}


def test_names_are_unique_and_say_all_there_is_to_a_spec():
    names = [spec.name for spec in GRID]
    assert len(set(names)) == 105
    assert [parse(name) for name in names] == list(GRID)
    assert parse("separable3x2-p2h512h256-merged").merged
    assert parse("pooled") is None


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_macs_and_parameters_follow_from_the_spec(shape):
    for spec in specs_for(shape)[::6]:
        module = build_branch(spec, shape, classes=10, seed=0)
        cost = branch_cost(spec, shape, classes=10)
        assert (count_macs(module, shape), parameter_count(module)) == (cost.macs, cost.parameters), spec.name
        assert cost.nbytes == 4 * cost.parameters


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_structure_answers_sample_by_sample(shape, noise):
    samples = noise(3, *shape)
    for spec in specs_for(shape)[::7]:
        branch = build_branch(spec, shape, classes=10, seed=0).eval()
        with torch.no_grad():
            alone = torch.cat([branch(sample[None]) for sample in samples])
            torch.testing.assert_close(branch(samples), alone)
        assert alone.shape == (3, 10)


def test_shapes_without_a_map_have_fewer_structures():
    assert len(specs_for((16, 32, 32))) == len(specs_for((50, 64))) == 105
    assert [spec.name for spec in specs_for((40,))] == ["none-p1", "none-p1h256", "none-p2h512h256"]
    assert len(specs_for((5, 1, 1))) == 45  # on one position all grids are one
    assert specs_for((2, 3, 4, 5)) == ()


def test_no_structure_is_built_for_a_shape_that_it_does_not_suit():
    assert build_branch(parse("depthwise3-p1"), (40,), classes=10, seed=0) is None
    assert build_branch(parse("none-p1"), (2, 3, 4, 5), classes=10, seed=0) is None


def test_dilated_filters_are_thinned_out_where_a_stride_skips_the_same_positions(noise):
    thinned = build_branch(parse("dilated3-p1"), (4, 8, 8), classes=10, seed=0)
    plain = torch.nn.Conv2d(4, 4, 3, stride=2, padding=2, dilation=2, groups=4, bias=False)
    plain.load_state_dict({"weight": thinned.conv[1].weight})
    x = noise(2, 4, 8, 8)
    torch.testing.assert_close(thinned.conv[1](thinned.conv[0](x)), plain(x))


def test_where_channels_come_last_the_same_weights_give_the_same_answer(noise):
    first, last = (
        build_branch(parse("separable3-p2h256"), s, classes=10, seed=0).eval() for s in ((6, 9, 9), (9, 9, 6))
    )
    images = noise(3, 6, 9, 9)
    with torch.no_grad():
        torch.testing.assert_close(last(images.permute(0, 2, 3, 1)), first(images))


def test_weights_are_a_function_of_the_seed_and_leave_the_callers_random_numbers_alone():
    state = torch.random.get_rng_state()
    first, same, other = (build_branch(parse("separable3-p1"), (8, 8, 8), classes=10, seed=s) for s in (3, 3, 4))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(first.dense[0].weight, same.dense[0].weight)
    assert not torch.equal(first.dense[0].weight, other.dense[0].weight)
