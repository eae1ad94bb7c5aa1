"""Output of a packaging run: unfinished work, the finished bundle and its report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from device_sdk.bundles.bundle import MANIFEST, SIGNATURE, Bundle
from device_sdk.bundles.manifest import Manifest
from device_sdk.errors import PathweaveError
from device_sdk.files.atomic import write_atomically
from device_sdk.signing import signatures
from packager.errors import PackagingError, ResumeError
from packager.output.checkpoints import require_same_run
from packager.output.folder_exchange import discard
from packager.output.output_claim import work_folder
from packager.output.ownership import REPORT, is_work, require_bundle, require_work


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
    recipe = {key: value for key, value in description["recipe"].items() if key != "renditions"}
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
    require_same_run(out / REPORT, description)
    try:
        bundle = Bundle.open(out)
        bundle.verify()
    except PathweaveError as error:
        raise ResumeError(f"{out} is damaged: {error}", hint="add --restart to package it again") from error
    if private_key is not None:
        _sign_again(out, private_key)
    if is_work(work_folder(out)):  # remains if an earlier run was killed just before its end
        discard(work_folder(out))
    report = json.loads((out / REPORT).read_bytes())
    steps, training = report.get("step_seconds", {}), tuple(report.get("training_report", ()))
    return Packaged(out, bundle.manifest, report["seconds"], report.get("peak_rss_bytes"), False, steps, training)


def _sign_again(out: Path, private_key: Path) -> None:
    signature = signatures.sign((out / MANIFEST).read_bytes(), private_key=private_key)
    if not (out / SIGNATURE).exists() or (out / SIGNATURE).read_bytes() != signature:
        write_atomically(out / SIGNATURE, signature)
