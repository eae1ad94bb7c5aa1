"""What the packager writes is what a device accepts (device_sdk/fragments/sizes.py)."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from device_sdk.fragments import sizes
from device_sdk.fragments.composition import read_fragments
from device_sdk.fragments.fragment import read_fragment
from device_sdk.fragments.sizes import check_sizes
from device_sdk.progress import SilentProgress
from device_sdk.supernet.blocks import TensorSpec
from packager.exporting.part_graphs import Part, part_graphs
from packager.renditions.fp16 import make_fp16


@pytest.fixture(scope="module")
def tiny_fp16(tiny_exported, calibrate, tmp_path_factory):
    return make_fp16(tiny_exported, calibrate(tiny_exported.expansion), SilentProgress(), tmp_path_factory.mktemp("c"))


@pytest.mark.parametrize("kind", ["fp32", "int8", "fp16"])
def test_the_table_suffices_for_what_the_packager_writes(kind, request):
    made = request.getfixturevalue("tiny_exported" if kind == "fp32" else f"tiny_{kind}")
    fragments = read_fragments([*made.shared.values(), *made.own.values()])
    operators = {node.operator for fragment in fragments for node in fragment.nodes}
    assert "Conv" in operators
    assert ("QuantizeLinear" in operators) == (kind == "int8")
    assert ("Cast" in operators) == (kind == "fp16")


class Attention(nn.Module):
    """Attention over the positions of an image, then upsampling, padding and positional terms."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm, self.position = nn.LayerNorm(8), nn.Parameter(torch.zeros(1, 36, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, channels, height, width = x.shape
        tokens = x.flatten(2).transpose(1, 2) + self.position.expand(batch, -1, -1)
        tokens = tokens + self.attention(self.norm(tokens), tokens, tokens, need_weights=False)[0]
        grid = tokens.transpose(1, 2).reshape(batch, channels, height, width)
        larger = functional.interpolate(grid, scale_factor=2, mode="bilinear", align_corners=False)
        return functional.pad(functional.pixel_shuffle(larger.repeat(1, 2, 1, 1), 2), (1, 1, 1, 1))


def test_a_network_of_another_kind_is_accepted_and_its_sizes_are_inferred():
    """Attention, upsampling, Tile and Pad: the last shape is that of torch."""
    spec, module = TensorSpec("cut_0", (8, 6, 6)), Attention().eval()
    shape = tuple(module(torch.zeros(1, 8, 6, 6)).shape)
    part = Part("o0", module, (spec,), (TensorSpec("cut_1", shape[1:]),))
    fragment = read_fragment(part_graphs([part])["o0"].SerializeToString())
    check_sizes([fragment], [spec], [TensorSpec("cut_1", shape[1:])])
    values = {tensor.name: sizes.constant(tensor) for tensor in fragment.initializers}
    values[b"cut_0"] = sizes.Inferred((1, 8, 6, 6))
    for node in fragment.nodes:
        values |= dict(zip(node.outputs, sizes.inferred(node, values), strict=True))
    assert values[b"cut_1"].shape == shape
