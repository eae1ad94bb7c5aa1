"""An exit structure of your own: the largest value of each channel, then one linear layer.

``python docs/extend/exit_structure.py FOLDER`` packages a small network for digits with such exits.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
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
from device_sdk.supernet.plan import ExitChoice, Plan
from packager.branch_zoo.plain import PLAIN
from packager.branch_zoo.specs import Shape
from packager.zoo.resnet import SmallResNet
from pathweave.cli import main as pathweave

NAME = "largest"


class Largest(nn.Module):
    """[batch, channels, height, width] → [batch, channels]."""

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return features.amax((2, 3))


def largest(shape: Shape, classes: int) -> Iterator[nn.Module]:
    """For images alone. Sizes are tried in order until one has few enough MACs; this structure has one size."""
    if len(shape) == 3:
        yield nn.Sequential(Largest(), nn.BatchNorm1d(shape[0]), nn.Linear(shape[0], classes))


PLAIN[NAME] = largest  # in the packager: a line in packager/branch_zoo/plain.py


def small() -> nn.Module:
    """The network that is packaged."""
    torch.manual_seed(0)
    model: Any = SmallResNet(channels=1, widths=(8, 8), depth=2, classes=10)
    model.input_shape = (1, 8, 8)
    model.preprocessing = Preprocessing(scale=1 / 16, mean=(0.3,), std=(0.4,), channels=1)
    return model


def main(folder: Path) -> None:
    """Package, test every exit, and run a plan that the exit ends."""
    recipe = folder / "recipe.toml"
    recipe.write_text('steps = 4\nbatch = 32\nmax_span = 1\nidentity = false\nexit_positions = 1\ndevice = "cpu"\n')
    data = ("--data", "digits#train", "--val", "digits#search")
    model = f"{Path(__file__).stem}:small"
    pathweave(["package", "--model", model, *data, "--recipe", str(recipe), "--out", str(folder / "bundle")])
    workspace = Workspace(Bundle.open(folder / "bundle", accepts=runs_on()), make_runtime(threads=1))
    run_self_test(workspace)
    [exit_] = [one for one in workspace.supernet.exits if one.branch == NAME]
    plan = Plan(workspace.supernet.original, (ExitChoice(exit_.id, threshold=0.0),))
    outcome = workspace.load_plan(plan).run(np.zeros((1, 1, 8, 8), dtype=np.float32))
    print(f"answered by {plan.exits[outcome.answered_by[0]].exit}: class {outcome.output.argmax()}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
