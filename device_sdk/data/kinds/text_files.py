"""Texts with labels: ``.csv``, ``.tsv`` and ``.jsonl`` files with the columns text and label, folders of ``.txt``.

Of a ``.conll`` file the texts alone.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from device_sdk.data.kinds.tagged_files import SUFFIX, read_tagged
from device_sdk.data.sample_sets import LocatedSamples, SampleSet, located, read_folder, sample_set
from device_sdk.errors import DataError

MAX_FILE_BYTES = 4_000_000_000
MAX_TEXT_BYTES = 10_000_000  # of one file in a folder
_FORMS = "a .csv, .tsv or .jsonl file with the columns text and label, or a folder of .txt files per class"
_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_NAMED = 3


class _Line(msgspec.Struct):
    text: str
    label: str | int | None = None


def load_texts(reference: str, *, limit: int | None, labelled: bool | None) -> SampleSet:
    """The texts at ``LOCATION`` or ``LOCATION#part``, named by class and line or file.

    Raises:
        DataError: missing or unreadable data, no column text, an empty text, or as ``sample_set``; names the line.
    """
    path, part = located(reference, kinds=_FORMS)
    if path.is_dir():
        entries = read_folder(path, ".txt", read_text_file, labelled=labelled)
        empty = [name for name, _, text in entries if not text.strip()]
    else:
        rows = list(_rows(path))
        entries = [(f"{label}/{number:07d}" if label else f"{number:07d}", label, text) for number, text, label in rows]
        empty = [f"line {number}" for number, text, _ in rows if not text.strip()]
    if empty:
        listed = ", ".join(empty[:_NAMED]) + (", …" if len(empty) > _NAMED else "")
        raise DataError(f"{path}: {len(empty)} texts are empty: {listed}", hint="leave them out")
    return sample_set(LocatedSamples(str(path), entries), part, limit=limit, labelled=labelled)


def read_text_file(path: Path) -> str:
    """The text in one file (DataError)."""
    try:
        if path.stat().st_size > MAX_TEXT_BYTES:
            raise DataError(f"{path} has more than {MAX_TEXT_BYTES} bytes", hint="one text per file")
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = "it is no UTF-8 text" if isinstance(error, UnicodeDecodeError) else error.strerror
        raise DataError(f"{path} cannot be read: {reason}") from error


def _rows(path: Path) -> Iterator[tuple[int, str, str]]:
    """Number of its line, text and label ("" for none) of each row."""
    suffix = path.suffix.lower()
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise DataError(f"{path} has more than {MAX_FILE_BYTES} bytes")
        if suffix == ".jsonl":
            with path.open("rb") as lines:
                yield from _json_rows(path, lines)
        elif suffix == SUFFIX:  # classes of words, which are no labels of texts
            yield from ((number, tagged.text, "") for number, tagged in read_tagged(path))
        elif suffix in _SEPARATORS:
            with path.open(encoding="utf-8-sig", newline="") as text:
                yield from _table_rows(path, text, _SEPARATORS[suffix])
        else:
            raise DataError(f"{path} holds no texts: unknown suffix {suffix!r}", hint=f"give {_FORMS}")
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = "it is no UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error)
        raise DataError(f"{path} cannot be read: {reason}") from error


def _table_rows(path: Path, text: Iterable[str], separator: str) -> Iterator[tuple[int, str, str]]:
    csv.field_size_limit(min(MAX_TEXT_BYTES, sys.maxsize))
    reader: Any = csv.DictReader(text, delimiter=separator)
    if "text" not in (reader.fieldnames or ()):
        raise DataError(f"{path} has no column text", hint="the first line names the columns: text and label")
    for row in reader:
        yield reader.line_num, row["text"] or "", (row.get("label") or "").strip()


def _json_rows(path: Path, lines: Iterable[bytes]) -> Iterator[tuple[int, str, str]]:
    decoder = msgspec.json.Decoder(_Line)
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            found = decoder.decode(line)
        except (msgspec.DecodeError, RecursionError) as error:
            raise DataError(
                f"{path}: line {number} is not an object with text and label: {error}",
                hint='each line is like {"text": "…", "label": "…"}',
            ) from error
        yield number, found.text, "" if found.label is None else str(found.label).strip()
