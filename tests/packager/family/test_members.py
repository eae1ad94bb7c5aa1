"""Members of a family: what is folded into their modules, and what cannot be one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from device_sdk.data.preprocessing import Preprocessing, prepare
from device_sdk.errors import UsageError
from device_sdk.progress import SilentProgress
from packager.family.members import Folded, MemberSource, as_member, difference, load_family

GREY = Preprocessing(scale=1 / 16, mean=(0.5,), std=(0.25,), channels=1)
DATA = {"training": "digits#train", "validation": "digits#search", "overrides": {"steps": 0}}


def test_another_normalisation_is_folded_into_the_first_block(digits):
    own = Preprocessing(scale=1 / 255, mean=(0.1,), std=(2.0,), channels=1)
    scale, shift = difference(GREY, own)
    pixels = digits("train").images[:4]
    for_family, for_itself = (prepare(pixels, one, input_shape=(1, 8, 8)) for one in (GREY, own))
    folded = Folded(torch.nn.Identity(), scale, shift)(torch.from_numpy(for_family))
    torch.testing.assert_close(folded, torch.from_numpy(for_itself), rtol=1e-5, atol=1e-5)


def test_other_channels_are_refused():
    colour = Preprocessing(scale=1.0, mean=(0.0,) * 3, std=(1.0,) * 3)
    with pytest.raises(UsageError, match="images of 1 and of 3 channels"):
        difference(GREY, colour)


def test_classes_in_another_order_are_put_in_that_of_the_largest(loaded, noise):
    large, small = loaded
    order = [3, 1, 4, 0, 5, 9, 2, 6, 8, 7]

    class Permuted(torch.nn.Module):
        def forward(self, images):
            return small.module(images)[:, order]

    turned = replace(small, module=Permuted(), class_names=tuple(str(place) for place in order))
    member = as_member(turned, large)
    images = noise(3, 1, 8, 8)
    torch.testing.assert_close(member.module(images), small.module(images))
    assert member.class_names == large.class_names
    assert any("order of the family" in note for note in member.notes)


def test_unknown_classes_are_refused(loaded):
    large, small = loaded
    other = replace(small, class_names=("zero", *small.class_names[1:]))
    with pytest.raises(UsageError, match="small has no class '0', which large has"):
        as_member(other, large)


def test_another_number_of_classes_is_refused(loaded):
    large, small = loaded
    cut = torch.nn.Sequential(small.module, torch.nn.Linear(10, 4))
    with pytest.raises(UsageError, match="small has 4 classes, large has 10"):
        as_member(replace(small, module=cut, class_names=None), large)


@pytest.mark.parametrize("count", [0, 1, 9])
def test_a_family_has_two_to_eight_members(count):
    with pytest.raises(UsageError, match="a family has 2 to 8 members"):
        load_family([MemberSource("zoo:resnet_digits")] * count, progress=SilentProgress(), **DATA)


def test_one_network_twice_is_refused():
    with pytest.raises(UsageError, match="same weights"):
        load_family([MemberSource("zoo:resnet_digits")] * 2, progress=SilentProgress(), **DATA)


def test_a_missing_file_of_weights_is_refused():
    assert MemberSource.parse("zoo:resnet_digits") == MemberSource("zoo:resnet_digits")
    with pytest.raises(UsageError, match=r"no weights file none\.pth for the member zoo:x"):
        MemberSource.parse("zoo:x=none.pth")
