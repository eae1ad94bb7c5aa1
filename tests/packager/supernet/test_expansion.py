from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from device_sdk.supernet.paths import architecture_count, k_cheapest, subnet_count
from device_sdk.supernet.plan import Edge, Subnet
from packager.supernet.expansion import count_macs, expand
from packager.tracing.traced_model import trace


def test_macs_of_known_layers_are_counted_exactly():
    assert count_macs(nn.Conv2d(3, 16, 3, padding=1, bias=False), (3, 32, 32)) == 3 * 9 * 16 * 32 * 32
    assert count_macs(nn.Linear(64, 10), (64,)) == 640


def test_macs_are_counted_on_the_modules_own_device():
    assert count_macs(nn.Sequential(nn.BatchNorm1d(64), nn.Linear(64, 10)).to("meta"), (64,)) == 640


def test_resnet20_costs_what_is_published(zoo_traced):
    expansion = expand(zoo_traced("resnet20_cifar10"), max_span=3)
    # 40.8 M in the literature, with additions; 0.27 M parameters
    assert sum(block.macs for block in expansion.originals) == pytest.approx(40.6e6, rel=0.005)
    assert sum(block.parameters for block in expansion.originals) == pytest.approx(0.27e6, rel=0.01)


@pytest.mark.parametrize(("name", "count"), [("resnet20_cifar10", 149), ("resnet56_cifar10", 8_646_064)])
def test_spans_up_to_three_make_the_expected_number_of_architectures(zoo_traced, name, count):
    supernet = expand(zoo_traced(name), max_span=3).supernet()
    assert architecture_count(supernet) == subnet_count(supernet) == count


@pytest.mark.parametrize(("max_span", "count"), [(1, 1), (2, 55), (9, 256)])
def test_the_longest_span_decides_what_is_added(zoo_traced, max_span, count):
    expansion = expand(zoo_traced("resnet20_cifar10"), max_span=max_span)
    assert max((block.end - block.start for block in expansion.added), default=1) == max_span
    # compositions of nine blocks into parts up to max_span
    assert architecture_count(expansion.supernet()) == count


@pytest.mark.parametrize(("name", "count"), [("resnet20_cifar10", 3**3), ("resnet56_cifar10", 3**9)])
def test_tiled_spans_leave_every_tile_three_choices(zoo_traced, name, count):
    expansion = expand(zoo_traced(name), max_span=3, tiled=True)
    assert {(block.start - 1) % 3 for block in expansion.added} == {0}
    assert architecture_count(expansion.supernet()) == count
    cheapest = k_cheapest(expansion.supernet(), lambda edge: 1.0, k=1)[0][1]
    assert len(cheapest.edges) == 2 + len(expansion.originals[1:-1]) // 3


def test_nothing_replaces_stem_or_head(zoo_traced):
    for block in expand(zoo_traced("resnet20_cifar10"), max_span=9).added:
        assert block.start >= 1
        assert block.end <= 10


@pytest.mark.parametrize("name", ["resnet20_cifar10", "resnet8_mlperf_tiny"])
def test_merged_blocks_are_no_larger_than_the_largest_they_replace(zoo_traced, name):
    expansion = expand(zoo_traced(name), max_span=3)
    for block in expansion.added:
        replaced = expansion.originals[block.start : block.end]
        assert block.parameters <= max(original.parameters for original in replaced)
        assert block.macs < sum(original.macs for original in replaced)
        assert block.copied_from in {original.id for original in replaced}


@pytest.mark.parametrize("name", ["resnet20_cifar10", "resnet8_mlperf_tiny"])
def test_merged_blocks_have_the_shapes_of_their_span(zoo_traced, noise, name):
    expansion = expand(zoo_traced(name), max_span=3)
    tensors = expansion.traced.tensors
    for block in expansion.added:
        found = block.module.eval()(noise(2, *tensors[block.start].shape))
        assert found.shape == (2, *tensors[block.end].shape)


def test_a_merged_block_starts_as_a_copy_of_one_that_it_replaces(zoo_traced):
    expansion = expand(zoo_traced("resnet20_cifar10"), max_span=3)
    originals = {block.id: block.module for block in expansion.originals}
    for block in expansion.added:
        source = originals[block.copied_from].state_dict()
        assert {name: value.shape for name, value in block.module.state_dict().items()} == {
            name: value.shape for name, value in source.items()
        }
        for name, value in block.module.state_dict().items():
            assert torch.equal(value, source[name])
            assert value.data_ptr() != source[name].data_ptr()


def test_across_two_changes_of_resolution_the_copy_is_projected(zoo_traced):
    expansion = expand(zoo_traced("resnet8_mlperf_tiny"), max_span=3)
    blocks = {block.id: block for block in expansion.added}
    assert blocks.keys() == {"m1-3", "m1-4", "m2-4"}
    core = {name for name, _ in expansion.originals[2].module.named_parameters()}
    for name in ("m1-4", "m2-4"):  # 16 or 32 channels at full or half size → 64 channels at a quarter of it
        assert blocks[name].copied_from == "o2"
        names = [parameter for parameter, _ in blocks[name].module.named_parameters()]
        assert len(names) > len(core)
    assert expansion.notes == ()


def test_projections_are_the_same_in_every_run(zoo_traced):
    first, second = (expand(zoo_traced("resnet8_mlperf_tiny"), max_span=3) for _ in range(2))
    for a, b in zip(first.added, second.added, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a.module.parameters(), b.module.parameters(), strict=True))


def test_a_span_that_nothing_fits_is_noted(noise):
    widths = (4, 6, 8, 10, 2)
    layers = [part for a, b in itertools.pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU())]
    expansion = expand(trace(nn.Sequential(*layers[:-1]), noise(3, 4)), max_span=2)
    assert expansion.added == ()
    assert expansion.notes == ("not merged, no replaced block fits their shapes: blocks 1 to 3",)


def test_spans_that_nothing_fits_share_one_note(noise):
    widths = (4, 6, 8, 10, 12, 2)
    layers = [part for a, b in itertools.pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU())]
    expansion = expand(trace(nn.Sequential(*layers[:-1]), noise(3, 4)), max_span=2)
    assert expansion.notes == ("not merged, no replaced block fits their shapes: blocks 1 to 3, 2 to 4",)


def test_where_no_span_is_possible_a_note_says_so(tiny_traced):
    expansion = expand(tiny_traced, max_span=1)
    assert expansion.added == ()
    assert expansion.notes == ("nothing to merge: 4 blocks between stem and head, spans up to 1",)


def test_originals_are_frozen_and_added_blocks_are_not(tiny_expansion):
    for block in tiny_expansion.blocks:
        assert all(p.requires_grad == (block.kind != "original") for p in block.module.parameters())
    assert not any(block.module.training for block in tiny_expansion.originals)


def test_the_original_path_runs_the_models_own_blocks(tiny_expansion, noise):
    images = noise(5, 1, 8, 8)
    with torch.no_grad():
        found = tiny_expansion.run(tiny_expansion.supernet().original, images)
        assert torch.allclose(found, tiny_expansion.traced.whole(images), atol=1e-5)


def test_features_along_a_path_are_those_of_the_cut_points_that_it_passes(tiny_expansion, noise):
    images, expansion = noise(2, 1, 8, 8), tiny_expansion
    subnet = Subnet(tuple(Edge(name) for name in ("o0", "m1-3", "o3", "o4", "o5")))
    with torch.no_grad():
        found = expansion.features_along(subnet, images)
        assert list(found) == [0, 1, 3, 4, 5, 6]
        assert torch.equal(found[6], expansion.run(subnet, images))
        assert torch.equal(found[1], expansion.traced.features(images)[1])
    for position, features in found.items():
        assert features.shape[1:] == expansion.traced.tensors[position].shape


class TokenNet(nn.Module):
    """Token numbers [batch, tokens] int64 -> logits [batch, 3]."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.head = nn.Linear(8, 3)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = torch.relu(layer(x)) + x
        return self.head(x.mean(1))


def test_a_model_on_token_numbers_grows_like_any_other():
    tokens = torch.randint(0, 20, (4, 6), generator=torch.Generator().manual_seed(0))
    expansion = expand(trace(TokenNet().eval(), tokens), max_span=3)
    assert expansion.cut_points[0].tensors[0].dtype == "int64"
    assert expansion.added
    for block in expansion.added:
        features = expansion.traced.features(tokens)
        assert block.module(features[block.start]).shape == features[block.end].shape
