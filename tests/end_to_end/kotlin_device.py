"""A device that runs the Kotlin core in a JVM of its own, against a real server."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

CONTRACT = Path(__file__).parents[1] / "contract"
IMAGES, LATENCY_MS = 120, 1000


class Device:
    """Kotlin's device, with labelled images of its own: the class is the colour that is strongest.

    ``name``: under which servers know it, by default a random one. ``tags``: as in a header.
    """

    def __init__(self, classpath: str, folder: Path, *, name: str | None = None, tags: str | None = None) -> None:
        self._classpath, self.folder, self.state, self._tags = classpath, folder, folder / "state", tags
        self.state.mkdir(parents=True, exist_ok=True)
        if name is not None:
            (self.state / "device").write_text(name)
        images = np.random.default_rng(3).integers(0, 256, size=(IMAGES, 2, 2, 3), dtype=np.uint8)
        (folder / "images").write_bytes(images.tobytes())
        (folder / "labels").write_bytes(images.sum(axis=(1, 2)).argmax(axis=1).astype(np.uint8).tobytes())
        key = json.loads((CONTRACT / "vectors.json").read_bytes())["signature"]["public_key"]
        (folder / "key.pub").write_text(key)

    def begin(self, server: str, token: str | None, asks: int | None = None) -> subprocess.Popen[str]:
        """Open the bundle, adapt and send the log; with ``asks`` go on asking (DeviceCli.kt)."""
        files = [str(self.folder / name) for name in ("state", "key.pub", "images", "labels")]
        main = ["java", "-XX:TieredStopAtLevel=1", "-cp", self._classpath, "pathweave.sdk.commands.DeviceCliKt"]
        command = [*main, f"{server}/v1/bundles/reference", *files, str(LATENCY_MS)]
        command += [] if asks is None else [str(asks)]
        told = {"PATHWEAVE_TOKEN": token, "PATHWEAVE_TAGS": self._tags}
        environment = os.environ | {name: text for name, text in told.items() if text is not None}
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def start(self, server: str, token: str | None) -> subprocess.CompletedProcess[str]:
        """The same, to the end."""
        process = self.begin(server, token)
        out, errors = process.communicate(timeout=120)
        return subprocess.CompletedProcess(process.args, process.returncode, out, errors)

    def run(self, server: str, token: str | None) -> dict[str, Any]:
        """What it printed."""
        done = self.start(server, token)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found
