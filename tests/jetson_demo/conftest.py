"""The tiny bundle of the SDK's tests, and photos of many sizes for it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from PIL import Image

from device_sdk.signing import signatures
from pathweave import AdaptiveModel
from tests.device_sdk.tiny_bundle import draw_images, write_tiny_bundle

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "jetson_demo" / "run_demo.py"
SIZES = ((20, 20), (31, 45), (64, 48), (25, 20))  # width, height


@dataclass(frozen=True)
class Tiny:
    """The tiny bundle, with a manifest that has images of other sizes resized; who signed it, and who did not."""

    folder: Path
    public_key: Path
    foreign_key: Path


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """The tiny bundle; never alter it."""
    pytest.importorskip("onnx", reason="needs the extra: pip install 'pathweave[dev]'")
    folder = tmp_path_factory.mktemp("tiny")
    (private, public), (_, foreign) = signatures.new_key_pair(), signatures.new_key_pair()
    for name, data in (("key", private), ("key.pub", public), ("foreign.pub", foreign)):
        (folder / name).write_bytes(data)
    bundle = folder / "bundle"
    write_tiny_bundle(bundle, folder / "key")
    shutil.copytree(bundle, folder / "unresized")
    manifest = json.loads((bundle / "manifest.json").read_bytes())
    manifest["preprocessing"]["resize"] = [20, 20]
    data = json.dumps(manifest).encode()
    (bundle / "manifest.json").write_bytes(data)
    (bundle / "manifest.sig").write_bytes(signatures.sign(data, private_key=folder / "key"))
    return Tiny(bundle, folder / "key.pub", folder / "foreign.pub")


@pytest.fixture(scope="session")
def tiny_as_it_was(tiny: Tiny) -> Path:
    """The tiny bundle without resizing: images of another size than 20×20 are refused."""
    return tiny.folder.with_name("unresized")


def _write_images(folder: Path, *, count: int, seed: int) -> None:
    """Images of several sizes, a folder for each class."""
    images, labels = draw_images(count, seed=seed)
    for number, (pixels, label) in enumerate(zip(images, labels, strict=True)):
        path = folder / ("blue", "green", "red")[label] / f"{number:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).resize(SIZES[number % len(SIZES)]).save(path)


@pytest.fixture(scope="session")
def photos(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 40 images in folders; never alter it."""
    folder = tmp_path_factory.mktemp("photos")
    _write_images(folder, count=40, seed=2)
    return folder


@pytest.fixture
def own_photos(tiny: Tiny, tmp_path: Path) -> Path:
    """A folder of 12 images that a test may add to."""
    _write_images(tmp_path / "photos", count=12, seed=4)
    return tmp_path / "photos"


@pytest.fixture(scope="session")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for state that all runs share, so that only the first one profiles."""
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="session")
def model(tiny: Tiny, state: Path) -> Iterator[AdaptiveModel]:
    """The tiny bundle, opened; only for tests that do not adapt it."""
    with AdaptiveModel.open(tiny.folder, state_folder=state) as opened:
        yield opened


@pytest.fixture(scope="session")
def arguments(tiny: Tiny, photos: Path, state: Path) -> Callable[..., list[str]]:
    """The script's arguments for a budget that anything fits: ``arguments("--json", source=…, bundle=…)``."""

    def build(*further: str, source: Path = photos, bundle: Path | str = tiny.folder) -> list[str]:
        given = ["--source", f"folder:{source}", "--bundle", str(bundle), "--state", str(state), *further]
        return given if any(option.startswith("--latency") for option in further) else [*given, "--latency-ms", "500"]

    return build


@pytest.fixture(scope="session")
def start() -> Callable[..., subprocess.Popen[str]]:
    """Starts the real script in a process of its own, without a terminal unless it is given one."""

    def run(arguments: list[str], *, folder: Path = ROOT, **streams: object) -> subprocess.Popen[str]:
        environment = {name: value for name, value in os.environ.items() if name not in ("CI", "PYTHONPATH")}
        environment |= {"OMP_NUM_THREADS": "1", "TERM": "xterm"}
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
        command = [sys.executable, str(SCRIPT), *arguments]
        return subprocess.Popen(command, cwd=folder, env=environment, text=True, **streams)

    return run
