"""The energy port: a device's power, and the energy of a piece of work. Adapters are in this folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Energy:
    """Energy of a piece of work over ``seconds``. ``energy_mj`` is None, not zero, where nothing could be read.

    ``source`` states the origin of the figure and whether it was measured; show every figure with it.
    """

    energy_mj: float | None
    seconds: float
    source: str

    @property
    def mean_w(self) -> float | None:
        """Mean power during the work; None where unknown."""
        return None if self.energy_mj is None or not self.seconds > 0 else self.energy_mj / 1e3 / self.seconds


class EnergyMeter(Protocol):
    """Measures this device's power and energy. Read-only and thread-safe."""

    @property
    def source(self) -> str:
        """The origin of its figures, for display: ``sysfs rails VDD_IN``, or ``model: 10 W × busy time``."""

    def power_w(self) -> float | None:
        """The device's power now; None where unknown."""

    def measure(self, work: Callable[[], object]) -> Energy:
        """Run ``work`` and return the device's energy while it ran. Exceptions of ``work`` propagate."""
