"""Names of image files in folders and archives: selection by suffix, and the class that a folder gives them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from device_sdk.errors import DataError

SUFFIXES = frozenset(
    {".png", ".jpg", ".jpeg", ".jfif", ".bmp", ".gif", ".webp", ".avif", ".ppm", ".pgm", ".tif", ".tiff"}
)
UNREAD_SUFFIXES = frozenset({".heic", ".heif", ".jxl", ".jp2", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".raw", ".svg"})


def files_below(root: Path) -> list[str]:
    """Paths of all files below ``root``, relative to it, with slashes; follows linked folders, but not in circles."""
    found: list[str] = []
    above: dict[str, frozenset[str]] = {str(root): frozenset({os.path.realpath(root)})}
    for folder, folders, names in os.walk(root, followlinks=True):
        seen = above.pop(folder)
        real = {name: os.path.realpath(os.path.join(folder, name)) for name in folders}
        folders[:] = [name for name in folders if real[name] not in seen]
        above |= {os.path.join(folder, name): seen | {real[name]} for name in folders}
        found += [Path(folder, name).relative_to(root).as_posix() for name in names]
    return found


def portable(names: Iterable[str]) -> dict[str, str]:
    """Names of a zip's members with slashes, and as they stand there: older tools on Windows write backslashes."""
    return {name.replace("\\", "/"): name for name in names}


def unread(files: Iterable[str]) -> str:
    """A sentence on files that look like images and are of a format that is not read; empty without any."""
    paths = [PurePosixPath(file) for file in files]
    others = [path for path in paths if path.suffix.lower() in UNREAD_SUFFIXES and not _is_hidden(path)]
    if not others:
        return ""
    kinds = ", ".join(sorted({path.suffix.lower() for path in others}))
    return f"{len(others)} files of formats that are not read ({kinds}) were left out"


def paths_by_name(paths: Iterable[str], *, location: str) -> dict[str, str]:
    """Image names "class/name.png" -> their paths. Folders that wrap all classes are stripped."""
    pieces = {path: path.split("/") for path in paths if "/" in path and is_image(PurePosixPath(path))}
    while pieces and all(len(piece) > 2 for piece in pieces.values()) and _one_top(pieces.values()):
        pieces = {path: piece[1:] for path, piece in pieces.items()}
    for path, piece in pieces.items():
        if len(piece) != 2:
            raise DataError(
                f"{location}: {path} does not lie directly in a class folder",
                hint="point at the folder that holds one folder per class",
            )
    return {"/".join(piece): path for path, piece in pieces.items()}


def _one_top(pieces: Iterable[list[str]]) -> bool:
    return len({piece[0] for piece in pieces}) == 1


def is_image(path: PurePosixPath) -> bool:
    """True if a file of this name counts as an image: a known suffix, and not hidden."""
    return path.suffix.lower() in SUFFIXES and not _is_hidden(path)


def _is_hidden(path: PurePosixPath) -> bool:
    return any(piece.startswith(".") or piece == "__MACOSX" for piece in path.parts)
