from __future__ import annotations

import torch
from torch import nn

from device_sdk.supernet.plan import Edge, Subnet
from packager.training.keeping import average_statistics, recalibrate


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


def test_several_processes_come_to_the_mean_of_their_statistics(together, noise):
    layers = [nn.Sequential(nn.BatchNorm2d(3), nn.BatchNorm2d(3, track_running_stats=False)) for _ in range(2)]
    images = [noise(8, 3, 4, 4, seed=seed) * (2 + seed) for seed in range(2)]
    for layer, batch in zip(layers, images, strict=True):
        layer(batch)
    means = [layer[0].running_mean.clone() for layer in layers]
    variances = [layer[0].running_var.clone() for layer in layers]
    assert not torch.allclose(*means)
    for future in together(2, lambda ranks: average_statistics([layers[ranks.share.rank]], ranks)):
        future.result()
    for layer in layers:
        torch.testing.assert_close(layer[0].running_mean, (means[0] + means[1]) / 2)
        torch.testing.assert_close(layer[0].running_var, (variances[0] + variances[1]) / 2)
        assert layer[0].num_batches_tracked == 1
