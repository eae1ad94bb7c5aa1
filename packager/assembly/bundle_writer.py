"""Writing a bundle: blobs by their digest, manifest, signature, and the whole folder put in place at once."""

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
    """Collects blobs in a temporary folder beside ``target`` and moves it there when everything is written.

    Use it as a context manager: left by an exception, it removes what it wrote and ``target`` is untouched.
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
        """Store a file that is for the people who packaged and no part of the bundle."""
        write_atomically(self._temporary / name, data)

    def finish(self, manifest: Manifest, *, private_key: Path | None) -> None:
        """Write and sign the manifest and put the bundle in place of what was at the target.

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
