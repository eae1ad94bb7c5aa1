"""Reads lines of NVIDIA's ``tegrastats``: memory, temperatures, power rails.

A line of JetPack 6: ``… RAM 3162/7620MB (lfb 5x4MB) … cpu@48.5C … tj@49C VDD_IN 5120mW/5080mW``; JetPack 4 writes
``CPU@42C`` and ``POM_5V_IN 3245/3245`` without units.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_RAM = re.compile(r"\bRAM (\d+)/(\d+)MB\b")
_TEMPERATURE = re.compile(r"\b([A-Za-z][\w-]*)@(-?\d+(?:\.\d+)?)C\b")
_RAIL = re.compile(r"\b((?:VDD|VIN|POM)(?:_\w+)?) (\d+)(?:mW)?/\d+(?:mW)?")
_OFF_C = -40.0  # of sensors of parts that are switched off: -256


@dataclass(frozen=True)
class BoardLine:
    """One line. Memory in megabytes, temperatures in °C by sensor, power now in milliwatts by rail."""

    used_mb: int | None
    total_mb: int | None
    temperatures_c: Mapping[str, float]
    rails_mw: Mapping[str, int]

    @property
    def hottest_c(self) -> float | None:
        """The highest temperature; None where no sensor is named."""
        return max(self.temperatures_c.values(), default=None)


def parse(line: str) -> BoardLine:
    """Readings of one line; those that it lacks are None or missing."""
    ram = _RAM.search(line)
    temperatures_c = {name.lower(): float(value) for name, value in _TEMPERATURE.findall(line)}
    return BoardLine(
        used_mb=None if ram is None else int(ram[1]),
        total_mb=None if ram is None else int(ram[2]),
        temperatures_c={name: value for name, value in temperatures_c.items() if value > _OFF_C},
        rails_mw={name: int(value) for name, value in _RAIL.findall(line)},
    )
