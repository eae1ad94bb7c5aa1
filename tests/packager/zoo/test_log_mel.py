from __future__ import annotations

import math

import pytest
import torch

from packager.zoo.log_mel import LogMel

RATE = 8_000


def _tone(hertz: float, samples: int = 1_600) -> torch.Tensor:
    return torch.sin(2 * math.pi * hertz * torch.arange(samples) / RATE).view(1, 1, -1)


def test_a_spectrogram_has_a_frame_for_each_hop_that_a_window_fits():
    found = LogMel(sample_rate_hz=RATE, window=200, hop=100, bands=20)(_tone(440).repeat(3, 1, 1))
    assert found.shape == (3, 1, 20, (1_600 - 200) // 100 + 1)
    assert bool(found.isfinite().all())


def test_convolutions_compute_what_torchs_own_transform_does():
    mel = LogMel(sample_rate_hz=RATE, window=256, hop=128, bands=24)
    sound = torch.randn(2, 1, 2_048, generator=torch.Generator().manual_seed(0))
    window = torch.hann_window(256)
    power = torch.stft(sound[:, 0], 256, 128, window=window, center=False, return_complex=True).abs().square()
    expected = (mel.mel @ power).clamp(min=1e-6).log().unsqueeze(1)
    assert torch.allclose(mel(sound), expected, atol=1e-3)


@pytest.mark.parametrize("hertz", [300.0, 1_000.0, 3_000.0])
def test_a_tone_is_loudest_in_the_band_around_it(hertz):
    mel = LogMel(sample_rate_hz=RATE, window=400, hop=160, bands=30)
    loudest = int(mel(_tone(hertz)).mean(-1).argmax())
    heard = torch.arange(201) * RATE / 400
    band = heard[mel.mel[loudest] > 0]
    assert band.min() <= hertz <= band.max()
