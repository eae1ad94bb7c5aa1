"""The settings of a runtime as data: to make the same one in another process."""

from __future__ import annotations

import msgspec

from device_sdk.runtimes import USUAL, runtime_named


class RuntimeSettings(msgspec.Struct, frozen=True):
    """The arguments of ``make_runtime``."""

    name: str = USUAL
    threads: int = 1
    provider: str | None = None
    lean: bool = False
    spin_us: int = 0
    cache_folder: str | None = None

    @property
    def on_processor(self) -> bool:
        """True if it runs on the processor alone: no engines are built, no address space is reserved for a device."""
        return self.provider in (None, *runtime_named(self.name).providers)
