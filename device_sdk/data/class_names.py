"""Which class a folder or a label means: by name or further name, tolerant of case, spaces and underscores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from device_sdk.errors import DataError

_NAMED = 3  # classes that a message names
_LISTED = 10  # that a hint lists


class ClassNames:
    """The classes of a model and what else they are called.

    ``names``: in the order of the model's outputs; ``further``: for each class its other names and ids, or empty. An
    exact name goes before an exact further name, and both before another spelling ("Golden_retriever").
    """

    def __init__(self, names: Sequence[str], further: Sequence[Sequence[str]] = ()) -> None:
        self._names = tuple(names)
        further = [tuple(known) for known in further[: len(names)]] or [()] * len(names)
        self._shown = [", ".join((name, *known[:1])) for name, known in zip(names, further, strict=False)]
        pairs = [(name, position) for position, name in enumerate(names)]
        others = [(name, position) for position, known in enumerate(further) for name in known]
        spellings = [(spelling(name), position) for name, position in pairs + others]
        self._ranks = tuple(_by_name(found) for found in (pairs, others, spellings))

    def positions(self, labels: Sequence[str]) -> list[int]:
        """The position of each of ``labels``, which are distinct.

        Raises:
            DataError: unknown, could be several classes, or two spellings of one class; names them.
        """
        found = [self._candidates(label) for label in labels]
        unknown = [label for label, candidates in zip(labels, found, strict=True) if not candidates]
        if unknown:
            raise DataError(
                f"the data has classes that the model does not know: {', '.join(unknown[:_NAMED])}",
                hint=f"name the folders like the model's classes: {', '.join(self._names[:_LISTED])}",
            )
        for label, candidates in zip(labels, found, strict=True):
            if len(candidates) > 1:
                raise DataError(
                    f"{label} could be any of several classes: {'; '.join(self._shown[one] for one in candidates)}",
                    hint="call it by a name or an id that only one of them has",
                )
        positions = [candidates[0] for candidates in found]
        _require_one_spelling(labels, positions)
        return positions

    def _candidates(self, label: str) -> list[int]:
        for rank, wanted in zip(self._ranks, (label, label, spelling(label)), strict=True):
            if wanted in rank:
                return rank[wanted]
        return []


def spelling(name: str) -> str:
    """The name without what people write one way or the other: case, spaces, underscores."""
    return " ".join(name.replace("_", " ").casefold().split())


def require_distinct(labels: Sequence[str]) -> None:
    """Refuse two spellings of one class where only the data say which classes there are (DataError)."""
    seen: dict[str, int] = {}
    _require_one_spelling(labels, [seen.setdefault(spelling(label), len(seen)) for label in labels])


def _by_name(pairs: Sequence[tuple[str, int]]) -> Mapping[str, list[int]]:
    found: dict[str, list[int]] = {}
    for name, position in pairs:
        known = found.setdefault(name, [])
        if position not in known:
            known.append(position)
    return found


def _require_one_spelling(labels: Sequence[str], positions: Sequence[int]) -> None:
    first: dict[int, str] = {}
    for label, position in zip(labels, positions, strict=True):
        if first.setdefault(position, label) != label:
            raise DataError(
                f"{first[position]} and {label} are two spellings of one class",
                hint="give their images one name; list the classes of the model (--classes FILE) where they are two",
            )
