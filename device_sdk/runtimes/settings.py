"""The settings of a runtime as data: to make the same one in another process."""

from __future__ import annotations

from pathlib import Path

import msgspec

from device_sdk.bundles.runnable import RunsOn
from device_sdk.runtimes import USUAL, make_runtime, runs_on, runtime_named
from device_sdk.runtimes.port import Runtime
from device_sdk.supernet.home import PROVIDERS, Home


class RuntimeSettings(msgspec.Struct, frozen=True):
    """The arguments of ``make_runtime``."""

    name: str = USUAL
    threads: int = 1
    provider: str | None = None
    lean: bool = False
    spin_us: int = 0
    cache_folder: str | None = None
    homes: tuple[Home, ...] = ()
    provider_options: dict[str, dict[str, str]] = {}

    @property
    def on_processor(self) -> bool:
        """True if it runs on the processor alone: no engines are built, no address space is reserved for a device."""
        if self.homes:
            return all(home.on_processor for home in self.homes)
        return self.provider in (None, *runtime_named(self.name).providers)

    def make(self) -> Runtime:
        """The runtime of these settings. Raises as ``make_runtime``."""
        return make_runtime(
            self.name,
            threads=self.threads,
            provider=self.provider,
            lean=self.lean,
            spin_us=self.spin_us,
            cache_folder=None if self.cache_folder is None else Path(self.cache_folder),
            homes=self.homes,
            provider_options=self.provider_options,
        )

    @property
    def first(self) -> RuntimeSettings:
        """The same with the first home alone."""
        return self.at(self.homes[0]) if self.homes else self

    def at(self, home: Home) -> RuntimeSettings:
        """The same with one home alone."""
        provider = PROVIDERS[home.provider]
        return msgspec.structs.replace(self, threads=home.threads, provider=provider, homes=())

    @property
    def accepts(self) -> RunsOn:
        """A filter for the renditions that run at one of the homes."""
        return runs_on(self.name, self.provider, homes=self.homes)
