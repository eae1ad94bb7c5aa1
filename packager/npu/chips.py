"""Chips whose NPU (Qualcomm's HTP) a rendition can be compiled for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from device_sdk.errors import UsageError


@dataclass(frozen=True)
class Chip:
    """A chip by its name here, the version of its HTP, and its ``soc_model`` in Qualcomm's numbering."""

    name: str
    htp_arch: int
    soc_model: int


# One typical chip for each version of the HTP, and one of the oldest whose HTP has no half precision.
CHIPS: dict[str, Chip] = {
    chip.name: chip
    for chip in (
        Chip("qcs6490", 68, 35),
        Chip("v68", 68, 30),  # Snapdragon 888 (SM8350)
        Chip("v69", 69, 36),  # Snapdragon 8 Gen 1 (SM8450)
        Chip("v73", 73, 43),  # Snapdragon 8 Gen 2 (SM8550)
        Chip("v75", 75, 57),  # Snapdragon 8 Gen 3 (SM8650)
        Chip("v79", 79, 69),  # Snapdragon 8 Elite (SM8750)
        Chip("v81", 81, 87),  # Snapdragon 8 Elite Gen 5 (SM8850)
    )
}
DEFAULT_CHIPS = ("v73",)


def chips_named(names: Iterable[str]) -> tuple[Chip, ...]:
    """The chips of these names, each once, in the order given.

    Raises:
        UsageError: there is no chip of a name.
    """
    found = []
    for name in dict.fromkeys(names):
        if name not in CHIPS:
            raise UsageError(f"there is no chip {name[:80]!r}", hint="known: " + ", ".join(CHIPS))
        found.append(CHIPS[name])
    return tuple(found)
