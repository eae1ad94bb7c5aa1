from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from packager.branch_zoo.plain import PLAIN, build_plain
from packager.supernet.expansion import count_macs
from packager.tracing.traced_model import parameter_count

WHOLE = 40_000_000  # MACs of the model that the branches belong to


def build(name: str, *shape: int, classes: int = 10, whole_macs: int = WHOLE, seed: int = 0) -> torch.nn.Module:
    module = build_plain(name, shape, classes=classes, whole_macs=whole_macs, seed=seed)
    assert module is not None
    return module


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize(
    "shape", [(16, 32, 32), (64, 8, 8), (5, 1, 1), (8, 3, 7), (14, 14, 96), (50, 64), (1, 8), (40,)], ids=str
)
def test_every_branch_answers_for_images_tokens_and_vectors(noise, name, shape):
    module = build(name, *shape)
    assert module.train()(noise(4, *shape)).shape == (4, 10)
    assert module.eval()(noise(1, *shape)).shape == (1, 10)
    assert all(parameter.requires_grad for parameter in module.parameters())


@pytest.mark.parametrize("name", PLAIN)
def test_samples_of_a_batch_are_answered_one_by_one(noise, name):
    for shape in ((8, 12, 12), (7, 8), (8,)):
        module, samples = build(name, *shape).eval(), noise(5, *shape)
        with torch.no_grad():
            alone = torch.cat([module(sample[None]) for sample in samples])
            torch.testing.assert_close(module(samples), alone)


@pytest.mark.parametrize("shape", [(), (2, 3, 4, 5)], ids=str)
@pytest.mark.parametrize("name", PLAIN)
def test_other_shapes_suit_no_branch(name, shape):
    assert build_plain(name, shape, classes=10, whole_macs=WHOLE, seed=0) is None


@pytest.mark.parametrize("name", PLAIN)
def test_where_channels_come_last_their_order_makes_no_difference_to_the_answer(noise, name):
    first, last = build(name, 6, 9, 9), build(name, 9, 9, 6)
    last.load_state_dict(
        {name: value for name, value in zip(last.state_dict(), first.state_dict().values(), strict=True)}
    )
    images = noise(3, 6, 9, 9)
    with torch.no_grad():
        torch.testing.assert_close(last.eval()(images.permute(0, 2, 3, 1)), first.eval()(images))


def test_pooled_costs_one_linear_layer():
    module = build("pooled", 64, 8, 8)
    assert count_macs(module, (64, 8, 8)) == 640
    assert parameter_count(module) == 640 + 10 + 2 * 64


@settings(max_examples=40, deadline=None)
@given(
    channels=st.integers(1, 300),
    side=st.integers(1, 33),
    whole_macs=st.integers(1, 10**8),
)
def test_a_branch_costs_at_most_a_tenth_of_the_model(channels, side, whole_macs):
    for name in PLAIN:
        shape = (channels, side, side)
        module = build_plain(name, shape, classes=10, whole_macs=whole_macs, seed=0)
        assert module is None or count_macs(module, shape) <= whole_macs / 10


def test_a_smaller_convolution_is_taken_where_the_largest_costs_too_much():
    shape = (64, 16, 16)
    macs = [
        count_macs(build("conv", *shape, whole_macs=10 * limit), shape) for limit in (3_000_000, 1_500_000, 600_000)
    ]
    assert macs[0] > macs[1] > macs[2]


def test_weights_are_a_function_of_the_seed_and_leave_the_callers_random_numbers_alone():
    state = torch.random.get_rng_state()
    first, same, other = (build("conv", 8, 8, 8, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(torch.random.get_rng_state(), state)
    pairs = list(zip(first.parameters(), same.parameters(), other.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b, _ in pairs)
    assert not all(torch.equal(a, c) for a, _, c in pairs)


@pytest.mark.parametrize("name", ["pooled", "conv"])
def test_padding_of_tokens_changes_no_answer(name, noise):
    module = build_plain(name, (9, 12), classes=3, whole_macs=10**9, seed=0).eval()
    tokens = noise(2, 6, 12)
    padded = torch.cat([tokens, torch.zeros(2, 3, 12)], dim=1)
    assert torch.allclose(module(padded), module(tokens), atol=1e-6)
