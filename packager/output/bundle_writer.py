"""Writing a bundle: blobs by digest, manifest, signature; the whole folder is verified, then moved into place."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable
from pathlib import Path

from device_sdk.bundles.bundle import BLOBS, MANIFEST, SIGNATURE, Bundle
from device_sdk.bundles.manifest import Manifest, encode_manifest
from device_sdk.errors import BundleError
from device_sdk.files.atomic import storage_errors, sync_folder, write_atomically
from device_sdk.signing import signatures
from packager.errors import PackagingError
from packager.output.folder_exchange import Swap, replace_folder, swap_folders, temporary_beside
from packager.output.output_claim import OutputClaim
from packager.output.ownership import require_bundle


class BundleWriter:
    """Collects blobs in a temporary folder beside the claimed folder and moves it there on ``finish``.

    A context manager: on an exception the temporary folder is removed and the claimed folder is unchanged.
    """

    def __init__(self, claim: OutputClaim, *, swap: Swap = swap_folders) -> None:
        self._target = claim.target
        self._swap = swap
        self._temporary = temporary_beside(claim.target)
        self._sizes: dict[str, int] = {}  # of blobs, by name

    def __enter__(self) -> BundleWriter:
        with storage_errors(self._temporary):
            (self._temporary / BLOBS).mkdir(parents=True)
        return self

    def __exit__(self, *exception: object) -> None:
        shutil.rmtree(self._temporary, ignore_errors=True)

    def add_blob(self, data: bytes) -> str:
        """Store ``data``; returns its name, the sha256."""
        name = hashlib.sha256(data).hexdigest()
        self._sizes[name] = len(data)
        write_atomically(self._temporary / BLOBS / name, data)
        return name

    def sizes_of(self, names: Iterable[str]) -> dict[str, int]:
        """The bytes of these blobs, which were added, sorted by name."""
        return {name: self._sizes[name] for name in sorted(set(names))}

    def add_note(self, name: str, data: bytes) -> None:
        """Store an informational file that is not part of the bundle."""
        write_atomically(self._temporary / name, data)

    def finish(self, manifest: Manifest, *, private_key: Path | None) -> None:
        """Write and sign the manifest, verify what was written, then replace the target with the bundle.

        Raises:
            PackagingError: a blob or the signature is not as it was written, or the target is no bundle.
            StorageError: the disk is full or the folder cannot be written.
            SignatureError: the key cannot be used.
        """
        data = encode_manifest(manifest)
        write_atomically(self._temporary / MANIFEST, data)
        if private_key is not None:
            write_atomically(self._temporary / SIGNATURE, signatures.sign(data, private_key=private_key))
        with storage_errors(self._target):
            sync_folder(self._temporary / BLOBS)
            sync_folder(self._temporary)
        self._verify(data, private_key)
        if self._target.exists():
            require_bundle(self._target)  # again: it may have been filled since the start
        with storage_errors(self._target):
            replace_folder(self._temporary, self._target, swap=self._swap)

    def _verify(self, manifest: bytes, private_key: Path | None) -> None:
        """Read everything back: the manifest, every blob's digest, and the signature, which is deterministic."""
        hint = "another process changed the files, or the disk is faulty; repeat the command"
        try:
            Bundle.open(self._temporary).verify()
            same = (self._temporary / MANIFEST).read_bytes() == manifest
            if private_key is not None:
                signature = (self._temporary / SIGNATURE).read_bytes()
                same = same and signature == signatures.sign(manifest, private_key=private_key)
        except (BundleError, OSError) as error:
            raise PackagingError(f"{self._target} was not replaced: {error}", hint=hint) from error
        if not same:
            raise PackagingError(f"{self._target} was not replaced: manifest or signature differ", hint=hint)
