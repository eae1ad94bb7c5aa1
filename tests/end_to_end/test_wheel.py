"""The wheel as it is installed: nothing but names that begin with ``pathweave``, and all of it works."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from device_sdk.signing import signatures
from setup import renamed
from tests.device_sdk.tiny_bundle import draw_images, write_tiny_bundle

ROOT = Path(__file__).parents[2]
_USE = """
import sys


class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("device_sdk", "packager", "server"):
            raise ImportError(f"{name} is a name of the checkout")


sys.meta_path.insert(0, Hidden())
import numpy as np
import pathweave
from pathweave.cli import COMMANDS, load_command, main

assert all(load_command(name) for name in COMMANDS)
with pathweave.open(sys.argv[1], state_folder=sys.argv[2]) as model:
    images = np.load(sys.argv[3])
    found = model.adapt(images, pathweave.Goal(latency_ratio=0.9))
    print(type(found).__module__, len(model(images).labels))
sys.exit(main(["inspect", sys.argv[1]]))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The contents of the wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True
    ).stdout.decode()
    kept = ("device_sdk/", "packager/", "server/", "pathweave/", "setup.py", "pyproject.toml", "README.md", "LICENSE")
    for name in filter(None, listed.split("\0")):
        if name.startswith(kept) and (ROOT / name).exists():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder), "."]
    subprocess.run(command, cwd=source, check=True, timeout=240)
    [wheel] = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "installed")
    return folder / "installed"


@pytest.mark.slow
def test_only_names_that_begin_with_pathweave_are_installed(installed: Path) -> None:
    assert all(path.name.startswith("pathweave") for path in installed.iterdir())
    assert (installed / "pathweave-0.1.0.dist-info" / "top_level.txt").read_text() == "pathweave\n"
    assert list((installed / "pathweave" / "server").rglob("*.html"))


@pytest.mark.slow
def test_it_opens_adapts_and_inspects_without_the_checkouts_names(installed: Path, tmp_path: Path) -> None:
    import numpy as np

    private, _ = signatures.new_key_pair()
    (tmp_path / "key").write_bytes(private)
    write_tiny_bundle(tmp_path / "bundle", tmp_path / "key")
    np.save(tmp_path / "images.npy", draw_images(30, seed=1)[0])
    arguments = [str(tmp_path / name) for name in ("bundle", "state", "images.npy")]
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run(
        [sys.executable, "-c", _USE, *arguments], cwd=tmp_path, env=environment, capture_output=True, timeout=240
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode().startswith("pathweave.device_sdk.policies.found 30")


def test_imports_and_strings_that_name_modules_are_renamed_and_file_names_are_not() -> None:
    source = 'from device_sdk.errors import UsageError\nNAMES = ("server.commands:serve", "server.log", "device_sdk")\n'
    assert renamed(source, ROOT) == (
        "from pathweave.device_sdk.errors import UsageError\n"
        'NAMES = ("pathweave.server.commands:serve", "server.log", "device_sdk")\n'
    )
    with pytest.raises(SyntaxError, match="is not renamed"):
        renamed("import packager.commands\n", ROOT)
