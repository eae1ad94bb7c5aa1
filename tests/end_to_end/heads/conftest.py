"""The tiny bundle at a real server, and devices that hold a part of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from device_sdk.bundles.bundle import Bundle
from device_sdk.offload.remote_model import RemoteModel
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.signing import signatures
from device_sdk.supernet.plan import UNREACHABLE_CONFIDENCE, ExitChoice, Fallback, Plan, RemoteRef, Split
from pathweave.server_process import running_server
from tests.device_sdk.tiny_bundle import write_tiny_bundle

CUT = 3
HEAD_BLOCKS = ("o0", "o1", "o2")


@dataclass(frozen=True)
class Served:
    """``url`` of the server, the public key, and the folder of the bundle at the server."""

    url: str
    key: Path
    private_key: Path
    folder: Path

    @property
    def address(self) -> str:
        return f"{self.url}/v1/bundles/tiny"

    @property
    def bundle(self) -> Bundle:
        return Bundle.open(self.folder)

    def plan(self, fallback: Fallback = "abstain", *, position: int = CUT, threshold: float | None = None) -> Plan:
        """The full model, split at ``position``; with the exit at cut point 2 where that is the fallback."""
        bundle = self.bundle
        walk = list(bundle.supernet.walk(bundle.supernet.original))
        tail = tuple(edge for edge, block in walk if block.start >= position)
        threshold = UNREACHABLE_CONFIDENCE if threshold is None else threshold
        exits = (ExitChoice("x2-pooled", threshold),) if fallback == "exit" else ()
        split = Split(position, (8,), tail, RemoteRef("tiny:tail", bundle.digest), fallback)
        return Plan(bundle.supernet.original, exits=exits, split=split)

    def tails(self, url: str | None = None, *, timeout_s: float = 5.0) -> RemoteModel:
        return RemoteModel(server=url or self.url, model="tiny:tail", privacy="activations", timeout_s=timeout_s)


def write_bundle(folder: Path) -> tuple[Path, Path]:
    """The tiny bundle in ``folder / "tiny"``; returns its public and private key."""
    private, public = folder / "key", folder / "key.pub"
    for path, data in zip((private, public), signatures.new_key_pair(), strict=True):
        path.write_bytes(data)
    write_tiny_bundle(folder / "tiny", private)
    return public, private


@pytest.fixture(scope="package")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    pytest.importorskip("onnx", reason="needs the extra: pip install 'pathweave[dev]'")
    folder = tmp_path_factory.mktemp("served")
    public, private = write_bundle(folder)
    with running_server(folder / "tiny", data=folder / "data") as url:
        yield Served(url, public, private, folder / "tiny")


@pytest.fixture
def opened(served: Served, tmp_path: Path) -> Callable[..., AdaptiveModel]:
    """Opens the bundle in a state folder of this test."""

    def open_(**settings: object) -> AdaptiveModel:
        given = {"trust": served.key, "state_folder": tmp_path / "state", **settings}
        return AdaptiveModel.open(served.address, **given)

    return open_


@pytest.fixture
def stored(tmp_path: Path) -> Callable[[], set[str]]:
    """The names of the blobs that the device of this test has."""
    return lambda: {path.name for path in (tmp_path / "state" / "store" / "blobs").glob("*")}
