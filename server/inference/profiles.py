"""Latency profiles of bundles on the server, measured at the first request and stored."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec

from device_sdk.bundles.bundle import Bundle
from device_sdk.execution.workspace import Workspace
from device_sdk.files.atomic import write_atomically
from device_sdk.files.untrusted_json import decode_json
from device_sdk.profiling.profile import Profile, profile
from device_sdk.profiling.timing import Patience
from device_sdk.progress import SilentProgress
from device_sdk.runtimes import runs_on
from device_sdk.runtimes.port import Runtime

# Few rounds: a device waits for the reply, and compares it with a network time that is no more precise.
_PATIENCE = Patience(rounds=10, precision=0.05, limit_s=2.0)


class ServerProfiles:
    """Profiles by bundle, each a file in ``folder``. Thread-safe; measurements are serialised."""

    def __init__(self, runtime: Runtime, folder: Path) -> None:
        self._runtime = runtime
        self._folder = folder
        self._measuring = threading.Lock()  # concurrent measurements would disturb each other

    def of(self, bundle: Bundle) -> Profile:
        """The profile of ``bundle`` on this machine, with this runtime.

        Raises:
            BundleError, RuntimeFailedError: a block does not load or run.
            StorageError: it cannot be stored.
        """
        path = self._folder / f"{bundle.digest}.json"
        with self._measuring:
            stored = _read(path)
            if stored is not None and stored.valid_for(bundle, self._runtime):
                return stored
            runnable = bundle.runnable(runs_on())
            measured = profile(Workspace(runnable, self._runtime), progress=SilentProgress(), patience=_PATIENCE)
            write_atomically(path, msgspec.json.encode(measured) + b"\n")
            return measured


def _read(path: Path) -> Profile | None:
    try:
        return decode_json(path.read_bytes(), Profile)
    except (OSError, ValueError):
        return None
