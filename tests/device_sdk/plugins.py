"""Plug-ins of providers that misbehave, as packages on the path: what a broken driver or wheel does."""

from __future__ import annotations

from pathlib import Path

CRASHES = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n"
HANGS = "import time\nwhile True: time.sleep(1)\n"
NO_LIBRARY = "def get_library_path(): return '/nowhere/libprovider.so'\n"


def install_plugin(
    folder: Path, source: str, *, package: str = "onnxruntime_ep_openvino", version: str = "9.9"
) -> None:
    """Write the package with ``source`` and its metadata below ``folder``, which has to be on the path."""
    (folder / package).mkdir(parents=True)
    (folder / package / "__init__.py").write_text(source)
    name = package.replace("_", "-")
    metadata = folder / f"{package}-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
