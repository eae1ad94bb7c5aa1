"""From a bare environment to a first answer: seconds, and bytes on disk.

``python -m release.first_answer pathweave-*.whl`` makes a virtual environment, installs the wheel alone from the index
that pip is set to, nothing from pip's cache, and answers an image with the reference bundle. It prints one JSON object
and exits with status 1 above a limit, 3 where no package index can be reached.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

BUNDLE = Path(__file__).parents[1] / "tests" / "contract" / "bundle"
MOST_SECONDS, MOST_BYTES = 120.0, 200_000_000
ABOVE, NO_INDEX = 1, 3
_LARGEST = 8
_OF_ENVIRONMENT = ("pip", "setuptools", "pkg_resources", "_distutils_hack", "distutils-precedence", "__pycache__")
_UNREACHABLE = ("Could not find a version", "NewConnectionError", "No matching distribution", "Max retries exceeded")
_ANSWER = """
import sys
import numpy as np
import pathweave

with pathweave.open(sys.argv[1], state_folder=sys.argv[2]) as model:
    channels, height, width = model.bundle.supernet.cut_points[0].tensors[0].shape
    image = np.random.default_rng(0).integers(0, 256, (height, width, channels), dtype=np.uint8)
    print(model(image).labels[0])
assert "torch" not in sys.modules
"""


@dataclass(frozen=True)
class FirstAnswer:
    """``seconds`` from an empty folder to ``answer``, a class.

    ``installed_bytes``: files of the wheel and of all that it needs; ``bytecode_bytes``: what pip compiled beside them
    (``pip install --no-compile`` leaves that out), ``environment_bytes``: all, with pip and setuptools themselves.
    ``packages``: installed bytes of the largest, by name.
    """

    answer: str
    seconds: float
    environment_s: float
    install_s: float
    answer_s: float
    installed_bytes: int
    bytecode_bytes: int
    environment_bytes: int
    packages: dict[str, int]


class NoIndexError(Exception):
    """pip reaches no package index."""


def first_answer(wheel: Path, folder: Path, *, bundle: Path = BUNDLE, cached: bool = False) -> FirstAnswer:
    """Install ``wheel`` into a new environment in ``folder``, which is empty, and have it answer.

    ``cached``: pip may take what it downloaded before.

    Raises:
        NoIndexError: nothing can be installed here.
        RuntimeError: a step failed; the message ends with what it printed.
    """
    started = time.monotonic()
    _run([sys.executable, "-m", "venv", str(folder / "venv")])
    made = time.monotonic()
    python = folder / "venv" / "bin" / "python"
    options = ["--quiet", "--disable-pip-version-check", *([] if cached else ["--no-cache-dir"])]
    _run([str(python), "-m", "pip", "install", *options, str(wheel.resolve())])
    installed = time.monotonic()
    answer = _run([str(python), "-c", _ANSWER, str(bundle), str(folder / "state")], folder=folder).strip()
    ended = time.monotonic()
    packages = _packages(next((folder / "venv" / "lib").glob("python*/site-packages")))
    return FirstAnswer(
        answer=answer,
        seconds=round(ended - started, 1),
        environment_s=round(made - started, 1),
        install_s=round(installed - made, 1),
        answer_s=round(ended - installed, 1),
        installed_bytes=sum(files for files, _ in packages.values()),
        bytecode_bytes=sum(bytecode for _, bytecode in packages.values()),
        environment_bytes=sum(_bytes_of(folder / "venv")),
        packages=dict(sorted(((name, files) for name, (files, _) in packages.items()), key=_by_size)[:_LARGEST]),
    )


def above_limits(found: FirstAnswer) -> list[str]:
    """A sentence for each limit that is not kept."""
    said = []
    if found.seconds > MOST_SECONDS:
        said.append(f"the first answer took {found.seconds:.0f} s; {MOST_SECONDS:.0f} s at most")
    if found.installed_bytes > MOST_BYTES:
        said.append(f"{found.installed_bytes / 1e6:.0f} MB are installed; {MOST_BYTES / 1e6:.0f} MB at most")
    return said


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m release.first_answer", description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--cached", action="store_true", help="let pip use its cache: not for measuring")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = first_answer(options.wheel, Path(folder), cached=options.cached)
        except NoIndexError as error:
            print(f"no package index can be reached: {error}", file=sys.stderr)
            return NO_INDEX
    print(json.dumps(asdict(found), indent=2))
    above = above_limits(found)
    for line in above:
        print(line, file=sys.stderr)
    return ABOVE if above else 0


def _run(command: list[str], *, folder: Path | None = None) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=10 * MOST_SECONDS)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()[-3:]
        error = NoIndexError if any(sign in done.stderr for sign in _UNREACHABLE) else RuntimeError
        raise error(" / ".join(said))
    return done.stdout


def _bytes_of(path: Path) -> tuple[int, int]:
    """Bytes of the files at ``path``, and of those that are bytecode."""
    files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file() and not one.is_symlink()]
    compiled = sum(one.stat().st_size for one in files if one.suffix == ".pyc")
    return sum(one.stat().st_size for one in files) - compiled, compiled


def _packages(folder: Path) -> dict[str, tuple[int, int]]:
    """``_bytes_of`` everything in site-packages that is not the environment's own."""
    found = (path for path in folder.iterdir() if not path.name.startswith(_OF_ENVIRONMENT))
    return {path.name: _bytes_of(path) for path in found}


def _by_size(item: tuple[str, int]) -> int:
    return -item[1]


if __name__ == "__main__":
    sys.exit(main())
