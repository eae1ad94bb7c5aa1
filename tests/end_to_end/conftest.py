"""What several tests need: one run of the demo, as a person starts it, and the compiled Kotlin core."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ANDROID = ROOT / "android_demo"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The demo measures latencies: whichever test has it run first, nothing runs beside it."""
    for item in items:
        if "demo_folder" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.alone)


@pytest.fixture(scope="session")
def demo_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's work folder; beside it lie ``demo-report.html`` and ``demo.json``, what it printed."""
    folder = tmp_path_factory.mktemp("demo")
    done = subprocess.run(
        [sys.executable, "-m", "pathweave", "demo", "--work", "demo", "--json"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    (folder / "demo.json").write_text(done.stdout)
    return folder / "demo"


@pytest.fixture(scope="session")
def jvm() -> None:
    """Skips where there is no JDK or no Maven; in CI they must be there."""
    missing = [tool for tool in ("java", "javac", "mvn") if shutil.which(tool) is None]
    if missing:
        if os.environ.get("PATHWEAVE_REQUIRE_JVM") == "1":
            pytest.fail(f"CI needs {', '.join(missing)}")
        pytest.skip(f"needs a JDK and Maven; there is no {', '.join(missing)}")


@pytest.fixture(scope="session")
def classpath(jvm: None) -> str:
    """The compiled Kotlin core and what it needs."""
    subprocess.run(
        ["mvn", "-q", "-B", "-f", str(ANDROID), "--projects", "core", "process-classes"], check=True, timeout=280
    )
    target = ANDROID / "core" / "target"
    return f"{target / 'classes'}{os.pathsep}{(target / 'classpath.txt').read_text().strip()}"
