"""Prepared values with labels: ``.npz`` files with the arrays ``x`` [count, *input] and ``y`` [count, …]."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from device_sdk.data.sample_sets import SEPARATOR, LocatedSamples, SampleSet, located, sample_set
from device_sdk.errors import DataError

MAX_ARRAY_BYTES = 8_000_000_000


def load_tensors(reference: str, *, limit: int | None, labelled: bool | None) -> SampleSet:
    """The samples at ``FILE.npz`` or ``FILE.npz#part``; integer labels are positions in the model's classes.

    Several numbers for each sample, ``y`` [count, numbers], are written with ``|`` between them.

    Raises:
        DataError: missing or unreadable arrays, Python objects in them, counts that differ, or as ``sample_set``.
    """
    path, part = located(reference, kinds="an .npz file with the arrays x and y")
    arrays = _arrays(path)
    values = arrays.get("x")
    if values is None or values.ndim < 1 or values.dtype.kind not in "fiu":
        raise DataError(f"{path} has no array x of numbers", hint="save it with numpy.savez(FILE, x=…, y=…)")
    given = arrays.get("y")
    if given is not None and (given.shape[:1] != values.shape[:1] or given.ndim > 2):
        raise DataError(f"{path}: y has shape {list(given.shape)} for {len(values)} samples", hint="one label for each")
    labels = [""] * len(values) if given is None else [_written(label) for label in given.tolist()]
    entries = [
        (f"{label}/{at:07d}", label, value) for at, (label, value) in enumerate(zip(labels, values, strict=True))
    ]
    indexed = given is not None and given.dtype.kind in "iu" and given.ndim == 1
    return sample_set(LocatedSamples(str(path), entries, indexed=indexed), part, limit=limit, labelled=labelled)


def _written(label: object) -> str:
    return SEPARATOR.join(map(str, label)) if isinstance(label, list) else str(label)


def read_values(path: Path) -> npt.NDArray[np.generic]:
    """The array in one ``.npy`` file (DataError)."""
    try:
        if path.stat().st_size > MAX_ARRAY_BYTES:
            raise DataError(f"{path} has more than {MAX_ARRAY_BYTES} bytes")
        return np.asarray(np.load(path, allow_pickle=False))
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path} cannot be read as .npy: {error}", hint="save it with numpy.save") from error


def _arrays(path: Path) -> Mapping[str, npt.NDArray[np.generic]]:
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(member.file_size for member in archive.infolist())
        if unpacked > MAX_ARRAY_BYTES:
            raise DataError(f"{path} unpacks to more than {MAX_ARRAY_BYTES} bytes")
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in ("x", "y") if name in arrays.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, MemoryError) as error:
        raise DataError(
            f"{path} cannot be read as .npz: {error}", hint="save it with numpy.savez(FILE, x=…, y=…)"
        ) from error
