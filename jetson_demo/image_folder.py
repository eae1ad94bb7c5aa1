"""Reads the images below a folder, of any sizes, for the model; unusable files are reported once and skipped."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from device_sdk.data.image_sources import SUFFIXES, read_image
from device_sdk.data.preprocessing import fit_image
from pathweave import AdaptiveModel, DataError, InputError

NAMED_FILES = 20

Note = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Frame:
    """One prepared image: ``tensor`` float32 [1, channels, height, width]."""

    path: Path
    tensor: npt.NDArray[np.float32]


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


class ImageReader:
    """Reads images for one model. ``note`` is called once per unusable file, with the reason.

    Only the first ``NAMED_FILES`` are reported; ``skipped`` has all, with their reasons.
    """

    def __init__(self, model: AdaptiveModel) -> None:
        self._model = model
        self._preprocessing = model.bundle.manifest.preprocessing
        self.skipped: dict[Path, str] = {}

    def pixels(self, paths: Sequence[Path], *, note: Note) -> npt.NDArray[np.uint8]:
        """The usable images of ``paths`` as uint8 [count, height, width, channels], in the model's input size.

        Raises:
            DataError: no image can be used.
        """
        usable = [read[0] for path in paths if (read := self._read(path, note)) is not None]
        if not usable:
            raise self._nothing_usable()
        return np.stack(usable)

    def frames(self, paths: Sequence[Path], *, loop: bool, note: Note) -> Iterator[Frame]:
        """Frames one by one, read lazily; with ``loop`` endlessly.

        Raises:
            DataError: no image can be used.
        """
        for _ in itertools.count() if loop else range(1):
            usable = False
            for path in paths:
                read = self._read(path, note)
                if read is not None:
                    usable = True
                    yield Frame(path, read[1])
            if not usable:
                raise self._nothing_usable()

    def _read(self, path: Path, note: Note) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]] | None:
        """Pixels [height, width, channels] and the prepared tensor [1, channels, height, width]."""
        if path in self.skipped:
            return None
        try:
            pixels = read_image(path, channels=self._preprocessing.channels)
            pixels = fit_image(pixels, self._preprocessing)
            return pixels, self._model.prepare(pixels)
        except (DataError, InputError) as error:
            self._skip(path, str(error), note)
            return None

    def _skip(self, path: Path, reason: str, note: Note) -> None:
        self.skipped[path] = reason if str(path) in reason else f"{path}: {reason}"
        if len(self.skipped) <= NAMED_FILES:
            note(f"skipped {self.skipped[path]}")
        elif len(self.skipped) == NAMED_FILES + 1:
            note("further files that cannot be used are only counted")

    def _nothing_usable(self) -> DataError:
        return DataError(f"no image could be used; the first: {next(iter(self.skipped.values()))}")
