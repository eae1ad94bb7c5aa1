"""Writing a bundle: blobs by digest, manifest, signature; the whole folder is moved into place atomically."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

from device_sdk.bundles import signing
from device_sdk.bundles.bundle import BLOBS, MANIFEST, SIGNATURE
from device_sdk.bundles.manifest import Manifest, encode_manifest
from device_sdk.files.atomic import storage_errors, write_atomically


class BundleWriter:
    """Collects blobs in a temporary folder beside ``target`` and moves it there on ``finish``.

    A context manager: on an exception the temporary folder is removed and ``target`` is unchanged.
    """

    def __init__(self, target: Path) -> None:
        self._target = target
        self._temporary = target.with_name(f".{target.name}.writing")

    def __enter__(self) -> BundleWriter:
        shutil.rmtree(self._temporary, ignore_errors=True)
        with storage_errors(self._temporary):
            (self._temporary / BLOBS).mkdir(parents=True)
        return self

    def __exit__(self, *exception: object) -> None:
        shutil.rmtree(self._temporary, ignore_errors=True)

    def add_blob(self, data: bytes) -> str:
        """Store ``data``; returns its name, the sha256."""
        name = hashlib.sha256(data).hexdigest()
        write_atomically(self._temporary / BLOBS / name, data)
        return name

    def add_note(self, name: str, data: bytes) -> None:
        """Store an informational file that is not part of the bundle."""
        write_atomically(self._temporary / name, data)

    def finish(self, manifest: Manifest, *, private_key: Path | None) -> None:
        """Write and sign the manifest, then replace the target with the bundle.

        Raises:
            StorageError: the disk is full or the folder cannot be written.
            SignatureError: the key cannot be used.
        """
        data = encode_manifest(manifest)
        write_atomically(self._temporary / MANIFEST, data)
        if private_key is not None:
            write_atomically(self._temporary / SIGNATURE, signing.sign(data, private_key=private_key))
        with storage_errors(self._target):
            replaced = self._target.with_name(f".{self._target.name}.replaced")
            shutil.rmtree(replaced, ignore_errors=True)
            if self._target.exists():
                os.replace(self._target, replaced)
            os.replace(self._temporary, self._target)
            shutil.rmtree(replaced, ignore_errors=True)
