"""Killed for real, twice, and repeated: the same bundles."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MODELS = """
import torch

from device_sdk.data.datasets import load_dataset
from packager.data.batches import BatchSource
from packager.zoo import ZOO
from packager.zoo.resnet import SmallResNet

PIXELS = ZOO["resnet_digits"].preprocessing


def trained(widths, steps):
    torch.manual_seed(7)
    module = SmallResNet(channels=1, widths=widths, depth=1, classes=10)
    source = BatchSource(load_dataset("digits#train"), PIXELS, batch=64, seed=0)
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
    for step in range(steps):
        images, labels = source.batch(step)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(images), labels).backward()
        optimizer.step()
    module.input_shape, module.preprocessing, module.class_names = (1, 8, 8), PIXELS, tuple("0123456789")
    return module.eval()


def weak():
    return trained((4, 8), 14)


def strong():
    return trained((8, 16), 60)
"""
PAIR = """
train = "rbg"
routing_data = "digits#search"
steps = 60
checkpoint_seconds = 0.0
router_views = 2
precision = "float32"

[base]
model = "killed_models:weak"

[global]
model = "killed_models:strong"
"""


def started(folder: Path, out: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "pathweave", "package", "--pair", "pair.toml", "--data", "digits#train"]
    command += ["--val", "digits#calibration", "--out", out, "--threads", "1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)


def finished(process: subprocess.Popen[str]) -> None:
    _, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors


@pytest.mark.slow
def test_a_process_that_is_killed_twice_goes_on_and_ends_with_the_same_bundles(tmp_path):
    (tmp_path / "killed_models.py").write_text(MODELS)
    (tmp_path / "pair.toml").write_text(PAIR)
    finished(started(tmp_path, "whole"))
    state, written = tmp_path / "killed.work" / "state.pt", tmp_path / "killed" / "base.work"
    for sign in (state, written):
        process = started(tmp_path, "killed")
        ends_s = time.monotonic() + 120
        while not sign.exists() and process.poll() is None and time.monotonic() < ends_s:
            time.sleep(0.01)
        assert sign.exists()
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert not (tmp_path / "killed" / "hybrid.json").exists()
    finished(started(tmp_path, "killed"))
    for part in ("base", "global"):
        manifests = [(tmp_path / out / part / "manifest.json").read_bytes() for out in ("whole", "killed")]
        assert manifests[0] == manifests[1]
