"""Maps folder names and labels to classes: by name or alias, ignoring case, spaces and underscores."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence

from device_sdk.errors import DataError

_NAMED = 3  # classes named in a message
_LISTED = 10  # classes listed in a hint


class ClassNames:
    """The classes of a model and their aliases.

    ``names``: in the order of the model's outputs; ``further``: aliases and ids per class, or empty. An exact name
    precedes an exact alias, and both over another spelling ("Golden_retriever").
    """

    def __init__(self, names: Sequence[str], further: Sequence[Sequence[str]] = ()) -> None:
        self._names = tuple(names)
        further = [tuple(aliases) for aliases in further[: len(names)]] or [()] * len(names)
        self._shown = [", ".join((name, *aliases[:1])) for name, aliases in zip(names, further, strict=False)]
        exact = [(name, position) for position, name in enumerate(names)]
        other = [(name, position) for position, aliases in enumerate(further) for name in aliases]
        spellings = [(spelling(name), position) for name, position in exact + other]
        self._ranks = tuple(_by_name(pairs) for pairs in (exact, other, spellings))

    def positions(self, labels: Sequence[str]) -> list[int]:
        """The position of each of ``labels``, which are distinct.

        Raises:
            DataError: a label is unknown or ambiguous, or two are spellings of one class; the message names them.
        """
        matches = [self._candidates(label) for label in labels]
        unknown = [label for label, candidates in zip(labels, matches, strict=True) if not candidates]
        if unknown:
            raise DataError(
                f"the data has classes that the model does not know: {', '.join(unknown[:_NAMED])}",
                hint=f"name the folders like the model's classes: {', '.join(self._names[:_LISTED])}",
            )
        for label, candidates in zip(labels, matches, strict=True):
            if len(candidates) > 1:
                raise DataError(
                    f"{label} could be any of several classes: {'; '.join(self._shown[index] for index in candidates)}",
                    hint="use a name or an id that only one of them has",
                )
        positions = [candidates[0] for candidates in matches]
        _require_one_spelling(labels, positions)
        return positions

    def _candidates(self, label: str) -> list[int]:
        for rank, wanted in zip(self._ranks, (label, label, spelling(label)), strict=True):
            if wanted in rank:
                return rank[wanted]
        return []


def spelling(name: str) -> str:
    """The name for comparison: letters composed, case folded, underscores and runs of spaces as one space."""
    return " ".join(unicodedata.normalize("NFC", name).replace("_", " ").casefold().split())


def in_order(names: Iterable[str]) -> list[str]:
    """The order of classes that only their names give: of numbers by value, else alphabetical."""
    distinct = sorted(set(names))
    return sorted(distinct, key=int) if all(name.isdecimal() for name in distinct) else distinct


def require_distinct(labels: Sequence[str]) -> None:
    """Raise DataError if two labels are spellings of one class. For data whose folders define the classes."""
    seen: dict[str, int] = {}
    _require_one_spelling(labels, [seen.setdefault(spelling(label), len(seen)) for label in labels])


def _by_name(pairs: Sequence[tuple[str, int]]) -> Mapping[str, list[int]]:
    by_name: dict[str, list[int]] = {}
    for name, position in pairs:
        positions = by_name.setdefault(name, [])
        if position not in positions:
            positions.append(position)
    return by_name


def _require_one_spelling(labels: Sequence[str], positions: Sequence[int]) -> None:
    first: dict[int, str] = {}
    for label, position in zip(labels, positions, strict=True):
        if first.setdefault(position, label) != label:
            raise DataError(
                f"{first[position]} and {label} are two spellings of one class",
                hint="give their images one name; list the classes of the model (--classes FILE) where they are two",
            )
