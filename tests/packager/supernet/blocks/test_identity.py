from __future__ import annotations

import itertools

from torch import nn

from packager.supernet.blocks.identity import identity_blocks
from packager.supernet.expansion import expand
from packager.tracing.traced_model import trace


def test_a_skip_is_added_wherever_the_shape_stays(zoo_traced, noise):
    expansion = expand(zoo_traced("resnet20_cifar10"), max_span=3, identity=True)
    skips = [block for block in expansion.added if block.kind == "identity"]
    assert [block.id for block in skips] == ["i1-2", "i2-3", "i3-4", "i5-6", "i6-7", "i8-9", "i9-10"]
    assert all(block.parameters == block.macs == 0 for block in skips)
    features = noise(2, *expansion.traced.tensors[1].shape)
    assert (skips[0].module(features) == features).all()
    assert not {block.id for block in expansion.trained} & {block.id for block in skips}
    assert len(expansion.supernet().blocks) == len(expansion.blocks)


def test_a_longer_skip_is_added_only_where_shorter_ones_do_not_make_it(noise):
    widths = (4, 8, 16, 8, 8, 4)
    layers = [part for a, b in itertools.pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU())]
    traced = trace(nn.Sequential(*layers[:-1]), noise(3, 4))
    expansion = expand(traced, max_span=3, identity=True)
    assert [b.id for b in expansion.added if b.kind == "identity"] == ["i1-3", "i3-4"]  # not i1-4


def test_where_no_shape_comes_again_a_note_says_so(noise):
    widths = (4, 6, 8, 10, 2)
    layers = [part for a, b in itertools.pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU())]
    expansion = expand(trace(nn.Sequential(*layers[:-1]), noise(3, 4)), max_span=1, identity=True)
    assert expansion.notes == ("no identity blocks: no span has equal input and output shapes",)


def test_none_is_added_unasked(tiny_traced, tiny_expansion):
    assert identity_blocks(tiny_expansion.originals[1:-1], tiny_traced.cuts, max_span=0).blocks == ()
    assert not any(block.kind == "identity" for block in tiny_expansion.blocks)
