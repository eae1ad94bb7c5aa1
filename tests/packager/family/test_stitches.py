"""Stitches: which cut points can be joined, what the fit reaches, and which stitches are kept."""

from __future__ import annotations

import pytest
import torch

from device_sdk.progress import SilentProgress
from device_sdk.supernet.blocks import TensorSpec
from packager.family.stitches import (
    FittedStitch,
    Rung,
    StitchFitter,
    _solutions,
    best_of_bands,
    chosen,
    halving,
)
from packager.joining.maps import ChannelMap
from packager.joining.networks import CutNetwork
from packager.supernet.blocks.trainable import TrainableBlock
from packager.supernet.expansion import expand
from packager.tracing.traced_model import trace


@pytest.fixture(scope="module")
def networks(loaded, noise):
    found = []
    for model in loaded:
        expansion = expand(trace(model.module, noise(4, 1, 8, 8)), max_span=1)
        found.append(CutNetwork(expansion.originals, expansion.traced.cuts))
    return found


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ([(8, 4, 4)], [(16, 4, 4)], False),
        ([(8, 4, 4)], [(16, 2, 2)], True),
        ([(8, 5, 5)], [(16, 3, 3)], True),
        ([(8, 4, 4), (8, 7, 7)], [(16, 2, 2), (16, 3, 3)], None),
        ([(8, 4, 4)], [(16, 3, 3)], None),
        ([(8, 2, 2)], [(16, 4, 4)], None),
        ([(49, 8)], [(49, 16)], False),
        ([(49, 8)], [(50, 16)], None),
        ([(8,)], [(16,)], False),
        ([(8, 4, 4)], [(16,)], None),
    ],
)
def test_features_fit_as_they_are_or_halved_at_every_input_size(source, target, expected):
    assert halving(source, target) is expected


@pytest.mark.parametrize("halved", [False, True])
def test_a_stitch_maps_channels_and_halves_maps(noise, halved):
    weight, bias = noise(5, 3), noise(5)
    stitch = ChannelMap(weight, bias, maps=True, halved=halved, rectified=False)
    features = noise(2, 3, 4, 4)
    pooled = torch.nn.functional.avg_pool2d(features, 2) if halved else features
    expected = torch.einsum("oc,nchw->nohw", weight, pooled) + bias[:, None, None]
    torch.testing.assert_close(stitch(features), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rectified", [False, True])
def test_a_linear_relation_between_features_is_found(noise, rectified):
    weights = [noise(6, 4, seed=1), 100 * noise(3, 4, seed=2)]  # targets of another scale are fitted side by side
    read, judges = noise(2000, 4, seed=3), noise(200, 4, seed=4)
    targets = [(read @ weight.T + 1, judges @ weight.T + 1) for weight in weights]
    if rectified:
        targets = [(fit.clamp_min(0), judge.clamp_min(0)) for fit, judge in targets]
    found = list(_solutions(read, judges, targets, [(1, 1), (1, 2)], rectified=rectified))
    assert [end for end, *_ in found] == [(1, 1), (1, 2)]
    for (_, weight, bias, error), expected in zip(found, weights, strict=True):
        assert error < (0.1 if rectified else 0.001)  # behind a rectifier the negative part is unknown
        torch.testing.assert_close(
            weight, expected, rtol=0.2, atol=(0.4 if rectified else 0.01) * float(expected.std())
        )
        assert bias.shape == (len(expected),)


def test_unrelated_features_are_no_stitch(noise):
    read, judges = noise(500, 4, seed=3), noise(100, 4, seed=4)
    target = (noise(500, 5, seed=5), noise(100, 5, seed=6))
    assert not list(_solutions(read, judges, [target], [(1, 1)], rectified=False))


def test_paths_through_stitches_are_judged_against_the_largest_member(networks, noise):
    fitter = StitchFitter(
        networks, noise(96, 1, 8, 8), noise(24, 1, 8, 8, seed=1), smaller=(6, 6), seed=0, progress=SilentProgress()
    )
    found = fitter.promising()
    assert found
    largest = networks[0].macs_until[-1]
    for one in found:
        assert 0 <= one.loss <= 1
        assert one.path_macs < largest + one.macs
    first, second = fitter.members_alone()
    assert first == Rung(0, (), largest, 0.0)
    assert second.loss > 0


def stitch(macs, loss, members=(0, 1)):
    module = ChannelMap(torch.zeros(1, 1), torch.zeros(1), maps=True, halved=False, rectified=False)
    return FittedStitch((members[0], 1), (members[1], 1), module, 0.1, 1, loss, macs)


def test_kept_stitches_lose_less_than_all_that_takes_no_more_work():
    rungs = [Rung(0, (), 100, 0.0), Rung(1, (), 50, 0.4), Rung(1, (6, 6), 40, 0.5)]
    found = chosen([stitch(70, 0.2), stitch(80, 0.25), stitch(60, 0.45), stitch(30, 0.9)], rungs)
    assert [(one.path_macs, one.loss) for one in found] == [(70, 0.2)]
    assert found[0].gain == pytest.approx(0.2)


def test_of_stitches_nearly_alike_in_work_the_better_one_is_kept():
    rungs = [Rung(0, (), 100, 0.0), Rung(1, (), 50, 0.4)]
    found = chosen([stitch(70, 0.2), stitch(71, 0.1), stitch(90, 0.05)], rungs)
    assert sorted(one.path_macs for one in found) == [71, 90]


def test_each_band_of_work_has_its_best_stitches():
    many = [stitch(100 + number, 1 - number / 100) for number in range(100)]
    found = best_of_bands(many)
    assert 12 <= len(found) <= 24
    assert found[-1].path_macs >= 190
    assert best_of_bands([]) == ()


class _Fork(torch.nn.Module):
    def forward(self, images):
        return images, 2 * images


class _Join(torch.nn.Module):
    def forward(self, one, other):
        return (one + other).flatten(1)


def test_members_may_have_cut_points_of_several_tensors(noise):
    """No stitch starts there, but features pass through."""
    cuts = (spec("cut_0"),), (spec("cut_1"), spec("cut_1_1")), (spec("cut_2", (4,)),)
    blocks = tuple(
        TrainableBlock(f"o{place}", place, place + 1, "original", module, macs=1)
        for place, module in enumerate((_Fork(), _Join()))
    )
    network, images = CutNetwork(blocks, cuts), noise(3, 1, 2, 2)
    assert network.inner == ()
    assert [cut for cut, _ in network.features(images)] == [1, 2]
    torch.testing.assert_close(network.logits_from(0, images), 3 * images.flatten(1))


def spec(name, shape=(1, 2, 2)):
    return TensorSpec(name, shape)
