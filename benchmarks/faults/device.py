"""A device in name: opens bundles of a server as the SDK does, without a runtime."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from device_sdk.bundles.bundle import Bundle
from device_sdk.delivery.store import BundleStore
from device_sdk.runtimes import runs_on
from device_sdk.runtimes.port import Runtime
from device_sdk.runtimes.settings import RuntimeSettings
from device_sdk.session.opening import UPDATE_DEADLINE_S, SelfTest, open_location


class NoRuntime:
    """A runtime in name, for devices that only open bundles."""

    identity = "none"


@dataclass(frozen=True)
class Device:
    """A device with its state in ``state``, which opens the bundle at ``url`` and trusts ``key``."""

    url: str
    state: Path
    key: Path

    @property
    def store(self) -> BundleStore:
        """Its store of bundles."""
        return BundleStore(self.state / "store")

    def open(
        self,
        *,
        update_deadline_s: float = UPDATE_DEADLINE_S,
        self_test: SelfTest = lambda bundle: None,
        **settings: Any,
    ) -> tuple[int, str]:
        """Version and source of what opens, all its blobs read and verified; the self-test is none, unless given.

        ``settings``: more of ``open_location``.
        """
        opened, delivered = open_location(
            self.url,
            trust=self.key,
            runtime=cast(Runtime, NoRuntime()),
            settings=RuntimeSettings(),
            accepts=runs_on("onnxruntime"),
            state_folder=self.state,
            self_test=self_test,
            update_deadline_s=update_deadline_s,
            **settings,
        )
        opened.verify()
        assert delivered is not None
        return opened.manifest.version, delivered.source

    def stored_version(self) -> int:
        """The last good version that is here, without asking the server; 0 if there is none."""
        stored = self.store.last_good_at(self.url)
        if stored is None:
            return 0
        Bundle.open(stored.folder, trust=self.key, blobs=self.store.blobs, accepts=runs_on("onnxruntime")).verify()
        return stored.version

    def left_behind(self) -> list[str]:
        """Temporary files, and bundles that no record refers to: what an interrupted update must not leave."""
        store = self.store
        found = list(store.partial.iterdir()) if store.partial.is_dir() else []
        found += list(self.state.rglob(".*.tmp"))
        for name in store.names():
            needed = store.digests_of(name)
            found += [path for path in (store.bundles / name).iterdir() if path.is_dir() and path.name not in needed]
        return [str(path.relative_to(self.state)) for path in found]
