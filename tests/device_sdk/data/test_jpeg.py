from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from device_sdk.data.image_files import MAX_SIDE, decode_jpeg, encode_all, encode_jpeg, jpeg_size
from device_sdk.errors import InputError, UsageError

smooth = np.add.outer(np.arange(40), np.arange(56)).astype(np.uint8)[..., np.newaxis]


@pytest.mark.parametrize("channels", [1, 3])
def test_a_smooth_image_survives(channels):
    image = np.repeat(smooth, channels, axis=2)
    data = encode_jpeg(image)
    assert jpeg_size(data) == (40, 56)
    decoded = decode_jpeg(data, channels=channels)
    assert decoded.shape == image.shape
    assert np.abs(decoded.astype(int) - image).max() <= 4


def test_less_quality_takes_fewer_bytes():
    image = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    sizes = [len(encode_jpeg(image, quality=quality)) for quality in (95, 90, 50, 10)]
    assert sizes == sorted(sizes, reverse=True)
    assert len(encode_all([image, image], quality=10)) == 2


@pytest.mark.parametrize("quality", [0, 96])
def test_a_quality_out_of_range_is_refused(quality):
    with pytest.raises(UsageError, match="1 to 95"):
        encode_jpeg(smooth, quality=quality)


def file(kind: str, mode: str, size: tuple[int, int]) -> bytes:
    data = io.BytesIO()
    Image.new(mode, size).save(data, kind)
    return data.getvalue()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a JPEG"),
        (b"\xff\xd8\xff", "not a JPEG"),
        (file("PNG", "RGB", (8, 8)), "not a JPEG"),
        (file("JPEG", "RGB", (MAX_SIDE + 1, 8)), "the limit is"),
        (file("JPEG", "CMYK", (8, 8)), "mode CMYK"),
        (file("JPEG", "L", (8, 8)), "mode L"),
        (encode_jpeg(np.repeat(smooth, 3, axis=2))[:-200], "cut short"),
    ],
)
def test_what_is_no_fitting_jpeg_is_refused(data, message):
    with pytest.raises(InputError, match=message):
        decode_jpeg(data, channels=3)


@pytest.mark.parametrize("shape", [(8, 8), (8, 8, 2), (MAX_SIDE + 1, 8, 3), (0, 0, 3)])
def test_what_a_jpeg_cannot_hold_is_refused(shape):
    with pytest.raises(InputError, match="channels"):
        encode_jpeg(np.zeros(shape, np.uint8))
