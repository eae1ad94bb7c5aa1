"""Images in folders, one per class or not, and those that a CSV file lists."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from device_sdk.data.file_names import files_below
from device_sdk.data.image_files import read_file
from device_sdk.data.records import Records, interned, named, some_of, stamps
from device_sdk.errors import CorruptImageError, DataError


@dataclass(frozen=True, eq=False)
class _Files:
    """Files below a folder."""

    root: str
    paths: Sequence[str]

    def __call__(self, position: int) -> bytes:
        path = Path(self.root, self.paths[position])
        try:
            return read_file(path)
        except OSError as error:
            raise CorruptImageError(error.strerror or "it cannot be read") from error


def folder_records(root: Path, *, labelled: bool) -> Records:
    """The images below a folder: their classes are the folders directly in it, if they are ``labelled``."""
    found = named(files_below(root), location=str(root), labelled=labelled)
    sizes = [_size(root / path) for path in found.paths]
    reader = _Files(str(root), found.paths)
    return Records(str(root), found.names, found.labels, stamps(sizes), reader, left_out=found.left_out)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # a link that leads nowhere: found when it is read
        return 0


def single_record(file: Path) -> Records:
    """One image, without a label."""
    return Records(str(file), (file.name,), (), stamps([_size(file)]), _Files(str(file.parent), [file.name]))


def listed_records(file: Path) -> Records:
    """The images that a CSV file lists in the column ``image``, relative to it; their classes in ``label``."""
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            reader = csv.DictReader(lines)
            columns = reader.fieldnames or ()
            rows = [(row["image"] or "", (row.get("label") or "").strip()) for row in reader if "image" in columns]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{file} cannot be read as CSV: {error}") from error
    if "image" not in columns:
        raise DataError(f"{file} has no column image", hint="the first line names the columns: image,label")
    if not rows:
        raise DataError(f"{file} lists no images")
    _require_listed(file, rows)
    labelled = any(label for _, label in rows)
    entries = sorted((f"{label}/{path}" if labelled else path, label, path) for path, label in rows)
    root = file.parent
    sizes = [os.stat(root / path).st_size for _, _, path in entries]
    labels = tuple(interned(label for _, label, _ in entries)) if labelled else ()
    paths = [path for _, _, path in entries]
    return Records(str(file), [name for name, _, _ in entries], labels, stamps(sizes), _Files(str(root), paths))


def _require_listed(file: Path, rows: Sequence[tuple[str, str]]) -> None:
    """Refuse a list with missing or duplicate images, or with labels for only some of them."""
    seen: set[str] = set()
    twice = [path for path, _ in rows if path in seen or seen.add(path)]  # type: ignore[func-returns-value]
    if twice:
        raise DataError(f"{file} lists an image twice: {some_of(twice)}")
    missing = [path for path in seen if not path or not (file.parent / path).is_file()]
    if missing:
        raise DataError(
            f"{len(missing)} of the {len(rows)} images that {file} lists are missing: {some_of(sorted(missing))}",
            hint="paths are relative to the folder of the CSV file",
        )
    bare = [path for path, label in rows if not label]
    if bare and len(bare) < len(rows):
        raise DataError(
            f"{len(bare)} of the {len(rows)} images that {file} lists have no label: {some_of(bare)}",
            hint="label them all, or none",
        )
