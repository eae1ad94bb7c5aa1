from __future__ import annotations

import pytest

from device_sdk.data.preprocessing import Preprocessing
from device_sdk.errors import UsageError
from packager.inputs.pixels import Pixels, nearest_interpolation, parse_normalisation, require_fitting_scale

OWN = Preprocessing(1.0, (1.0, 2.0, 3.0), (4.0, 5.0, 6.0), resize=(8, 8), interpolation="bicubic", crop=0.9)


def test_nothing_chosen_leaves_a_model_its_own():
    assert Pixels().applied_to(OWN) == OWN
    assert Pixels(crop=0.5).alone(3) is None


@pytest.mark.parametrize(
    ("choice", "changed"),
    [
        ({"interpolation": "bilinear"}, {"interpolation": "bilinear"}),
        ({"crop": "whole"}, {"crop": None}),
        ({"crop": 0.5}, {"crop": 0.5}),
        ({"normalisation": ((0.5,), (0.25,))}, {"scale": 1 / 255, "mean": (0.5,) * 3, "std": (0.25,) * 3}),
    ],
)
def test_each_choice_replaces_its_part(choice, changed):
    chosen = Pixels(**choice).applied_to(OWN)
    assert {name: getattr(chosen, name) for name in changed} == changed
    unchanged = set(OWN.__struct_fields__) - set(changed)
    assert all(getattr(chosen, name) == getattr(OWN, name) for name in unchanged)


@pytest.mark.parametrize(
    ("text", "normalisation"),
    [
        ("imagenet", ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))),
        ("inception", ((0.5,), (0.5,))),
        ("unit", ((0.0,), (1.0,))),
        ("0.1,0.2,0.3/1", ((0.1, 0.2, 0.3), (1.0,))),
    ],
)
def test_a_normalisation_is_named_or_written_out(text, normalisation):
    assert parse_normalisation(text) == normalisation


@pytest.mark.parametrize("text", ["imagenett", "0.5", "0.5/", "a/b", "0.5/0", "nan/1", "0.5/inf", "1/2/3", ""])
def test_a_text_that_is_no_normalisation_is_refused(text):
    with pytest.raises(ValueError, match=r"imagenet, inception, unit|above zero"):
        parse_normalisation(text)


def test_a_normalisation_for_other_channels_is_refused():
    with pytest.raises(UsageError, match="for 3 channels, the model takes 1"):
        Pixels(parse_normalisation("imagenet")).alone(1)


def test_libraries_interpolations_become_the_nearest_that_devices_have():
    names = ("bilinear", "bicubic", "lanczos", "box", "random")
    assert [nearest_interpolation(name) for name in names] == ["bilinear", "bicubic", "bicubic", "bilinear", "bilinear"]


@pytest.mark.parametrize(
    ("scale", "mean", "std"),
    [
        (1 / 255, 0.485, 0.229),
        (1.0, 123.7, 58.4),
        (1.0, 0.0, 1.0),
        (1 / 16, 0.3, 0.4),
        (2 / 255, 1.0, 1.0),
        (1.0, 104.0, 1.0),
    ],
)
def test_statistics_of_scaled_pixels_fit(scale, mean, std):
    require_fitting_scale(Preprocessing(scale, (mean,), (std,), channels=1))


@pytest.mark.parametrize(
    ("scale", "mean", "std", "remedy"),
    [
        (1 / 255, 123.7, 58.4, "for pixels 0 to 1 they are 0.4851"),
        (1.0, 0.485, 0.229, "scale 1/255"),
        (1.0, 0.5, 0.5, ""),
    ],
)
def test_statistics_of_pixels_of_another_range_are_refused_with_the_remedy(scale, mean, std, remedy):
    with pytest.raises(UsageError, match="pixels are scaled to 0 to") as caught:
        require_fitting_scale(Preprocessing(scale, (mean,), (std,), channels=1))
    assert remedy in str(caught.value.hint)
