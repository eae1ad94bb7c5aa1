"""Labelled samples that are no images: texts, sounds and prepared values, with their parts and a limit."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt

from device_sdk.data.class_names import ClassNames, in_order
from device_sdk.data.datasets import as_positions
from device_sdk.data.file_names import files_below
from device_sdk.data.records import PARTS, hash_of, part_of, split_reference
from device_sdk.errors import DataError

MAX_SAMPLES = 10_000_000
SEPARATOR = "|"  # between several labels, or numbers, of one sample
_NAMED = 3


@dataclass(frozen=True, eq=False)
class SampleSet:
    """Samples with their labels.

    ``samples``: one each, as a model's preparer takes them; ``labels`` int64 [count, …] are positions in
    ``class_names``, 0 where there are none. ``names`` are unique, such as "class/name.wav". ``notes``: sentences on
    what was left out.
    ``indexed``: the class names are positions in a model's classes, as decimal text.
    """

    samples: Sequence[Any]
    labels: npt.NDArray[Any]
    class_names: tuple[str, ...]
    names: tuple[str, ...]
    notes: tuple[str, ...] = ()
    indexed: bool = False

    def __len__(self) -> int:
        return len(self.names)

    def relabelled(self, class_names: Sequence[str], class_ids: Sequence[Sequence[str]] = ()) -> SampleSet:
        """The same samples with labels that are positions in ``class_names``; see ``ImageDataset.relabelled``."""
        if self.indexed:
            positions = as_positions(self.class_names, count=len(class_names))
        else:
            positions = ClassNames(class_names, class_ids).positions(self.class_names)
        labels = np.array(positions, dtype=np.int64)[self.labels]
        return replace(self, labels=labels, class_names=tuple(class_names), indexed=False)

    def with_targets(self, table: npt.NDArray[np.generic]) -> SampleSet:
        """The same samples with the rows of their labels in ``table`` [classes, …] in place of these."""
        return replace(self, labels=table[self.labels])


@dataclass(frozen=True)
class LocatedSamples:
    """Samples of one location before parts are taken: ``entries`` are of name, label ("" for none) and sample."""

    location: str
    entries: Sequence[tuple[str, str, Any]]
    notes: tuple[str, ...] = ()
    indexed: bool = False


def sample_set(found: LocatedSamples, part: str | None, *, limit: int | None, labelled: bool | None) -> SampleSet:
    """The samples of a part, at most ``limit`` of them: those whose names have the smallest hashes.

    ``labelled``: labels are required, or put aside; None: they are taken where there are some.

    Raises:
        DataError: no samples, too many, names twice, labels missing, one class, or an unknown or empty part.
    """
    entries = _part(found, part)
    if limit is not None and len(entries) > limit:
        smallest = sorted(range(len(entries)), key=lambda at: hash_of(entries[at][0]))[:limit]
        entries = [entries[at] for at in sorted(smallest)]
    names = tuple(name for name, _, _ in entries)
    samples = [sample for _, _, sample in entries]
    if labelled is False or (labelled is None and not any(label for _, label, _ in entries)):
        return SampleSet(samples, np.zeros(len(names), dtype=np.int64), (), names, found.notes)
    bare = [name for name, label, _ in entries if not label]
    if bare:
        raise DataError(
            f"{len(bare)} of the {len(entries)} samples of {found.location} have no label: {_some(bare)}",
            hint="give each a label, or a folder named after its class",
        )
    classes = tuple(in_order([label for _, label, _ in entries]))
    if len(classes) == 1:
        raise DataError(
            f"{found.location} holds only one class, {classes[0]}", hint="a classifier needs two classes or more"
        )
    number_of = {name: number for number, name in enumerate(classes)}
    labels = np.array([number_of[label] for _, label, _ in entries], dtype=np.int64)
    return SampleSet(samples, labels, classes, names, found.notes, found.indexed)


def _part(found: LocatedSamples, part: str | None) -> list[tuple[str, str, Any]]:
    if not found.entries:
        raise DataError(f"{found.location} holds no samples")
    if len(found.entries) > MAX_SAMPLES:
        raise DataError(f"{found.location} holds {len(found.entries)} samples; {MAX_SAMPLES} are allowed")
    if part is None:
        return list(found.entries)
    known = tuple(dict.fromkeys(PARTS))
    if part not in known:
        raise DataError(f"{found.location} has no part {part!r}", hint=f"the parts are {', '.join(known)}")
    entries = [one for one in found.entries if part_of(one[0]) == part]
    if not entries:
        raise DataError(f"the part {part!r} of {found.location} holds no sample", hint="add samples")
    return entries


def located(reference: str, *, kinds: str) -> tuple[Path, str | None]:
    """The path in ``LOCATION`` or ``LOCATION#part``, and the part; ``kinds``: forms that are taken, for messages.

    Raises:
        DataError: there is nothing at the path.
    """
    location, part = split_reference(reference)
    if not os.path.exists(location):
        raise DataError(f"there is no data at {location}", hint=f"give {kinds}")
    return Path(location), part


def read_folder(
    root: Path, suffix: str, read: Callable[[Path], Any], *, labelled: bool | None
) -> list[tuple[str, str, Any]]:
    """The files of one suffix below ``root``; the folder directly in it is the class, unless not ``labelled``.

    Raises:
        DataError: a file lies in no class folder, or as ``read`` raises.
    """
    files = sorted(path for path in files_below(root) if path.lower().endswith(suffix) and not _is_hidden(path))
    outside = [path for path in files if "/" not in path]
    labelled = not outside if labelled is None else labelled
    if labelled and outside:
        raise DataError(
            f"{root}: {_some(outside)} lie in no class folder", hint="put the files of each class into a folder"
        )
    return [(path, path.split("/")[0] if labelled else "", read(root / path)) for path in files]


def _is_hidden(path: str) -> bool:
    return any(piece.startswith(".") or piece == "__MACOSX" for piece in PurePosixPath(path).parts)


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:_NAMED]) + (", …" if len(listed) > _NAMED else "")
