"""A bundle's folder: a finished one is found again; a new one is written (blobs by digest, manifest, signature),
verified as a whole, then moved into place.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from device_sdk.bundles.bundle import BLOBS, MANIFEST, SIGNATURE, Bundle
from device_sdk.bundles.manifest import Manifest, encode_manifest
from device_sdk.errors import BundleError, PathweaveError
from device_sdk.files.atomic import storage_errors, sync_folder, write_atomically
from device_sdk.signing import signatures
from packager.errors import PackagingError, ResumeError
from packager.output.checkpoints import require_same_run
from packager.output.folder_exchange import Swap, discard, replace_folder, swap_folders, temporary_beside
from packager.output.output_claim import OutputClaim, work_folder
from packager.output.ownership import REPORT, is_work, require_bundle, require_work


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


@dataclass(frozen=True)
class Packaged:
    """A finished bundle. ``seconds`` includes interrupted runs; ``fresh`` is False if it existed already.

    ``peak_rss_bytes``: peak memory of packaging, None where the system does not report it. ``step_seconds``: of each
    step of the run that finished it. ``training_report``: a line per training phase.
    """

    folder: Path
    manifest: Manifest
    seconds: float
    peak_rss_bytes: int | None
    fresh: bool
    step_seconds: Mapping[str, float] = field(default_factory=dict)
    training_report: tuple[str, ...] = ()


def but_renditions(description: Mapping[str, Any]) -> dict[str, Any]:
    """The description without renditions, so training can be reused with different ones."""
    recipe = {key: value for key, value in description["recipe"].items() if key not in ("renditions", "chips")}
    return {**description, "recipe": recipe}


def clear(out: Path) -> None:
    """Delete unfinished work. An existing bundle at ``out`` is replaced later.

    Raises:
        PackagingError: something else is at ``out`` or at its work folder.
    """
    if out.exists():
        require_bundle(out)
    require_work(work_folder(out))
    discard(work_folder(out))


def already_there(out: Path, description: Mapping[str, Any], *, private_key: Path | None) -> Packaged:
    """The bundle that an earlier run of the same job has finished; an error if ``out`` holds anything else.

    It is signed now if ``private_key`` is given.

    Raises:
        PackagingError: ``out`` is not the bundle of a packaging run.
        ResumeError: it is that of another job, or damaged.
    """
    if not (out / REPORT).exists():
        raise PackagingError(
            f"{out} already exists", hint="choose another --out folder, or add --restart to replace it"
        )
    [bundle], report = finished(out, REPORT, description, [out])
    if private_key is not None:
        _sign_again(out, private_key)
    steps, training = report.get("step_seconds", {}), tuple(report.get("training_report", ()))
    return Packaged(out, bundle.manifest, report["seconds"], report.get("peak_rss_bytes"), False, steps, training)


def finished(
    out: Path,
    report: str,
    description: Mapping[str, Any],
    folders: Sequence[Path],
    check: Callable[..., None] = lambda *bundles: None,
) -> tuple[list[Bundle], dict[str, Any]]:
    """The bundles at ``folders`` that an earlier run of the same job has finished, and its report in ``out``.

    Raises:
        ResumeError: they are those of another job, or damaged, or ``check`` of them fails.
    """
    require_same_run(out / report, description)
    try:
        bundles = [Bundle.open(folder) for folder in folders]
        for bundle in bundles:
            bundle.verify()
        check(*bundles)
    except PathweaveError as error:
        raise ResumeError(f"{out} is damaged: {error}", hint="add --restart to package it again") from error
    if is_work(work_folder(out)):  # remains if an earlier run was killed just before its end
        discard(work_folder(out))
    return bundles, json.loads((out / report).read_bytes())


def _sign_again(out: Path, private_key: Path) -> None:
    signature = signatures.sign((out / MANIFEST).read_bytes(), private_key=private_key)
    if not (out / SIGNATURE).exists() or (out / SIGNATURE).read_bytes() != signature:
        write_atomically(out / SIGNATURE, signature)
