from __future__ import annotations

import os

import pytest

from device_sdk.machine import usable_cores
from device_sdk.profiling.timing import Conditions, current_conditions, device_identity, driver, power_mode

NVPMODEL_CONF = """
< PARAM TYPE=FILE NAME=CPU_ONLINE >
< POWER_MODEL ID=0 NAME=MAXN >
CPU_ONLINE CORE_1 1
< POWER_MODEL ID=2 NAME=MODE_15W_6CORE >
< PM_CONFIG DEFAULT=2 >
"""


@pytest.fixture
def system(tmp_path):
    """Writes files of a system, by their paths."""

    def write(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write


def governors(*names):
    return {f"sys/devices/system/cpu/cpu{n}/cpufreq/scaling_governor": f"{name}\n" for n, name in enumerate(names)}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ((), "unknown"),
        (("schedutil", "schedutil"), "governor schedutil"),
        (("powersave", "performance"), "governor performance+powersave"),
    ],
)
def test_the_governors_of_all_processors_are_the_power_mode(system, names, expected):
    assert power_mode(system(governors(*names))) == expected


@pytest.mark.parametrize("status", ["var/lib/nvpmodel/status", "etc/nvpmodel/nvpmodel.status"])
def test_a_jetsons_mode_is_named_as_its_configuration_names_it(system, status):
    files = {status: "pmode:0002 fmode:quiet\n", "etc/nvpmodel.conf": NVPMODEL_CONF, **governors("schedutil")}
    assert power_mode(system(files)) == "nvpmodel MODE_15W_6CORE, governor schedutil"


def test_a_jetsons_mode_without_a_name_keeps_its_number(system):
    assert power_mode(system({"var/lib/nvpmodel/status": "pmode:0000"})) == "nvpmodel 0"
    assert power_mode(system({"var/lib/nvpmodel/status": "broken"})) == "unknown"


def test_what_is_no_text_counts_as_unknown(tmp_path, system):
    root = system(governors("x"))
    (root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").write_bytes(b"\xff\xfe")
    assert power_mode(root) == "unknown"


def test_the_driver_is_told_where_there_is_one(system, tmp_path):
    assert driver(tmp_path) == "none"
    assert driver(system({"sys/module/nvidia/version": "550.54.14\n"})) == "nvidia 550.54.14"


def test_a_board_without_processor_names_is_told_by_its_own(system):
    root = system({"proc/device-tree/model": "NVIDIA Jetson Orin Nano\0", "proc/cpuinfo": "processor : 0\n"})
    assert device_identity(root).startswith("NVIDIA Jetson Orin Nano, ")


def test_a_system_that_shows_nothing_is_unknown_and_no_error(tmp_path):
    found = current_conditions(tmp_path / "missing")
    assert found == Conditions(device_identity(tmp_path), "unknown", "none")
    assert found.device.startswith("unknown processor")


def test_the_identity_is_stable_and_names_no_host():
    assert device_identity() == device_identity()
    assert f"{usable_cores()} cores" in device_identity()
    if len(os.uname().nodename) > 3:
        assert os.uname().nodename not in device_identity()
