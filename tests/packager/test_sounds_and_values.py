"""Classifiers of sounds and of prepared values from their modules to answers on the device."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import pathweave
from device_sdk.data.kinds.prepared import TensorPreprocessing
from device_sdk.data.kinds.sounds import SoundPreprocessing
from packager.zoo.log_mel import LogMel
from pathweave.cli import main

RATE, WINDOW = 4_000, 1_000
PITCHES = {"high": 1_200.0, "low": 300.0}


class Pitch(nn.Module):
    """Tells high from low tones: a log-mel front end, two convolutions, a linear layer."""

    preprocessing = SoundPreprocessing(RATE, WINDOW)
    class_names = tuple(PITCHES)

    def __init__(self) -> None:
        super().__init__()
        self.front = LogMel(sample_rate_hz=RATE, window=200, hop=100, bands=16)
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.head = nn.Linear(8, 2)

    def forward(self, sounds: torch.Tensor) -> torch.Tensor:
        """Sounds [n, 1, samples] → logits [n, 2]."""
        return self.head(self.features(self.front(sounds) / 10))


class Sensors(nn.Module):
    """Tells which of three channels has the largest mean."""

    preprocessing = {"kind": "tensor", "mean": [1.0, 1.0, 1.0], "std": [2.0, 2.0, 2.0]}  # noqa: RUF012
    input_shape = (3, 16)
    class_names = ("first", "second", "third")

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = (
            nn.Conv1d(3, 6, 3, padding=1),
            nn.Conv1d(6, 6, 3, padding=1),
            nn.Linear(6, 3),
        )

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Values [n, 3, 16] → logits [n, 3]."""
        return self.head(self.second(self.first(values).relu()).relu().mean(-1))


def _trained(module: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> nn.Module:
    optimizer = torch.optim.Adam(module.parameters(), lr=2e-2)
    for _ in range(80):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(inputs), labels).backward()
        optimizer.step()
    return module.eval().requires_grad_(False)


def _tones(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Noisy tones int16 [count, samples] and the positions of their classes."""
    chance = np.random.default_rng(seed)
    labels = chance.integers(0, 2, count)
    pitch = np.array(list(PITCHES.values()))[labels] * chance.uniform(0.9, 1.1, count)
    time = np.arange(WINDOW) / RATE
    waves = np.sin(2 * np.pi * pitch[:, None] * time) * 0.4 + chance.normal(0, 0.05, (count, WINDOW))
    return (waves * 32_767).astype(np.int16), labels


def pitch() -> nn.Module:
    """The classifier of tones, trained."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        waves, labels = _tones(96, 0)
        return _trained(Pitch(), torch.from_numpy(waves / 32_768).float().unsqueeze(1), torch.from_numpy(labels))


def _values(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    chance = np.random.default_rng(seed)
    labels = chance.integers(0, 3, count)
    values = chance.normal(1, 2, (count, 3, 16)).astype(np.float32)
    values[np.arange(count), labels] += 3
    return values, labels


def sensors() -> nn.Module:
    """The classifier of values, trained."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        values, labels = _values(200, 0)
        return _trained(Sensors(), torch.from_numpy((values - 1) / 2), torch.from_numpy(labels))


def _write_sounds(folder: Path, count: int, seed: int) -> Path:
    waves, labels = _tones(count, seed)
    for number, (samples, label) in enumerate(zip(waves, labels, strict=True)):
        path = folder / list(PITCHES)[label] / f"{number:03}.wav"
        path.parent.mkdir(parents=True, exist_ok=True)
        with wave.open(str(path), "wb") as file:
            file.setparams((1, 2, RATE, 0, "NONE", ""))
            file.writeframes(samples.tobytes())
    return folder


def _package(model: str, training: Path, validation: Path, out: Path) -> None:
    arguments = ["package", "--model", f"tests.packager.test_sounds_and_values:{model}", "--out", str(out), "--json"]
    arguments += ["--data", str(training), "--val", str(validation), "--steps", "6", "--exits", "0"]
    assert main(arguments) == 0


@pytest.fixture(scope="module")
def sounds(tmp_path_factory) -> Path:
    found = tmp_path_factory.mktemp("sounds")
    for number, name in enumerate(("training", "validation")):
        _write_sounds(found / name, 60, seed=20 + number)
    _package("pitch", found / "training", found / "validation", found / "bundle")
    return found


def test_a_classifier_of_sounds_answers_with_its_own_front_end(sounds, tmp_path):
    waves, labels = _tones(40, 30)
    with pathweave.open(sounds / "bundle", state_folder=tmp_path) as model:
        assert model.bundle.manifest.preprocessing == SoundPreprocessing(RATE, WINDOW)
        assert np.mean(model(list(waves)).output.argmax(1) == labels) > 0.9
        assert model(waves[0]).labels == (tuple(PITCHES)[labels[0]],)


def test_commands_take_a_file_of_sound_and_folders(sounds, tmp_path, capsys):
    one = next((sounds / "validation" / "high").glob("*.wav"))
    for arguments in ([str(one)], ["--data", str(sounds / "validation")]):
        assert main(["run", str(sounds / "bundle"), *arguments, "--state", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "high" in said
    assert "of 60 right" in said


def test_a_classifier_of_values_normalises_them_on_the_device(tmp_path):
    for number, name in enumerate(("training", "validation")):
        values, labels = _values(120, 40 + number)
        np.savez(tmp_path / f"{name}.npz", x=values, y=labels)
    _package("sensors", tmp_path / "training.npz", tmp_path / "validation.npz", tmp_path / "bundle")
    values, labels = _values(80, 50)
    with pathweave.open(tmp_path / "bundle", state_folder=tmp_path / "state") as model:
        assert model.bundle.manifest.preprocessing == TensorPreprocessing((1.0,) * 3, (2.0,) * 3)
        answers = model(values)
        assert np.mean(answers.output.argmax(1) == labels) > 0.85
        assert np.allclose(model.infer((values - 1) / 2).output, answers.output, atol=1e-4)
