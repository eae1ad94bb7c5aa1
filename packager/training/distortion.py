"""Strong random distortions of training images, for networks that know the images themselves by heart.

Source: RandAugment (Cubuk et al. 2020): of each image a few operations of one strength. Ours works on a whole batch at
once and leaves out the operations on histograms (equalise, autocontrast, posterise, solarise).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

OPERATIONS = (
    "rotate",
    "shear rows",
    "shear columns",
    "move down",
    "move right",
    "brightness",
    "contrast",
    "saturation",
    "erase",
)
_MOST = (0.52, 0.3, 0.3, 0.45, 0.45, 0.9, 0.9, 0.9, 0.6)  # at strength 1: radians, shares of the image, factors
_OF_EACH = 2  # operations
_GREY = (0.299, 0.587, 0.114)  # of red, green and blue (ITU-R BT.601)


def distorted(images: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """Images [batch, channels, height, width] of 0 to 255, each changed by two random operations, as float32.

    ``strength``: from 0, which changes nothing, to 1. The operations need labels of whole images.
    """
    found = images.float()
    if not strength:
        return found
    chosen = torch.rand(len(images), len(OPERATIONS), generator=generator).argsort(1) < _OF_EACH
    signs = torch.rand(len(images), len(OPERATIONS), generator=generator) * 2 - 1
    corner = torch.rand(len(images), 2, generator=generator)
    # [operations, batch]: how much of each, 0 where it is not chosen
    amount = (chosen * signs * strength * torch.tensor(_MOST)).T
    found = _moved(found, *amount[:5])
    brightness, contrast, saturation = (1 + one.view(-1, 1, 1, 1) for one in amount[5:8])
    found = found * brightness
    means = _grey(found).mean((1, 2, 3), keepdim=True)
    found = means + (found - means) * contrast
    if images.shape[1] == 3:
        grey = _grey(found)
        found = grey + (found - grey) * saturation
    return _erased(found.clamp(0.0, 255.0), amount[8].abs(), corner)


def _moved(
    images: Tensor, angle: Tensor, shear_rows: Tensor, shear_columns: Tensor, down: Tensor, right: Tensor
) -> Tensor:
    """One affine map of each image, bilinear; what comes from outside is mirrored at the border."""
    cosine, sine = angle.cos(), angle.sin()
    first = torch.stack((cosine + sine * shear_columns, sine + cosine * shear_rows, 2 * right), 1)
    second = torch.stack((-sine + cosine * shear_columns, cosine - sine * shear_rows, 2 * down), 1)
    grid = functional.affine_grid(torch.stack((first, second), 1), list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, padding_mode="reflection", align_corners=False)


def _grey(images: Tensor) -> Tensor:
    if images.shape[1] != len(_GREY):
        return images.mean(1, keepdim=True)
    return (images * torch.tensor(_GREY).view(1, -1, 1, 1)).sum(1, keepdim=True)


def _erased(images: Tensor, side: Tensor, corner: Tensor) -> Tensor:
    """A square of ``side`` [batch], a share of the image's, is made medium grey."""
    height, width = images.shape[2:]
    rows = (torch.arange(height) / height)[None]
    columns = (torch.arange(width) / width)[None]
    top, left = (corner * (1 - side[:, None])).unbind(1)
    in_rows = (rows >= top[:, None]) & (rows < (top + side)[:, None])
    in_columns = (columns >= left[:, None]) & (columns < (left + side)[:, None])
    return torch.where((in_rows[:, :, None] & in_columns[:, None, :])[:, None], 127.5, images)
