"""Folders like the ones in which a Jetson's kernel shows its power sensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

BoardBuilder = Callable[..., Path]


def _write(folder: Path, files: Mapping[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text + "\n")


@pytest.fixture(scope="session")
def hwmon_board() -> BoardBuilder:
    """Adds a sensor as newer kernels show it: rails as name -> (millivolts, milliamperes)."""

    def build(sysfs: Path, number: int, rails: Mapping[str, tuple[int, int]], *, chip: str = "ina3221") -> Path:
        folder = sysfs / "class" / "hwmon" / f"hwmon{number}"
        _write(folder, {"name": chip, "in7_label": "sum of shunt voltages", "in7_input": "1", "curr7_input": "1"})
        for channel, (name, (millivolts, milliamperes)) in enumerate(rails.items(), start=1):
            inputs = {f"in{channel}_input": str(millivolts), f"curr{channel}_input": str(milliamperes)}
            _write(folder, {f"in{channel}_label": name, **inputs})
        return folder

    return build


@pytest.fixture(scope="session")
def iio_board() -> BoardBuilder:
    """Adds a sensor as JetPack 4 shows it: rails as name -> milliwatts."""

    def build(sysfs: Path, address: str, rails: Mapping[str, int]) -> Path:
        folder = sysfs / "bus" / "i2c" / "drivers" / "ina3221x" / address / "iio:device0"
        for channel, (name, milliwatts) in enumerate(rails.items()):
            _write(folder, {f"rail_name_{channel}": name, f"in_power{channel}_input": str(milliwatts)})
        return folder

    return build
