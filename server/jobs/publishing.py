"""Checking a job's finished bundle, and publishing it in the served folder under a served name."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

from device_sdk.bundles import signing
from device_sdk.bundles.bundle import MANIFEST, SIGNATURE, Bundle
from device_sdk.files.atomic import storage_errors, write_atomically
from server.catalogue import Catalogue
from server.errors import PublishError

_TRIES = 1000  # maximum number of folder names that are tried


def next_version(name: str, *, catalogue: Catalogue, folder: Path) -> int:
    """The next version above all that are served, and whose folder does not exist."""
    served = [bundle.version for bundle in catalogue.listing().bundles.get(name, ())]
    first = 1 + max(served, default=0)
    candidates = range(first, first + _TRIES)
    return next((candidate for candidate in candidates if not place_of(name, candidate, folder=folder).exists()), first)


def place_of(name: str, version: int, *, folder: Path) -> Path:
    """The folder for publishing a bundle."""
    return folder / f"{name}-{version}"


def check_made(out: Path, *, name: str, version: int) -> str:
    """Verify the bundle that a worker made in ``out``. Returns the digest of its manifest.

    Raises:
        PublishError: name or version differ from the job's. BundleError: it is damaged.
    """
    bundle = Bundle.open(out)
    bundle.verify()
    manifest = bundle.manifest
    if (manifest.name, manifest.version) != (name, version):
        raise PublishError(f"the worker made {manifest.name} {manifest.version} instead of {name} {version}")
    return bundle.digest


def seal(out: Path, *, name: str, version: int, private_key: Path | None) -> str:
    """Write ``name`` and ``version`` into the bundle in ``out``, verify it, and sign it if there is a key.

    Returns the digest of its manifest. Repeatable.

    Raises:
        BundleError: it is damaged. SignatureError: the key cannot be used. StorageError: the disk is full.
    """
    manifest = json.loads((out / MANIFEST).read_bytes())
    (out / SIGNATURE).unlink(missing_ok=True)
    renamed = json.dumps({**manifest, "name": name, "version": version}, separators=(",", ":"), ensure_ascii=False)
    write_atomically(out / MANIFEST, renamed.encode())
    bundle = Bundle.open(out)
    bundle.verify()
    if private_key is not None:
        write_atomically(out / SIGNATURE, signing.sign((out / MANIFEST).read_bytes(), private_key=private_key))
    return bundle.digest


def publish(out: Path, *, name: str, version: int, folder: Path, catalogue: Catalogue) -> None:
    """Move the bundle in ``out`` atomically into the served folder.

    Raises:
        PublishError: this version exists already.
        StorageError: it could not be moved.
    """
    target = place_of(name, version, folder=folder)
    served = [bundle.version for bundle in catalogue.listing().bundles.get(name, ())]
    if version in served or target.exists():
        raise PublishError(f"version {version} of {name} exists in the served folder already", hint="publish it again")
    with storage_errors(target):
        try:
            os.rename(out, target)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            _copy(out, target)


def is_published(name: str, version: int, digest: str, *, catalogue: Catalogue) -> bool:
    """Whether a bundle with this digest is served."""
    return any(
        (served.version, served.bundle.digest) == (version, digest)
        for served in catalogue.listing().bundles.get(name, ())
    )


def _copy(out: Path, target: Path) -> None:
    """Across file systems: copy to a hidden folder, then rename, so that publishing is atomic."""
    hidden = target.with_name(f".{target.name}.publishing")
    shutil.rmtree(hidden, ignore_errors=True)
    try:
        shutil.copytree(out, hidden)
        os.rename(hidden, target)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
