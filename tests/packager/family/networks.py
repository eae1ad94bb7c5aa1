"""Networks of two sizes for the digits, as a user's module has them."""

from __future__ import annotations

import torch

from device_sdk.data.preprocessing import Preprocessing
from packager.zoo.resnet import SmallResNet


def _network(widths: tuple[int, ...], seed: int) -> SmallResNet:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = SmallResNet(channels=1, widths=widths, depth=1, classes=10)
    network.input_shape = (1, 8, 8)
    network.preprocessing = Preprocessing(scale=1 / 16, mean=(0.5,), std=(0.25,), channels=1)
    return network.eval()


def large() -> SmallResNet:
    """The large one."""
    return _network((8, 16), seed=1)


def small() -> SmallResNet:
    """The small one."""
    return _network((4, 8), seed=2)
