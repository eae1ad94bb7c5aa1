"""The energy port: what a device draws, and what a piece of work took. Adapters stand beside this file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Energy:
    """What a piece of work took in ``seconds``. ``energy_mj`` is None where nothing could be read, never zero.

    ``source`` says where the figure comes from and whether it was measured; no figure is shown without it.
    """

    energy_mj: float | None
    seconds: float
    source: str

    @property
    def mean_w(self) -> float | None:
        """The mean power during the work; None where unknown."""
        return None if self.energy_mj is None or not self.seconds > 0 else self.energy_mj / 1e3 / self.seconds


class EnergyMeter(Protocol):
    """One way to know what this device draws. It only reads, and may be asked from several threads at once."""

    @property
    def source(self) -> str:
        """What it reads, for a person: ``sysfs rails VDD_IN``, or ``model: 10 W × busy time``."""

    def power_w(self) -> float | None:
        """What the device draws now; None where that cannot be told."""

    def measure(self, work: Callable[[], object]) -> Energy:
        """Do ``work`` and tell what the device drew meanwhile. What ``work`` raises goes through."""
