"""Strong distortions of training images."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from device_sdk.data.datasets import ImageDataset
from device_sdk.data.preprocessing import Preprocessing
from packager.data.batches import BatchSource, distorted


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.randint(0, 256, (64, 3, 16, 16), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_nothing_changes_without_strength(images):
    assert torch.equal(distorted(images, 0.0, generator()), images.float())


@pytest.mark.parametrize("channels", [1, 3])
def test_each_image_changes_and_stays_an_image(images, channels):
    found = distorted(images[:, :channels], 0.6, generator())
    assert found.shape == (64, channels, 16, 16)
    assert found.dtype == torch.float32
    assert 0 <= float(found.min()) <= float(found.max()) <= 255
    assert (found - images[:, :channels].float()).abs().mean((1, 2, 3)).min() > 0


def test_stronger_distortions_change_more(images):
    smooth = torch.nn.functional.avg_pool2d(images.float(), 5, 1, 2)
    weak, strong = ((distorted(smooth, one, generator()) - smooth).abs().mean() for one in (0.1, 1.0))
    assert strong > 2 * weak


def test_the_same_generator_gives_the_same_images(images):
    assert torch.equal(distorted(images, 0.6, generator()), distorted(images, 0.6, generator()))
    assert not torch.equal(distorted(images, 0.6, generator()), distorted(images, 0.6, generator(1)))


def test_turns_and_moves_are_those_of_whole_images():
    """A white square on black keeps about its area; a square that is erased is medium grey."""
    square = torch.zeros(200, 1, 32, 32)
    square[:, :, 12:20, 12:20] = 255.0
    found = distorted(square, 0.5, generator())
    areas = (found > 100).float().sum((1, 2, 3))
    assert (areas - 64).abs().median() < 20


def test_batches_are_distorted_alike_for_both_networks():
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (32, 8, 8, 3), dtype=np.uint8)
    data = ImageDataset(pixels, np.arange(32) % 2, ("a", "b"), tuple(map(str, range(32))))
    plain = Preprocessing(1.0, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    halved = Preprocessing(0.5, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    one, other, undistorted = (
        BatchSource(data, way, batch=8, seed=3, variants=2, distortion=strength).batch(5)
        for way, strength in ((plain, 0.6), (halved, 0.6), (plain, 0.0))
    )
    torch.testing.assert_close(one[0] / 2, other[0])
    assert torch.equal(one[1], other[1])
    assert torch.equal(one[1], undistorted[1])
    assert not torch.allclose(one[0], undistorted[0])
