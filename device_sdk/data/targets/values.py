"""Targets that are written as labels: several labels of one sample, or numbers, divided by ``|``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from device_sdk.data.sample_sets import SEPARATOR
from device_sdk.errors import DataError

NOTHING = "-"  # a sample without any label
Table = npt.NDArray[np.generic]


def label_table(written: Sequence[str], class_names: Sequence[str]) -> Table:
    """Each of ``written``, such as ``red|round``, as int64 [count, classes]: 1 for each label that it names, else 0.

    Raises:
        DataError: a label that the model does not have.
    """
    position_of = {name: at for at, name in enumerate(class_names)}
    table = np.zeros((len(written), len(class_names)), dtype=np.int64)
    for row, one in zip(table, written, strict=True):
        for name in _parts(one):
            if name not in position_of:
                raise DataError(
                    f"the model has no label {name!r}",
                    hint=f"its labels are {', '.join(class_names[:3])}, …; {SEPARATOR} divides the labels of a sample",
                )
            row[position_of[name]] = 1
    return table


def labels_in(written: Sequence[str]) -> tuple[str, ...]:
    """All labels that ``written`` name, sorted."""
    return tuple(sorted({name for one in written for name in _parts(one)}))


def number_table(written: Sequence[str], names: Sequence[str]) -> Table:
    """Each of ``written``, such as ``0.5|-2``, as float32 [count, names].

    Raises:
        DataError: something else than finite numbers, or more or fewer than ``names``.
    """
    found = [[_number(part) for part in one.split(SEPARATOR)] for one in written]
    if any(len(row) != len(names) for row in found):
        wrong = next(one for one, row in zip(written, found, strict=True) if len(row) != len(names))
        raise DataError(f"the model answers with {len(names)} numbers; a sample has {wrong!r}")
    return np.array(found, dtype=np.float32).reshape(len(written), len(names))


def numbers_in(written: Sequence[str]) -> tuple[str, ...]:
    """Names for the numbers of each sample: value 1, value 2, … Raises DataError for none."""
    if not written:
        raise DataError("there are no numbers", hint=f"a column label with numbers, divided by {SEPARATOR}")
    return tuple(f"value {number}" for number in range(1, len(written[0].split(SEPARATOR)) + 1))


def _parts(written: str) -> list[str]:
    names = [name.strip() for name in written.split(SEPARATOR)]
    return [name for name in names if name and name != NOTHING]


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise DataError(f"{text!r} is not a number", hint=f"{SEPARATOR} divides the numbers of a sample")
    return value


TABLES: Mapping[str, Callable[[Sequence[str], Sequence[str]], Table]] = {
    "multilabel": label_table,
    "regression": number_table,
}
"""By kind of task: targets of labels as they are written, for the model's class names."""

NAMES: Mapping[str, Callable[[Sequence[str]], tuple[str, ...]]] = {"multilabel": labels_in, "regression": numbers_in}
"""By kind of task: the class names of a model that has none, from the labels of its data."""
