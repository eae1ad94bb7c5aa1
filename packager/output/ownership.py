"""Proof that files and folders were written by packaging, required before anything of them is deleted or replaced.

A bundle holds nothing but the files of one, with a manifest or report of ours; a work folder has a run's description.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from device_sdk.bundles.bundle import BLOBS, MANIFEST, SIGNATURE
from device_sdk.signing.release import RELEASE
from packager.errors import PackagingError

REPORT = "packaging.json"  # beside the manifest: how the bundle was made and how long it took; not part of it
CARD = "README.md"  # a model card, if asked for; not part of it either
CARD_OPENS = "---\nlibrary_name: pathweave\n"  # ours, and no other README
RUN = "run.json"  # in the work folder: the run's description

_OF_BUNDLE = frozenset({MANIFEST, SIGNATURE, RELEASE, BLOBS, REPORT})
_OF_SYSTEMS = frozenset({".DS_Store", "Thumbs.db", "desktop.ini"})
_TEMPORARY = re.compile(r"\..+\.tmp")
_BLOB = re.compile(r"[0-9a-f]{64}")
_NAMED = 3
_HINT = "choose another --out folder, or move yours away; only bundles are replaced"


def require_bundle(folder: Path) -> None:
    """Refuse to replace or delete a folder unless it is a bundle, perhaps a damaged one, or empty.

    Raises:
        PackagingError: it is something else, or holds other files too; names them.
    """
    if not folder.is_dir():
        raise PackagingError(f"{folder} exists and is not a bundle", hint=_HINT)
    others = _others_in(folder)
    if others:
        named = ", ".join(others[:_NAMED]) + (", …" if len(others) > _NAMED else "")
        raise PackagingError(f"{folder} exists and holds files that are no part of a bundle: {named}", hint=_HINT)
    known = "format_version" in (_read(folder / MANIFEST) or {}) or is_description(folder / REPORT)
    if any(folder.iterdir()) and not known:
        raise PackagingError(f"{folder} exists and is not a bundle", hint=_HINT)


def is_bundle(folder: Path) -> bool:
    """True if ``require_bundle`` accepts the folder."""
    try:
        require_bundle(folder)
    except PackagingError:
        return False
    return True


def require_work(folder: Path) -> None:
    """Refuse to use or delete the folder of unfinished work, if there is one that packaging did not make.

    Raises:
        PackagingError: it lacks the description of a run.
    """
    if folder.exists() and not is_work(folder):
        raise PackagingError(
            f"{folder} exists and is not the unfinished work of a packaging run",
            hint="choose another --out folder, or move it away: packaging keeps its work there, then deletes it",
        )


def is_work(folder: Path) -> bool:
    """True for a folder with a run's description, or one with nothing but its temporary file."""
    if not folder.is_dir() or folder.is_symlink():
        return False
    return is_description(folder / RUN) or all(
        _TEMPORARY.fullmatch(entry.name) and entry.name.startswith(f".{RUN}.") for entry in folder.iterdir()
    )


def is_description(path: Path) -> bool:
    """True for the stored description of a run, alone or in a report: it names the version that wrote it."""
    content = _read(path)
    return content is not None and any(key == "pathweave" or key.endswith(" pathweave") for key in content)


def _others_in(folder: Path) -> list[str]:
    """Names of the entries in ``folder`` that are no part of a bundle, sorted."""
    blobs = folder / BLOBS
    own = {entry.name for entry in folder.iterdir() if entry.name in _OF_BUNDLE | _OF_SYSTEMS or _is_card(entry)}
    others = [entry.name for entry in folder.iterdir() if entry.name not in own and not _passing(entry)]
    if blobs.is_dir() and not blobs.is_symlink():
        inner = [entry for entry in blobs.iterdir() if not _BLOB.fullmatch(entry.name) and not _passing(entry)]
        others += [f"{BLOBS}/{entry.name}" for entry in inner if entry.name not in _OF_SYSTEMS]
    elif blobs.exists():
        others.append(BLOBS)
    return sorted(others)


def _is_card(path: Path) -> bool:
    """True for a model card that packaging wrote."""
    if path.name != CARD or not path.is_file() or path.is_symlink():
        return False
    with path.open("rb") as file:
        return file.read(len(CARD_OPENS)) == CARD_OPENS.encode()


def _passing(path: Path) -> bool:
    """A temporary file of an interrupted writer."""
    return bool(_TEMPORARY.fullmatch(path.name)) and path.is_file()


def _read(path: Path) -> dict[str, object] | None:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None
