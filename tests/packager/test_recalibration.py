from __future__ import annotations

import torch
from torch import nn

from device_sdk.graph import Edge, Subnet
from packager.recalibration import recalibrate


def norms(module: nn.Module) -> list[nn.BatchNorm2d]:
    return [part for part in module.modules() if isinstance(part, nn.BatchNorm2d)]


def test_statistics_become_the_mean_over_all_batches(tiny_expansion, noise):
    path = Subnet(tuple(Edge(name) for name in ("o0", "m1-3", "o3", "o4", "o5")))
    batches = [noise(16, 1, 8, 8, seed=seed) * (1 + seed) for seed in range(3)]
    block = next(block for block in tiny_expansion.added if block.id == "m1-3")
    first = norms(block.module)[0]
    seen = []
    hook = first.register_forward_hook(lambda layer, inputs, output: seen.append(inputs[0].mean((0, 2, 3))))
    recalibrate(tiny_expansion, [(path, batch) for batch in batches])
    hook.remove()
    assert torch.allclose(first.running_mean, torch.stack(seen).mean(0), atol=1e-5)
    assert first.momentum == 0.1
    assert not first.training


def test_blocks_that_no_path_passes_and_originals_keep_what_they_have(tiny_expansion, noise):
    path = Subnet(tuple(Edge(name) for name in ("o0", "m1-3", "o3", "o4", "o5")))
    others = [block for block in tiny_expansion.blocks if block.id != "m1-3"]
    before = [value.clone() for block in others for value in block.module.state_dict().values()]
    recalibrate(tiny_expansion, [(path, noise(8, 1, 8, 8))])
    assert all(map(torch.equal, before, [value for b in others for value in b.module.state_dict().values()]))
