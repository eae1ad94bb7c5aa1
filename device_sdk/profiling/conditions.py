"""The conditions of a measurement: device, power mode, driver. Contains no host name."""

from __future__ import annotations

import contextlib
import platform
import re
from pathlib import Path

import msgspec

from device_sdk.machine import usable_cores

UNKNOWN = "unknown"
_ROOT = Path("/")

# JetPack stores the current mode in one of these, as ``pmode:0002 fmode:quiet``.
_NVPMODEL_STATUS = ("var/lib/nvpmodel/status", "etc/nvpmodel/nvpmodel.status")
_NVPMODEL_NAMES = "etc/nvpmodel.conf"


class Conditions(msgspec.Struct, frozen=True):
    """Conditions that latencies depend on besides bundle, runtime and batch. A profile is valid for one set of them."""

    device: str
    power_mode: str
    driver: str


def current_conditions(root: Path = _ROOT) -> Conditions:
    """The conditions now, read below ``root``."""
    return Conditions(device_identity(root), power_mode(root), driver(root))


def device_identity(root: Path = _ROOT) -> str:
    """Processor or board, number of usable cores and system. Contains no host or user name."""
    found = re.search(r"model name\s*:\s*(.+)", _text(root / "proc/cpuinfo"))
    board = _text(root / "proc/device-tree/model").strip("\0 \n")  # Jetson and Raspberry Pi: cpuinfo has no model name
    model = found[1].strip() if found else board or "unknown processor"
    return f"{model}, {usable_cores(root)} cores, {platform.system()} {platform.machine()}"


def power_mode(root: Path = _ROOT) -> str:
    """The power mode: a Jetson's nvpmodel and the governors of the processors, or ``unknown``.

    For example ``nvpmodel 15W, governor schedutil``.
    """
    return ", ".join(part for part in (_nvpmodel(root), _governors(root)) if part) or UNKNOWN


def driver(root: Path = _ROOT) -> str:
    """The version of the graphics driver, for example ``nvidia 550.54.14``, or ``none``."""
    version = _text(root / "sys/module/nvidia/version").strip()
    return f"nvidia {version}" if version else "none"


def _nvpmodel(root: Path) -> str:
    status = next(filter(None, (_text(root / name) for name in _NVPMODEL_STATUS)), "")
    found = re.search(r"pmode:0*(\d+)", status)
    if found is None:
        return ""
    named = re.search(rf"POWER_MODEL\s+ID={found[1]}\s+NAME=(\S+)", _text(root / _NVPMODEL_NAMES))
    return f"nvpmodel {named[1] if named else found[1]}"


def _governors(root: Path) -> str:
    files = (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
    found = sorted({text for file in files if (text := _text(file).strip())})
    return "governor " + "+".join(found) if found else ""


def _text(path: Path) -> str:
    with contextlib.suppress(OSError, ValueError):
        return path.read_text()
    return ""
