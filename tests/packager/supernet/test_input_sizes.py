from __future__ import annotations

import pytest
import torch
from torch import nn

from packager.supernet.expansion import expand
from packager.supernet.input_sizes import candidate_sizes, usable_sizes
from packager.tasks import Classification
from packager.tracing.traced_model import trace


class Net(nn.Module):
    """Convolutions, and a head that takes the mean over all positions or a map of one size only."""

    def __init__(self, *, fixed: bool) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU())
        self.body = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())
        self.fixed = fixed
        self.head = nn.Linear(8 * 16 * 16 if fixed else 8, 4)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.body(self.stem(images))
        return self.head(features.flatten(1) if self.fixed else features.mean((2, 3)))


def expansion_of(*, fixed: bool):
    torch.manual_seed(0)
    samples = torch.rand(6, 3, 32, 32)
    return expand(trace(Net(fixed=fixed).eval(), samples), max_span=1), samples


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ((224, 224), [(side, side) for side in (208, 192, 176, 160, 144, 128, 112)]),
        ((260, 260), [(256, 256), (224, 224), (192, 192), (160, 160)]),
        ((128, 256), [(128, 224), (96, 192)]),
        ((64, 64), []),
        ((96, 96), []),
    ],
)
def test_few_multiples_of_16_pixels_are_candidates(own, expected):
    assert candidate_sizes(own) == expected


def test_a_convolutional_model_runs_at_smaller_inputs():
    expansion, samples = expansion_of(fixed=False)
    sizes, notes = usable_sizes(expansion, samples, [(24, 24), (16, 16)], task=Classification())
    assert [size.size for size in sizes] == [(24, 24), (16, 16)]
    assert not notes
    assert sizes[1].shapes[0] == ((3, 16, 16),)
    assert sizes[1].shapes[1] == ((8, 8, 8),)
    assert sizes[1].shapes[-1] == ((4,),)
    assert 0 < sizes[0].error < sizes[1].error


def test_a_size_that_a_smaller_one_beats_is_left_out():
    expansion, samples = expansion_of(fixed=False)
    sizes, _ = usable_sizes(expansion, samples, [(31, 31), (30, 30), (16, 16)], task=Classification())
    errors = [size.error for size in sizes]
    assert errors == sorted(errors)
    assert len(set(errors)) == len(errors)


def test_a_model_that_fixes_its_size_has_one():
    expansion, samples = expansion_of(fixed=True)
    sizes, notes = usable_sizes(expansion, samples, [(24, 24)], task=Classification())
    assert sizes == ()
    assert "no input of 24x24" in notes[0]
