"""setup.sh and the systemd unit."""

from __future__ import annotations

import configparser
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jetson_demo.run_demo import run_demo

DEMO = Path(__file__).parents[2] / "jetson_demo"
UNIT = DEMO / "pathweave-demo.service"


def setup(root: Path, *, python: str = sys.executable) -> tuple[int, str]:
    environment = os.environ | {"PYTHON": python, "ROOT": str(root)}
    done = subprocess.run([DEMO / "setup.sh"], env=environment, capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    return done.returncode, done.stdout


@pytest.fixture
def orin(tmp_path):
    """Files of a Jetson Orin with sensors and a camera."""
    files = {
        "proc/device-tree/model": "NVIDIA Jetson Orin Nano\0",
        "var/lib/nvpmodel/status": "pmode:0002 fmode:quiet\n",
        "sys/class/hwmon/hwmon3/curr1_input": "1024\n",
        "sys/class/thermal/thermal_zone0/temp": "48000\n",
        "dev/video0": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_complete_board_is_ready(orin):
    status, told = setup(orin)
    assert status == 0
    for found in (
        "board: NVIDIA Jetson Orin Nano",
        "power mode 2",
        "power sensors",
        "temperatures",
        "package onnxruntime",
    ):
        assert f"ok       {found}" in told
    assert "/dev/video0" in told
    assert told.splitlines()[-1].startswith("ready: ")


def test_a_laptop_is_ready_without_what_only_a_board_has(tmp_path):
    status, told = setup(tmp_path)
    assert status == 0
    for absent in ("a power mode", "power sensors", "temperatures", "a camera"):
        assert f"without  {absent}" in told


@pytest.mark.parametrize("version", [None, "3.8"])
def test_without_a_new_enough_python_it_says_how_to_get_one(tmp_path, version):
    python = tmp_path / "python3"
    if version is not None:
        python.write_text(f"#!/bin/sh\necho {version}\nexit 1\n")
        python.chmod(0o755)
    status, told = setup(tmp_path, python=str(python))
    assert status == 1
    assert "missing  Python 3.11 or newer" in told
    assert told.splitlines()[-1] == "the script cannot run yet"


def test_the_unit_starts_the_script_with_options_that_it_has():
    unit = configparser.ConfigParser(strict=True, interpolation=None)
    unit.optionxform = str
    unit.read_string(UNIT.read_text())
    command = shlex.split(unit["Service"]["ExecStart"])
    assert command[1] == "jetson_demo/run_demo.py"
    [example] = [line for line in UNIT.read_text().splitlines() if "ARGUMENTS=" in line]
    arguments = [*command[2:-1], *shlex.split(example.partition("ARGUMENTS=")[2])]
    assert command[-1] == "$ARGUMENTS"
    assert run_demo.make_context("run_demo.py", [*arguments, "--state", "."]).params["live"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_takes_the_unit():
    done = subprocess.run(["systemd-analyze", "verify", UNIT], capture_output=True, text=True, timeout=60)
    assert "Unknown" not in done.stderr
