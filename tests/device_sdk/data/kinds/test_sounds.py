from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import pytest

from device_sdk.data.kinds import preparer_of
from device_sdk.data.kinds.sound_files import load_sounds, read_sound
from device_sdk.data.kinds.sounds import SoundPreprocessing
from device_sdk.errors import DataError, InputError

RATE = 8_000


@pytest.fixture
def preparer():
    return preparer_of(SoundPreprocessing(RATE, 4), (1, 4), {}.__getitem__)


def _write(path: Path, samples: np.ndarray, *, rate: int = RATE, channels: int = 1, width: int = 2) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setparams((channels, width, rate, 0, "NONE", ""))
        file.writeframes(samples.tobytes())
    return path


def test_16_bit_samples_lie_between_minus_one_and_one(preparer):
    found = preparer.prepare(np.array([-32768, 0, 16384, 32767], np.int16))
    assert found.shape == (1, 1, 4)
    assert found.dtype == np.float32
    assert found[0, 0].tolist() == pytest.approx([-1, 0, 0.5, 0.99997], abs=1e-4)


def test_a_longer_sound_is_cut_to_its_middle_and_a_shorter_one_centred_between_zeros(preparer):
    long, short = np.arange(8, dtype=np.float32) / 8, np.ones(2, np.float32)
    assert preparer.prepare([long, short])[:, 0].tolist() == [[0.25, 0.375, 0.5, 0.625], [0, 1, 1, 0]]
    assert "1 of 2 sounds are longer" in preparer.notes([long, short])[0]


def test_a_smaller_input_size_takes_the_middle(preparer):
    found = preparer.inputs([np.arange(4, dtype=np.float32)]).take(np.array([0]), (2,))
    assert found.tolist() == [[[1, 2]]]


@pytest.mark.parametrize(
    "sound", [np.zeros((2, 3), np.int16), np.zeros(0, np.int16), np.zeros(4, np.int32), np.full(4, np.nan, np.float32)]
)
def test_what_is_no_sound_is_refused(preparer, sound):
    with pytest.raises(InputError, match="sound 0"):
        preparer.prepare([sound])


def test_files_are_read_by_class_and_their_channels_averaged(tmp_path):
    _write(tmp_path / "a" / "one.wav", np.array([1, 2, 3], np.int16))
    _write(tmp_path / "b" / "two.wav", np.array([[2, 4], [6, 8]], np.int16), channels=2)
    found = load_sounds(str(tmp_path), limit=None, labelled=True, sample_rate_hz=RATE)
    assert found.class_names == ("a", "b")
    assert [sound.tolist() for sound in found.samples] == [[1, 2, 3], [3, 7]]


def test_another_rate_is_refused_with_the_way_to_resample(tmp_path):
    path = _write(tmp_path / "a.wav", np.ones(3, np.int16), rate=44_100)
    with pytest.raises(DataError, match="44100 samples a second, the model takes 8000") as caught:
        read_sound(path, sample_rate_hz=RATE)
    assert "ffmpeg" in str(caught.value.hint)


def test_other_forms_are_refused(tmp_path):
    eight_bits = _write(tmp_path / "8.wav", np.ones(3, np.uint8), width=1)
    empty = _write(tmp_path / "0.wav", np.ones(0, np.int16))
    damaged = tmp_path / "x.wav"
    damaged.write_bytes(b"RIFF\x00\x00")
    for path, message in ((eight_bits, "8 bits"), (empty, "holds no sound"), (damaged, "not a readable .wav")):
        with pytest.raises(DataError, match=message):
            read_sound(path, sample_rate_hz=RATE)
