"""The smallest whole bundle: that of the contract tests, signed with a key of its own, in any number of versions."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from device_sdk.bundles.bundle import BLOBS, MANIFEST, SIGNATURE
from device_sdk.signing import signatures

SOURCE = Path(__file__).parents[2] / "tests" / "contract" / "bundle"
NAME = "reference"
SERVED = f"v1/bundles/{NAME}"


@dataclass(frozen=True)
class SmallBundle:
    """A signed bundle of 13 fragments in 2 kB, for images of 2 × 2 pixels, and the keys that it is signed with."""

    folder: Path
    private_key: Path
    public_key: Path

    @classmethod
    def make(cls, folder: Path) -> SmallBundle:
        """In ``folder``: the bundle, ``key`` and ``key.pub``."""
        folder.mkdir(parents=True, exist_ok=True)
        private, public = folder / "key", folder / "key.pub"
        for path, data in zip((private, public), signatures.new_key_pair(), strict=True):
            path.write_bytes(data)
        made = cls(folder / "bundle", private, public)
        shutil.copytree(SOURCE, made.folder)
        made.edit(lambda manifest: None)
        return made

    def copy(self, folder: Path) -> SmallBundle:
        """A copy that may be altered, with the same keys."""
        shutil.copytree(self.folder, folder)
        return SmallBundle(folder, self.private_key, self.public_key)

    def publish(self, folder: Path, version: int) -> SmallBundle:
        """A copy as ``version``, in place of what is there; see ``publish``."""
        publish(self.folder, folder, version, private_key=self.private_key)
        return SmallBundle(folder, self.private_key, self.public_key)

    def edit(self, change: Callable[[dict[str, Any]], None], *, private_key: Path | None = None) -> None:
        """Change the manifest and sign it again."""
        manifest = json.loads((self.folder / MANIFEST).read_bytes())
        change(manifest)
        _write(self.folder, manifest, private_key or self.private_key)

    def store(self, data: bytes) -> str:
        """Store a blob; its name."""
        name = hashlib.sha256(data).hexdigest()
        (self.folder / BLOBS / name).write_bytes(data)
        return name

    def last_fragment(self) -> bytes:
        """The blob of the last original block."""
        manifest = json.loads((self.folder / MANIFEST).read_bytes())
        rendition = next(block for block in manifest["blocks"] if block["id"] == "o3")["renditions"][0]
        return (self.folder / BLOBS / rendition["blob"]).read_bytes()

    def blobs(self) -> dict[str, int]:
        """Bytes of each blob."""
        return {path.name: path.stat().st_size for path in (self.folder / BLOBS).iterdir()}


def publish(bundle: Path, folder: Path, version: int, *, private_key: Path) -> None:
    """Copy ``bundle`` to ``folder`` as ``version``, from 2 on with a blob of its own, of a rendition never run."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(bundle, folder)
    manifest = json.loads((folder / MANIFEST).read_bytes()) | {"version": version}
    if version > 1:
        renditions = (one for block in manifest["blocks"] for one in block["renditions"])
        rendition = next(one for one in renditions if one["name"] == "int8")
        data = hashlib.sha256(str(version).encode()).digest() * (rendition["size_bytes"] // 32 + 1)
        data = data[: rendition["size_bytes"]]
        rendition["blob"] = hashlib.sha256(data).hexdigest()
        (folder / BLOBS / rendition["blob"]).write_bytes(data)
    _write(folder, manifest, private_key)


def _write(folder: Path, manifest: dict[str, Any], private_key: Path) -> None:
    data = json.dumps(manifest).encode()
    (folder / MANIFEST).write_bytes(data)
    (folder / SIGNATURE).write_bytes(signatures.sign(data, private_key=private_key))
