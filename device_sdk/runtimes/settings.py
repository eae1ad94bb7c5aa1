"""The settings of a runtime as data: to make the same one in another process."""

from __future__ import annotations

import msgspec

_PLAIN_PROVIDERS = (None, "CPUExecutionProvider", "XnnpackBackend")


class RuntimeSettings(msgspec.Struct, frozen=True):
    """The arguments of ``make_runtime``."""

    name: str = "onnxruntime"
    threads: int = 1
    provider: str | None = None
    lean: bool = False
    spin_us: int = 0
    cache_folder: str | None = None

    @property
    def on_processor(self) -> bool:
        """True if it runs on the processor alone: no engines are built, no address space is reserved for a device."""
        return self.provider in _PLAIN_PROVIDERS
