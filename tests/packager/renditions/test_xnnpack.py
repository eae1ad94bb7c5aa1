"""Slow: ExecuTorch takes seconds to lower a block."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from device_sdk.fragments.composition import Stretch
from device_sdk.supernet.blocks import TensorSpec
from packager.branch_zoo.plain import attach_exits
from packager.errors import NotDelegatedError
from packager.exporting.export import export_blocks
from packager.renditions.calibration import Calibration
from packager.renditions.xnnpack import NAME, lowered, make_xnnpack
from packager.supernet.expansion import expand
from packager.tracing.traced_model import trace
from packager.zoo.resnet import SmallResNet

pytest.importorskip("executorch.exir", reason="needs the extra: pip install 'pathweave[executorch]'")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def exported(noise):
    """Stem, a block, one that halves the resolution, head; and two exits."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = SmallResNet(channels=1, widths=(4, 8), depth=1, classes=10).eval()
    return export_blocks(attach_exits(expand(trace(model, noise(4, 1, 8, 8)), max_span=1), count=1))


def test_blocks_and_exits_become_programs_that_answer_like_torch(exported, noise, recorded, work):
    from device_sdk.runtimes.executorch import ExecutorchRuntime

    expansion = exported.expansion
    made = make_xnnpack(exported, Calibration(expansion, noise(4, 1, 8, 8)), recorded, work)
    assert made.own.keys() == exported.own.keys() == made.golden.keys()
    assert (made.runtime, made.entry_point, made.opset) == ("executorch", "forward", None)
    assert recorded.tasks == {"lower to xnnpack": 0}

    names = [block.id for block in expansion.originals]
    path = exported.stretch(names)
    stretch = Stretch(
        fragments=[made.own[name] for name in names],
        inputs=path.inputs,
        outputs=path.outputs,
        ir_version=path.ir_version,
        opset=path.opset,
        runtime=made.runtime,
        entry_points=(made.entry_point,) * len(names),
    )
    images = noise(3, 1, 8, 8)
    (found,) = ExecutorchRuntime(threads=1).load(stretch).run([images.numpy()])
    np.testing.assert_allclose(found, expansion.traced.whole(images).detach().numpy(), atol=1e-4)

    # what was made is taken from the work folder
    kept = sorted(work.glob(f"{NAME}-*.pte"))
    times = [path.stat().st_mtime_ns for path in kept]
    again = make_xnnpack(exported, Calibration(expansion, noise(4, 1, 8, 8)), recorded, work)
    assert again.own == made.own
    assert [path.stat().st_mtime_ns for path in kept] == times


def test_a_block_that_is_not_fully_delegated_is_refused_with_its_operators():
    class Sorted(nn.Module):
        def forward(self, x):
            return torch.cumsum(torch.relu(x), dim=1)

    with pytest.raises(NotDelegatedError, match=r"XNNPACK does not support all operators of o3: .*cumsum") as raised:
        lowered(Sorted(), TensorSpec("cut_3", (4, 8, 8)), name="o3")
    assert "relu" not in str(raised.value)
    assert "without the rendition xnnpack" in raised.value.hint
