"""The SDK on a device that has nothing but its base dependencies."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

IMPORT_ALL_WITHOUT_EXTRAS = """
import importlib, pkgutil, sys

BLOCKED = {"torch", "torchvision", "timm", "flask", "sklearn", "onnx", "onnxscript", "packager", "server"}

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in BLOCKED:
            raise ImportError(f"{name} is not there on a device")

sys.meta_path.insert(0, Blocker())
import device_sdk
for module in pkgutil.walk_packages(device_sdk.__path__, "device_sdk."):
    importlib.import_module(module.name)
    print(module.name)
"""


def test_every_module_imports_without_torch_flask_sklearn_and_onnx() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL_WITHOUT_EXTRAS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    imported = set(done.stdout.split())
    files = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in (ROOT / "device_sdk").rglob("*.py")
        if path.name != "__init__.py"
    }
    assert files <= imported
