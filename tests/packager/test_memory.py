"""The peak of a packaging process, for a network whose activations are large."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

_WIDE = '''
from torch import nn
from device_sdk.data.preprocessing import Preprocessing

def block(width):
    return nn.Sequential(
        nn.Conv2d(width, 6 * width, 1), nn.ReLU(), nn.Conv2d(6 * width, width, 3, padding=1, groups=width), nn.ReLU()
    )

def wide():
    """32 channels at 64 x 64, 192 inside: 6 MB for an operator of one sample, 400 MB for 64 of them."""
    layers = [nn.Conv2d(1, 32, 1), nn.ReLU(), *[block(32) for _ in range(2)]]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
    model.input_shape = (1, 64, 64)
    model.preprocessing = Preprocessing(scale=1 / 16, mean=(0.3,), std=(0.4,), channels=1)
    return model
'''
_LIMIT_GB = 2.1


@pytest.mark.slow
def test_packaging_stays_below_its_limit(command_line):
    (command_line.folder / "wide_models.py").write_text(_WIDE)
    arguments = ("--model", "wide_models:wide", "--data", "digits#train", "--val", "digits#calibration", "--exits", 1)
    length = ("--steps", 2, "--rendition", "int8", "--memory-gb", _LIMIT_GB, "--threads", 1, "--json")
    done = command_line.run("package", *arguments, *length, "--out", "wide")
    assert done.returncode == 0, done.stderr
    report = json.loads((Path(command_line.folder) / "wide" / "packaging.json").read_bytes())
    assert report["peak_rss_bytes"] < _LIMIT_GB * 1e9
    assert any("trained with batches of" in note for note in json.loads(done.stdout)["notes"])
