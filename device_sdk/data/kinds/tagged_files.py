"""Files in the columns of CoNLL: a word and its class on each line, an empty line behind each text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from device_sdk.errors import DataError

SUFFIX = ".conll"
FORMS = f"a {SUFFIX} file: a word and, in the last column, its class on each line, an empty line behind each text"
_DOCUMENT = "-DOCSTART-"  # CoNLL-2003: a line that begins a document
_MOST_BYTES = 4_000_000_000


@dataclass(frozen=True)
class TaggedText:
    """Words and their classes."""

    words: tuple[str, ...]
    tags: tuple[str, ...]

    @property
    def text(self) -> str:
        """The words with a space between them."""
        return " ".join(self.words)


def read_tagged(path: Path) -> Iterator[tuple[int, TaggedText]]:
    """The number of its first line, and each text.

    Columns are separated by spaces or tabs. Raises DataError: unreadable, not UTF-8, or a line without a class.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise DataError(f"{path} has more than {_MOST_BYTES} bytes")
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = "it is no UTF-8 text" if isinstance(error, UnicodeDecodeError) else error.strerror
        raise DataError(f"{path} cannot be read: {reason}", hint=f"give {FORMS}") from error
    words: list[str] = []
    tags: list[str] = []
    for number, line in enumerate([*lines, ""], start=1):
        columns = line.split()
        if not columns or columns[0] == _DOCUMENT:
            if words:
                yield number - len(words), TaggedText(tuple(words), tuple(tags))
            words, tags = [], []
            continue
        if len(columns) < 2:
            raise DataError(f"{path}: line {number} has a word and no class", hint=f"give {FORMS}")
        words.append(columns[0])
        tags.append(columns[-1])
