"""The images below a folder as frames, of any sizes; unusable files are reported once and skipped."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from device_sdk.data.file_names import SUFFIXES
from device_sdk.data.image_files import read_image
from device_sdk.data.preprocessing import fit_image
from jetson_demo.frames import Frame, Note
from pathweave import AdaptiveModel
from pathweave.errors import DataError, InputError

NAMED_FILES = 20


def find_images(folder: Path) -> tuple[Path, ...]:
    """The image files below ``folder``, sorted by path; hidden files and folders are left out.

    Raises:
        DataError: there is no such folder, or no image in it.
    """
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}", hint="give an existing one: --source folder:PATH")
    found = [path for path in _files(folder) if path.suffix.lower() in SUFFIXES]
    if not found:
        raise DataError(f"{folder} holds no images", hint="looked below it for " + " ".join(sorted(SUFFIXES)))
    return tuple(sorted(found))


def _files(folder: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(root, name) for name in names if not name.startswith("."))


def spread(paths: Sequence[Path], count: int) -> tuple[Path, ...]:
    """At most ``count`` of ``paths``, evenly spaced, since folders are often sorted by class."""
    chosen = min(count, len(paths))
    return tuple(paths[number * len(paths) // chosen] for number in range(chosen))


class ImageFolder:
    """A ``FrameSource`` of the images at ``paths``. Only the first ``NAMED_FILES`` unusable ones are reported."""

    def __init__(self, model: AdaptiveModel, paths: Sequence[Path]) -> None:
        self._model, self._paths = model, paths
        self._preprocessing = model.bundle.manifest.preprocessing.of_images()
        self._skipped: dict[Path, str] = {}

    @property
    def count(self) -> int:
        """The number of files."""
        return len(self._paths)

    @property
    def skipped(self) -> Mapping[Path, str]:
        """All unusable files with their reasons."""
        return self._skipped

    def sample(self, count: int, *, note: Note) -> npt.NDArray[np.uint8]:
        """See the port; evenly spaced, since folders are often sorted by class."""
        usable = [read[0] for path in spread(self._paths, count) if (read := self._read(path, note)) is not None]
        if not usable:
            raise self._nothing_usable()
        return np.stack(usable)

    def frames(self, *, loop: bool, note: Note) -> Iterator[Frame]:
        """See the port."""
        for _ in itertools.count() if loop else range(1):
            usable = False
            for path in self._paths:
                read = self._read(path, note)
                if read is not None:
                    usable = True
                    yield Frame(str(path), read[1])
            if not usable:
                raise self._nothing_usable()

    def close(self) -> None:
        """Nothing is held open."""

    def _read(self, path: Path, note: Note) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]] | None:
        """Pixels [height, width, channels] and the prepared tensor [1, channels, height, width]."""
        if path in self._skipped:
            return None
        try:
            pixels = read_image(path, channels=self._preprocessing.channels)
            pixels = fit_image(pixels, self._preprocessing)
            return pixels, self._model.prepare(pixels)
        except (DataError, InputError) as error:
            self._skip(path, str(error), note)
            return None

    def _skip(self, path: Path, reason: str, note: Note) -> None:
        self._skipped[path] = reason if str(path) in reason else f"{path}: {reason}"
        if len(self._skipped) <= NAMED_FILES:
            note(f"skipped {self._skipped[path]}")
        elif len(self._skipped) == NAMED_FILES + 1:
            note("further files that cannot be used are only counted")

    def _nothing_usable(self) -> DataError:
        return DataError(f"no image could be used; the first: {next(iter(self._skipped.values()))}")
