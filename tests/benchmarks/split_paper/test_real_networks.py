from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from benchmarks.auto_split.problem import SplitSolution  # noqa: E402
from benchmarks.split_paper.real_networks import real_network  # noqa: E402


@pytest.fixture(scope="module")
def network():
    """Convolutions, batch norms, a shortcut and a linear layer, judged by its own answers."""

    class Small(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
            self.second = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
            self.end = nn.Linear(8, 4)

        def forward(self, x):
            x = self.first(x)
            x = x + self.second(x)
            return self.end(torch.flatten(nn.functional.adaptive_avg_pool2d(x, 1), 1))

    torch.manual_seed(0)
    module = Small()
    with torch.no_grad():
        for _ in range(5):
            module(torch.randn(32, 3, 8, 8))  # running statistics
    module.eval()
    images = torch.randn(60, 3, 8, 8)
    with torch.no_grad():
        module.end.bias -= module(images).mean(dim=0)  # all classes occur
        labels = module(images).argmax(dim=1).numpy()
    return real_network("small", module, images[:16], images, labels)


def quantised(network, bits, position=None, sent=()):
    count = network.layers.graph.count
    position = count if position is None else position
    own = (bits,) * position
    return SplitSolution(position=position, layers=count, weight_bits=own, activation_bits=own, sent_bits=sent)


def test_folding_and_sixteen_bits_change_no_answer(network):
    assert network.accuracy() == 1.0
    assert network.accuracy(quantised(network, 16)) == 1.0


def test_fewer_bits_lose_more_and_nothing_stays_quantised(network):
    eight, two = network.accuracy(quantised(network, 8)), network.accuracy(quantised(network, 2))
    assert eight > two
    assert network.accuracy() == 1.0


def test_errors_shrink_with_the_bits(network):
    for errors in (*network.weight_errors, *network.activation_errors):
        assert sorted(errors.values(), reverse=True) == [errors[width] for width in sorted(errors)]


def test_what_crosses_is_quantised_for_the_server_alone(network):
    crossing = network.layers.graph.crossing(2)
    assert len(crossing) == 2
    fine = network.accuracy(quantised(network, 16, 2, (16, 16)))
    coarse = network.accuracy(quantised(network, 16, 2, (2, 2)))
    assert fine == 1.0
    assert coarse < 1.0


def test_weights_are_per_filter(network):
    assert np.isfinite([error for errors in network.weight_errors for error in errors.values()]).all()
