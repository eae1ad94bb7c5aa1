"""Jobs on a server whose packager is a fake: the same command line, done in no time."""

from __future__ import annotations

import importlib.util
import json
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PATIENCE_S = 20.0
FAKE = Path(__file__).parent / "fake_packager.py"


def eventually(value: Callable[[], Any], *, patience_s: float = PATIENCE_S) -> Any:
    """The first true thing that ``value`` returns."""
    end = time.monotonic() + patience_s
    while not (found := value()):
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.01)
    return found


@pytest.fixture(name="eventually", scope="session")
def eventually_fixture() -> Callable[..., Any]:
    """Waits until a function returns something true, and returns that."""
    return eventually


@pytest.fixture(scope="session")
def job_request() -> Callable[..., dict[str, Any]]:
    """Makes requests: ``job_request("makes", name=…)``; the model says what the fake packager does."""

    def build(does: str = "makes", **changes: Any) -> dict[str, Any]:
        request = {"name": "digits", "model": f"zoo:{does}", "data": "digits#train", "validation": "digits#search"}
        return {**request, "recipe": {"steps": 5}, **changes}

    return build


@pytest.fixture
def fake_packager(tiny, tmp_path) -> tuple[str, ...]:
    """The command of the fake packager. What waits goes on when there is a file ``tmp_path / "made/go"``."""
    tiny.copy_to(tmp_path / "made" / "tiny")
    return (sys.executable, str(FAKE), str(tmp_path / "made" / "tiny"))


@pytest.fixture
def let_go(tmp_path) -> Callable[[], None]:
    """Lets what waits in the fake packager go on."""
    return lambda: (tmp_path / "made" / "go").touch()


@pytest.fixture
def bundles(tmp_path) -> Path:
    """An empty folder to serve."""
    (tmp_path / "bundles").mkdir()
    return tmp_path / "bundles"


@pytest.fixture
def packaging_server(serve, bundles, fake_packager) -> Any:
    """A server that takes jobs for the fake packager."""
    need_packager()
    return serve(bundles, package_command=fake_packager)


def need_packager() -> None:
    """Skip where the server would refuse jobs: it looks whether the packager could run."""
    for module in ("torch", "onnx", "onnxscript", "safetensors"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"needs {module}: pip install 'pathweave[packager]'")


@pytest.fixture(scope="session")
def safetensors_bytes() -> Callable[..., bytes]:
    """A safetensors file by hand: ``safetensors_bytes({name: (dtype, shape, bytes)}, **changes to the header)``."""

    def build(tensors: dict[str, tuple[str, list[int], bytes]], **changes: Any) -> bytes:
        header, data = {}, b""
        for name, (dtype, shape, values) in tensors.items():
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
            data += values
        encoded = json.dumps(header | changes).encode()
        return struct.pack("<Q", len(encoded)) + encoded + data

    return build
