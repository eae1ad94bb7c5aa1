from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image

from device_sdk.data.preprocessing import Preprocessing, fit_image, prepare, resize_image, unprepare
from device_sdk.errors import InputError

IMAGENET = Preprocessing(scale=1 / 255, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
GREY = Preprocessing(scale=1 / 16, mean=(0.3,), std=(0.4,), channels=1)


def pixels(*shape: int) -> np.ndarray:
    return np.random.default_rng(7).integers(0, 256, shape, dtype=np.uint8)


def test_values_are_scaled_and_normalised_per_channel():
    image = pixels(4, 5, 3)
    prepared = prepare(image, IMAGENET, input_shape=(3, 4, 5))
    for channel in range(3):
        expected = (image[..., channel] / 255 - IMAGENET.mean[channel]) / IMAGENET.std[channel]
        np.testing.assert_allclose(prepared[0, channel], expected, atol=1e-6)


def test_prepared_tensors_are_contiguous_float32():
    prepared = prepare(pixels(2, 4, 5, 3), IMAGENET, input_shape=(3, 4, 5))
    assert (prepared.shape, prepared.dtype) == ((2, 3, 4, 5), np.float32)
    assert prepared.flags.c_contiguous


@settings(deadline=None)
@given(batch=arrays(np.uint8, st.tuples(st.integers(1, 9), st.just(6), st.just(7), st.just(3))))
def test_one_by_one_gives_the_same_bits_as_a_batch(batch):
    together = prepare(batch, IMAGENET, input_shape=(3, 6, 7))
    alone = np.concatenate([prepare(image, IMAGENET, input_shape=(3, 6, 7)) for image in batch])
    assert together.tobytes() == alone.tobytes()


def test_one_by_one_gives_the_same_bits_as_a_batch_when_resizing():
    resizing = msgspec.structs.replace(IMAGENET, resize=(8, 6))
    batch = pixels(5, 13, 11, 3)
    together = prepare(batch, resizing, input_shape=(3, 8, 6))
    alone = np.concatenate([prepare(image, resizing, input_shape=(3, 8, 6)) for image in batch])
    assert together.tobytes() == alone.tobytes()


def test_grey_images_come_with_or_without_a_channel_axis():
    image = pixels(8, 8)
    flat = prepare(image, GREY, input_shape=(1, 8, 8))
    assert flat.tobytes() == prepare(image[..., np.newaxis], GREY, input_shape=(1, 8, 8)).tobytes()


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "P", "1"])
def test_pillow_images_of_any_mode_are_converted(mode):
    image = Image.fromarray(pixels(8, 8, 3)).convert(mode)
    colour = prepare(image, IMAGENET, input_shape=(3, 8, 8))
    assert colour.tobytes() == prepare(np.asarray(image.convert("RGB")), IMAGENET, input_shape=(3, 8, 8)).tobytes()


@pytest.mark.parametrize("mode", ["L", "LA", "1"])
def test_grey_pillow_images_are_converted_for_a_grey_model(mode):
    image = Image.fromarray(pixels(8, 8, 3)).convert(mode)
    grey = prepare(image, GREY, input_shape=(1, 8, 8))
    assert grey.tobytes() == prepare(np.asarray(image.convert("L")), GREY, input_shape=(1, 8, 8)).tobytes()


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P", "CMYK"])
def test_colour_pillow_images_are_refused_by_a_grey_model_as_files_are(mode):
    image = Image.fromarray(pixels(8, 8, 3)).convert(mode)
    with pytest.raises(InputError, match="this is a colour image"):
        prepare(image, GREY, input_shape=(1, 8, 8))


@pytest.mark.parametrize("mode", ["I", "I;16", "F"])
def test_pillow_images_of_more_than_eight_bits_are_refused_as_files_are(mode):
    with pytest.raises(InputError, match="more than 8 bits per channel"):
        prepare(Image.new(mode, (8, 8)), IMAGENET, input_shape=(3, 8, 8))


@pytest.mark.parametrize("orientation", [3, 6, 8])
def test_pillow_images_are_turned_upright_as_files_are(orientation):
    image = Image.fromarray(pixels(8, 8, 3))
    upright = {3: Image.Transpose.ROTATE_180, 6: Image.Transpose.ROTATE_270, 8: Image.Transpose.ROTATE_90}
    turned = image.copy()
    turned.getexif()[0x0112] = orientation
    expected = prepare(np.asarray(image.transpose(upright[orientation])), IMAGENET, input_shape=(3, 8, 8))
    assert prepare(turned, IMAGENET, input_shape=(3, 8, 8)).tobytes() == expected.tobytes()


def test_a_size_that_already_fits_is_not_resampled():
    image = pixels(8, 6, 3)
    assert resize_image(image, (8, 6)) is image


@pytest.mark.parametrize("channels", [1, 3])
def test_resizing_gives_height_times_width(channels):
    assert resize_image(pixels(20, 30, channels), (8, 6)).shape == (8, 6, channels)


@pytest.mark.parametrize(
    ("images", "expected", "got"),
    [
        (pixels(8), r"\[h, w, 3\]", r"\(8,\)"),
        (pixels(1, 1, 8, 8, 3), r"\[n, h, w, 3\]", r"\(1, 1, 8, 8, 3\)"),
        (pixels(0, 8, 8, 3), "batch", r"\(0, 8, 8, 3\)"),
        (pixels(8, 8, 3).astype(np.float32), "uint8", "float32"),
        (pixels(8, 8), "3 channels", r"\(8, 8\)"),
        (pixels(8, 8, 4), "3 channels", r"\(8, 8, 4\)"),
        (pixels(9, 8, 3), r"\(8, 8, 3\)", r"\(9, 8, 3\)"),
        ([[1, 2]], "numpy array", "list"),
    ],
    ids=["rank 1", "rank 5", "empty", "float", "grey", "alpha", "size", "list"],
)
def test_a_wrong_input_is_refused_with_expected_and_got(images, expected, got):
    with pytest.raises(InputError, match=f"(?s)expected.*{expected}.*got.*{got}"):
        prepare(images, IMAGENET, input_shape=(3, 8, 8))


@pytest.mark.parametrize(
    "change",
    [
        {"mean": [0.5]},
        {"std": [1.0, 0.0, 1.0]},
        {"scale": float("nan")},
        {"resize": [0, 8]},
        {"resize": [8, 1_000_000]},
        {"crop": 0.0},
        {"crop": 1.01},
        {"interpolation": "nearest"},
        {"channels": 0, "mean": [], "std": []},
        {"channels": 2, "mean": [0, 0], "std": [1, 1], "resize": [8, 8]},
    ],
)
def test_a_manifest_with_senseless_preprocessing_breaks_the_schema(change):
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(msgspec.to_builtins(IMAGENET) | change, Preprocessing)


def test_preprocessing_survives_json():
    original = msgspec.structs.replace(IMAGENET, resize=(224, 224))
    assert msgspec.json.decode(msgspec.json.encode(original), type=Preprocessing) == original


@st.composite
def ordinary_preprocessings(draw: st.DrawFn) -> Preprocessing:
    """Scales, means and deviations as models have them."""
    channels = draw(st.sampled_from([1, 3]))
    scale = draw(st.sampled_from([1.0, 1 / 255, 1 / 256, 1 / 127.5, -1 / 255]))
    unit = abs(scale) * 255
    means = draw(st.lists(st.floats(-unit, unit), min_size=channels, max_size=channels))
    stds = draw(st.lists(st.floats(unit / 100, unit), min_size=channels, max_size=channels))
    return Preprocessing(scale=scale, mean=tuple(means), std=tuple(stds), channels=channels)


@settings(deadline=None)
@given(preprocessing=ordinary_preprocessings())
def test_every_pixel_comes_back_exactly_from_a_prepared_tensor(preprocessing):
    levels = np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1).repeat(preprocessing.channels, axis=3)
    images = np.concatenate([levels, 255 - levels])
    tensors = prepare(images, preprocessing, input_shape=(preprocessing.channels, 16, 16))
    recovered = unprepare(tensors, preprocessing)
    np.testing.assert_array_equal(recovered, images)
    assert (recovered.dtype, recovered.flags.c_contiguous) == (np.uint8, True)


def test_tensors_that_came_from_no_pixels_give_the_nearest_ones():
    tensors = np.array([-9.0, 0.4, 0.6, 254.7, 300.0], np.float32).reshape(1, 1, 1, 5)
    plain = Preprocessing(scale=1.0, mean=(0.0,), std=(1.0,), channels=1)
    assert unprepare(tensors, plain).ravel().tolist() == [0, 0, 1, 255, 255]


@pytest.mark.parametrize(
    ("tensors", "scale"),
    [
        (np.zeros((3, 4, 5), np.float32), 1.0),
        (np.zeros((1, 1, 4, 5), np.float32), 1.0),
        (np.full((1, 3, 4, 5), np.nan, np.float32), 1.0),
        (np.full((1, 3, 4, 5), np.inf, np.float32), 1.0),
        (np.zeros((1, 3, 4, 5), np.float32), 0.0),
    ],
)
def test_tensors_without_pixels_are_refused(tensors, scale):
    with pytest.raises(InputError):
        unprepare(tensors, msgspec.structs.replace(IMAGENET, scale=scale))


# Crop, interpolation, other sizes


def photograph(height: int, width: int) -> np.ndarray:
    """Smooth, with a frame that a crop leaves out."""
    rows, columns = np.mgrid[0:height, 0:width]
    image = np.stack([rows * 255 // height, columns * 255 // width, (rows + columns) % 256], axis=2)
    return image.astype(np.uint8)


def test_a_crop_takes_the_central_square_of_a_photograph():
    image = photograph(40, 60)
    fitted = fit_image(image, msgspec.structs.replace(IMAGENET, resize=(20, 20), crop=0.5))
    np.testing.assert_array_equal(fitted, image[10:30, 20:40])  # half of the largest square


@pytest.mark.parametrize(("size", "region"), [((10, 20), (20, 40)), ((20, 10), (40, 20))])
def test_a_crop_has_the_aspect_ratio_of_the_input(size, region):
    image = photograph(40, 40)
    height, width = region
    top, left = (40 - height) // 2, (40 - width) // 2
    expected = resize_image(np.ascontiguousarray(image[top : top + height, left : left + width]), size)
    fitted = fit_image(image, msgspec.structs.replace(IMAGENET, resize=size, crop=1.0))
    assert np.abs(fitted.astype(int) - expected).max() <= 1


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(375, 500), (500, 333), (224, 200)])
def test_a_crop_is_resizing_and_then_cropping_the_centre(interpolation, size):
    resampling = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}[interpolation]
    image = Image.fromarray(photograph(*size)[..., :2].repeat(2, axis=2)[..., :3])
    shorter = min(image.size)
    resized = image.resize((round(image.width * 256 / shorter), round(image.height * 256 / shorter)), resampling)
    left, top = (resized.width - 224) // 2, (resized.height - 224) // 2
    expected = np.asarray(resized.crop((left, top, left + 224, top + 224))).astype(float)
    own = msgspec.structs.replace(IMAGENET, resize=(224, 224), crop=0.875, interpolation=interpolation)
    assert np.abs(fit_image(np.asarray(image), own) - expected).mean() < 1.0


def test_bicubic_is_not_bilinear():
    image = pixels(30, 30, 3)
    bilinear, bicubic = (
        fit_image(image, msgspec.structs.replace(IMAGENET, resize=(12, 12), interpolation=kind))
        for kind in ("bilinear", "bicubic")
    )
    expected = Image.fromarray(image).resize((12, 12), Image.Resampling.BICUBIC)
    np.testing.assert_array_equal(bicubic, np.asarray(expected))
    assert not np.array_equal(bilinear, bicubic)


def test_another_input_size_takes_the_same_region():
    own = msgspec.structs.replace(IMAGENET, resize=(20, 20), crop=0.5, interpolation="bicubic")
    image = photograph(40, 60)
    smaller = prepare(image, own, input_shape=(3, 10, 10))
    region = resize_image(np.ascontiguousarray(image[10:30, 20:40]), (10, 10), interpolation="bicubic")
    assert smaller.shape == (1, 3, 10, 10)
    assert np.abs(unprepare(smaller, own)[0].astype(int) - region).max() <= 8  # the kernel ends at the region's border


def test_an_image_of_the_size_that_the_model_was_made_for_is_not_cropped_again():
    own = msgspec.structs.replace(IMAGENET, resize=(20, 20), crop=0.5)
    image = fit_image(photograph(40, 60), own)
    assert fit_image(image, own) is image
    smaller = prepare(image, own, input_shape=(3, 10, 10))
    np.testing.assert_array_equal(unprepare(smaller, own)[0], resize_image(image, (10, 10)))


def test_without_a_size_to_resize_to_other_inputs_are_refused():
    with pytest.raises(InputError, match="expected images of height, width"):
        prepare(pixels(8, 8, 3), msgspec.structs.replace(IMAGENET, crop=0.5), input_shape=(3, 4, 4))


def test_a_manifest_from_before_crops_reads_as_the_whole_image_bilinear():
    old = {"scale": 1.0, "mean": [0.0], "std": [1.0], "resize": [8, 8], "channels": 1}
    read = msgspec.convert(old, Preprocessing)
    assert (read.interpolation, read.crop) == ("bilinear", None)
