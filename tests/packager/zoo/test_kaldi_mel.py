from __future__ import annotations

import pytest
import torch

from packager.zoo.kaldi_mel import FRAME, HOP, KaldiMel, samples_of

RATE = 16_000


def front(frames=50, bands=40, mean=0.0, std=0.5):
    return KaldiMel(sample_rate_hz=RATE, frames=frames, bands=bands, mean=mean, std=std)


def tone(hz):
    return torch.sin(2 * torch.pi * hz * torch.arange(samples_of(50)) / RATE)[None, None]


@pytest.mark.parametrize(("low", "high"), [(200.0, 400.0), (1_000.0, 3_000.0)])
def test_a_higher_tone_is_loudest_in_a_higher_band(low, high):
    loudest = [int(front()(tone(hz))[0].mean(0).argmax()) for hz in (low, high)]
    assert 0 < loudest[0] < loudest[1] < 39


def test_a_constant_is_not_heard():
    heard = front()(tone(440) + 0.5)
    torch.testing.assert_close(heard, front()(tone(440)), atol=1e-2, rtol=0)


def test_missing_frames_and_silent_ones_are_0_before_the_mean_is_taken_off():
    model = front(frames=60, mean=-4.0, std=2.0)
    sound = tone(440)
    sound[..., : FRAME + HOP] = 0
    found = model(sound)
    assert found.shape == (1, 60, 40)
    assert (found[0, :2] == 1).all()
    assert (found[0, 50:] == 1).all()
    assert (found[0, 5:50] != 1).all()


def test_frames_beyond_those_of_the_model_are_cut_off():
    torch.testing.assert_close(front(frames=20)(tone(440)), front()(tone(440))[:, :20])
    assert samples_of(1) == FRAME
