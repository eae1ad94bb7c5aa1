"""What several tests need: one run of the demo, as a person starts it, and the compiled Kotlin core."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ANDROID = ROOT / "android_demo"


@pytest.fixture(scope="session")
def demo_folder(once: Callable[[str, Callable[[Path], None]], Path]) -> Path:
    """The demo's work folder; beside it lie ``demo-report.html`` and ``demo.json``, what it printed."""
    return once("demo", _run_demo) / "demo"


def _run_demo(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pathweave", "demo", "--work", "demo", "--json"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=580,
    )
    assert done.returncode == 0, done.stderr
    (folder / "demo.json").write_text(done.stdout)


@pytest.fixture(scope="session")
def jvm() -> None:
    """Skips where there is no JDK or no Maven; in CI they must be there."""
    missing = [tool for tool in ("java", "javac", "mvn") if shutil.which(tool) is None]
    if missing:
        if os.environ.get("PATHWEAVE_REQUIRE_JVM") == "1":
            pytest.fail(f"CI needs {', '.join(missing)}")
        pytest.skip(f"needs a JDK and Maven; there is no {', '.join(missing)}")


@pytest.fixture(scope="session")
def classpath(jvm: None, once: Callable[[str, Callable[[Path], None]], Path]) -> str:
    """The compiled Kotlin core and what it needs."""
    command = ["mvn", "-q", "-B", "-f", str(ANDROID), "--projects", "core", "process-classes"]
    once("kotlin", lambda _: subprocess.run(command, check=True, timeout=280) and None)
    target = ANDROID / "core" / "target"
    return f"{target / 'classes'}{os.pathsep}{(target / 'classpath.txt').read_text().strip()}"
