from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("importlinter", reason="import-linter is not installed")

ROOT = Path(__file__).parents[2]
PACKAGES = ("device_sdk", "packager", "server", "pathweave", "benchmarks")


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    script = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    return subprocess.run([sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, timeout=120)


def test_the_arrows_between_the_folders_are_kept() -> None:
    done = lint_imports(ROOT)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("package", "statement"),
    [
        ("device_sdk", "import torch"),
        ("device_sdk", "def late():\n    import flask"),
        ("device_sdk", "import packager"),
        ("packager", "import server"),
        ("server", "import packager"),
        ("packager", "import pathweave"),
        ("server", "import benchmarks"),
    ],
)
def test_a_forbidden_import_breaks_them(package: str, statement: str, tmp_path: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for name in PACKAGES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    (tmp_path / package / "offender.py").write_text(statement + "\n")
    done = lint_imports(tmp_path)
    assert done.returncode == 1, done.stdout
    assert f"{package}.offender" in done.stdout


def test_every_folder_with_code_is_a_package_that_gets_installed() -> None:
    for package in PACKAGES:
        folders = {module.parent for module in (ROOT / package).rglob("*.py")}
        assert folders, f"{package} has no modules"
        for folder in folders:
            assert (folder / "__init__.py").is_file(), f"{folder.relative_to(ROOT)} has no __init__.py"
