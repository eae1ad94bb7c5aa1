from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks.sharing.resident import resident_of_sessions
from device_sdk.fragments.composition import Stretch
from packager.branch_zoo.modules import build_branch
from packager.branch_zoo.specs import parse
from packager.exporting.export import export_blocks
from packager.supernet.expansion import TrainableExit, expand
from packager.tracing.traced_model import trace
from packager.zoo import ZOO


@pytest.mark.slow
def test_a_larger_exit_keeps_more_memory():
    model = ZOO["resnet_digits"].constructor(classes=10).eval()
    expansion = expand(trace(model, torch.randn(4, 1, 8, 8)), max_span=1)

    def stretches(name: str) -> list[Stretch]:
        module = build_branch(parse(name), expansion.traced.tensors[2].shape, classes=10, seed=0)
        exit_ = TrainableExit(f"x2-{name}", 2, name, module, 1)
        return 4 * [export_blocks(replace(expansion, exits=(exit_,))).stretch([], exit_.id)]

    assert resident_of_sessions(stretches("none-p2h512h256")) > 1.5 * resident_of_sessions(stretches("none-p1")) > 0
