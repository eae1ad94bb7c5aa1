"""Samples that are no images, prepared once and kept in memory: texts as tokens, sounds, prepared values."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from device_sdk.data.kinds import KINDS, kind_name, preparer_of
from device_sdk.data.preprocessing import AnyPreprocessing
from device_sdk.errors import DataError
from device_sdk.progress import Progress

UNLABELLED = -1
MAX_BYTES = 4_000_000_000  # of prepared samples, since they are all in memory

LabelMap = Callable[[Sequence[str], bool], tuple[tuple[str, ...], Sequence[int]]]


@dataclass(frozen=True, eq=False)
class PreparedSet:
    """Prepared samples [count, *input] with labels [count, …] as the task defines its targets.

    Of classes they are int64 [count], positions in ``class_names``, below 0 for none.
    ``notes``: sentences on what was left out or cut.
    """

    inputs: npt.NDArray[Any]
    labels: npt.NDArray[Any]
    class_names: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)

    def digest(self) -> str:
        """SHA-256 of the samples, the labels and the class names."""
        digest = hashlib.sha256(repr((self.inputs.shape, str(self.inputs.dtype), self.class_names)).encode())
        digest.update(np.ascontiguousarray(self.inputs).data)
        digest.update(self.labels.tobytes())
        return digest.hexdigest()


def load_prepared(
    reference: str,
    preprocessing: AnyPreprocessing,
    shape: tuple[int, ...],
    blobs: Mapping[str, bytes],
    *,
    label: LabelMap,
    progress: Progress,
) -> PreparedSet:
    """The samples at ``reference``, prepared for a model that takes ``shape``.

    ``label``: maps the classes of the data to the model's, as for ``load_images``.

    Raises:
        DataError: as the kind's loader, or more than fit into memory.
        InputError: a sample that the model does not take.
        MissingExtraError: the tokenizer's library is not installed.
    """
    kind = KINDS[kind_name(preprocessing)]
    found = kind.load(reference, preprocessing, limit=None, labelled=None, progress=progress)
    preparer = preparer_of(preprocessing, shape, lambda name: blobs[name])
    if len(found) * int(np.prod(shape)) * 8 > MAX_BYTES:
        raise DataError(f"{len(found)} {preparer.names} of {reference} do not fit into {MAX_BYTES} bytes prepared")
    with progress.task(f"preparing {preparer.names}", total=len(found)) as task:
        inputs = preparer.inputs(found.samples).take(np.arange(len(found)))
        task.advance(len(found))
    notes = (*found.notes, *preparer.notes(found.samples))
    if not found.class_names:
        return PreparedSet(inputs, np.full(len(found), UNLABELLED, dtype=np.int64), label((), False)[0], notes)
    names, positions = label(found.class_names, found.indexed)
    return PreparedSet(inputs, np.array(positions, dtype=np.int64)[found.labels], names, notes)
