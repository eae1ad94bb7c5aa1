"""Lists of a model's classes: ImageNet's from timm, or a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from device_sdk.errors import DataError
from device_sdk.extras import require

IMAGENET = "imagenet-1k"


@dataclass(frozen=True)
class ClassList:
    """The classes of a model in the order of its outputs; ``ids``: additional names of each."""

    names: tuple[str, ...]
    ids: tuple[tuple[str, ...], ...]

    def for_model(self, outputs: int, own_names: Sequence[str] | None, *, reference: str) -> ClassList:
        """This list for a model with so many outputs. The model's own names override ``imagenet-1k``; a file
        replaces them.

        Raises:
            DataError: the list has another number of classes.
        """
        if len(self.names) != outputs:
            raise DataError(
                f"--classes {reference} lists {len(self.names)} classes, the model has {outputs} outputs",
                hint="one class for each output, in their order",
            )
        if own_names is None or reference != IMAGENET:
            return self
        ids = tuple(_distinct((*ids, name)) for name, ids in zip(self.names, self.ids, strict=True))
        return ClassList(tuple(own_names), ids)


def load_classes(reference: str) -> ClassList:
    """``imagenet-1k``, or a file with one class per line, optionally with additional names after tabs.

    Raises:
        MissingExtraError: ``imagenet-1k`` without timm, which has the list.
        DataError: the file is missing, not text, or empty, has duplicate or empty names; names the line.
    """
    return _imagenet() if reference == IMAGENET else _from_file(Path(reference))


def _imagenet() -> ClassList:
    """WordNet ids and names. A class's name is its first one, made unique with the id if several classes share it."""
    info = require("timm.data", extra="vision").ImageNetInfo()
    described = [str(info.index_to_description(position)) for position in range(info.num_classes())]
    wordnet_ids = [str(info.index_to_label_name(position)) for position in range(info.num_classes())]
    first = [description.split(", ")[0] for description in described]
    shared = {name for name, count in Counter(first).items() if count > 1}
    names = [f"{name} ({id_})" if name in shared else name for name, id_ in zip(first, wordnet_ids, strict=True)]
    ids = [
        _distinct((id_, *description.split(", "), description))
        for id_, description in zip(wordnet_ids, described, strict=True)
    ]
    return ClassList(tuple(names), tuple(ids))


def _from_file(path: Path) -> ClassList:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = "it is no UTF-8 text" if isinstance(error, UnicodeDecodeError) else error.strerror
        raise DataError(
            f"the classes cannot be read from {path}: {reason}",
            hint=f"--classes takes {IMAGENET} or a text file with one class per line",
        ) from error
    while lines and not lines[-1].strip():
        lines.pop()
    fields = [[field.strip() for field in line.split("\t")] for line in lines]
    seen: dict[str, int] = {}
    for number, (name, *_) in enumerate(fields, start=1):
        if not name:
            raise DataError(f"{path}: line {number} names no class", hint="one class per line, none left out")
        if seen.setdefault(name, number) != number:
            raise DataError(f"{path}: {name} is in line {seen[name]} and in line {number}")
    if len(fields) < 2:
        raise DataError(f"{path} lists {len(fields)} classes", hint="a classifier has two or more")
    ids = tuple(_distinct(tuple(filter(None, further))) for _, *further in fields)
    return ClassList(tuple(name for name, *_ in fields), ids if any(ids) else ())


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
