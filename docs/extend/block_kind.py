"""A kind of block of your own: a 1×1 convolution beside a skip, in place of two blocks whose ends have one shape.

``python docs/extend/block_kind.py FOLDER`` packages a small network for digits with such blocks and runs one of them.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from device_sdk.bundles.bundle import Bundle
from device_sdk.data.preprocessing import Preprocessing
from device_sdk.execution.self_test import run_self_test
from device_sdk.execution.workspace import Workspace
from device_sdk.runtimes import make_runtime, runs_on
from device_sdk.supernet.plan import Edge, Plan, Subnet
from packager.supernet.blocks import BUILDERS
from packager.supernet.blocks.originals import Originals
from packager.supernet.blocks.trainable import AddedBlocks, TrainableBlock, count_macs
from packager.zoo.resnet import SmallResNet
from pathweave.cli import main as pathweave

KIND = "pointwise"


class Pointwise(nn.Module):
    """[batch, channels, height, width] → the same shape."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.mix = nn.Conv2d(channels, channels, 1)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return torch.relu(features + self.mix(features))


def pointwise_blocks(originals: Originals) -> AddedBlocks:
    """A block ``p<start>-<end>`` over every two neighbours with one image of the same shape at both ends."""
    tensors, blocks = originals.traced.tensors, []
    for first, second in pairwise(originals.single):
        shape = tensors[first.start].shape
        if len(shape) == 3 and shape == tensors[second.end].shape:
            module = Pointwise(shape[0])
            name, macs = f"p{first.start}-{second.end}", count_macs(module, shape)
            blocks.append(TrainableBlock(name, first.start, second.end, KIND, module, macs))
    return AddedBlocks(tuple(blocks))


BUILDERS[KIND] = pointwise_blocks  # in the packager: a line in packager/supernet/blocks/__init__.py


def small() -> nn.Module:
    """The network that is packaged."""
    torch.manual_seed(0)
    model: Any = SmallResNet(channels=1, widths=(8, 8), depth=2, classes=10)
    model.input_shape = (1, 8, 8)
    model.preprocessing = Preprocessing(scale=1 / 16, mean=(0.3,), std=(0.4,), channels=1)
    return model


def main(folder: Path) -> None:
    """Package, test every block, and run the original path with an added block in it."""
    recipe = folder / "recipe.toml"
    recipe.write_text('steps = 4\nbatch = 32\nmax_span = 1\nidentity = false\nexit_positions = 0\ndevice = "cpu"\n')
    data = ("--data", "digits#train", "--val", "digits#search")
    model = f"{Path(__file__).stem}:small"
    pathweave(["package", "--model", model, *data, "--recipe", str(recipe), "--out", str(folder / "bundle")])
    workspace = Workspace(Bundle.open(folder / "bundle", accepts=runs_on()), make_runtime(threads=1))
    run_self_test(workspace)
    added = next(block for block in workspace.supernet.blocks if block.kind == KIND)
    edges = workspace.supernet.original.edges
    path = Subnet((*edges[: added.start], Edge(added.id), *edges[added.end :]))
    answer = workspace.load_plan(Plan(path)).run(np.zeros((1, 1, 8, 8), dtype=np.float32)).output
    print(f"{path} answers class {answer.argmax()}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
