"""The Python of the device's guides runs in order, on a device and a server with the tiny bundle."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from device_sdk.signing import signatures
from pathweave.server_process import running_server
from tests.device_sdk.tiny_bundle import SIDE, draw_images, write_tiny_bundle

GUIDES = Path(__file__).parents[2] / "docs" / "guide"
OPEN = 'import pathweave\nmodel = pathweave.open("bundle/", trust="me.pub")\n'


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server with the tiny bundle, which lies beside its key in the working folder too."""
    pytest.importorskip("onnx", reason="needs the extra: pip install 'pathweave[dev]'")
    private, public = signatures.new_key_pair()
    (tmp_path / "key").write_bytes(private)
    for name in ("me.pub", "key.pub", "digits.pub"):
        (tmp_path / name).write_bytes(public)
    write_tiny_bundle(tmp_path / "bundle", tmp_path / "key")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATHWEAVE_STATE", str(tmp_path / "state"))
    with running_server(tmp_path / "bundle", data=tmp_path / "data") as url:
        yield url


def here(block: str, url: str) -> str:
    """``block`` with the guide's names replaced by those of the tiny bundle and its server, and generous limits."""
    block = re.sub(r"bundles/(digits|NAME)\b", "bundles/tiny", block)
    block = re.sub(r"https://(models\.example\.org|server)", url, block).replace('"digits:', '"tiny:')
    block = re.sub(r"\b(latency_ms|deadline_ms)=\d+", r"\1=1000", block)
    block = re.sub(r"\b(memory_mb|memory_cap_mb|storage_mb)=\d\d?\b", r"\1=400", block).replace(
        'token="…"', "token=None"
    )
    block = block.replace("    ...\n", "    running.wait()\n")  # a busy machine may have no answer yet
    return block.replace("x5-conv", "x2-pooled").replace('["x8-conv", "x21-conv"]', '["x2-pooled"]')


@pytest.mark.parametrize("guide", ["adapt_on_a_device", "head_only", "live_update", "memory"])
def test_the_python_of_a_guide_runs(guide: str, url: str) -> None:
    images, labels = draw_images(60, seed=2)
    names: dict[str, object] = {"images": images, "photographs": images, "samples": images, "labels": labels}
    names |= {"image": images[0], "batch": images[:4], "tensor": np.zeros((1, 3, SIDE, SIDE), np.float32)}
    text = (GUIDES / f"{guide}.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    for number, block in enumerate(blocks):
        exec(compile(here(block, url), f"block {number} of {guide}", "exec"), names)
        if "with pathweave.open" in block:  # that model is closed; the guide goes on with one like it
            exec(OPEN, names)
    names["model"].close()
