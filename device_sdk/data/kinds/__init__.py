"""Kinds of samples: a file each, with the preprocessing that a manifest states and a preparer; a line in ``KINDS``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from device_sdk.data.datasets import load_dataset
from device_sdk.data.image_files import read_image
from device_sdk.data.kinds.images import ImagePreparer
from device_sdk.data.kinds.port import Preparer, ReadBlob
from device_sdk.data.kinds.prepared import TensorPreparer, TensorPreprocessing
from device_sdk.data.kinds.sound_files import load_sounds, read_sound
from device_sdk.data.kinds.sounds import SoundPreparer, SoundPreprocessing
from device_sdk.data.kinds.tensor_files import load_tensors, read_values
from device_sdk.data.kinds.text_files import load_texts, read_text_file
from device_sdk.data.kinds.texts import TextPreparer, TextPreprocessing
from device_sdk.data.preprocessing import AnyPreprocessing, Preprocessing
from device_sdk.errors import UnsupportedFormatError
from device_sdk.progress import Progress

IMAGE = "image"


class LabelledSamples(Protocol):
    """Samples with labels int64 [count], which are positions in ``class_names``; ``notes``: on what was left out.

    After ``with_targets`` the labels are targets [count, …].
    """

    @property
    def samples(self) -> Any:
        """The samples, as a preparer of their kind takes several."""

    @property
    def labels(self) -> npt.NDArray[Any]:
        """Positions in ``class_names``; 0 where there are none."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes of the data, or of the model after ``relabelled``."""

    @property
    def names(self) -> tuple[str, ...]:
        """A name for each sample."""

    @property
    def notes(self) -> tuple[str, ...]:
        """A sentence on each kind of samples that were left out."""

    @property
    def indexed(self) -> bool:
        """True if the class names are positions in a model's classes."""

    def __len__(self) -> int: ...

    def relabelled(self, class_names: Sequence[str], class_ids: Sequence[Sequence[str]] = ()) -> LabelledSamples:
        """The same samples with labels that are positions in ``class_names`` (DataError)."""

    def with_targets(self, table: npt.NDArray[np.generic]) -> LabelledSamples:
        """The same samples with the rows of their labels in ``table`` [classes, …] in place of these."""


class Load(Protocol):
    """Loads samples of a kind by reference, for a model with this preprocessing."""

    def __call__(
        self, reference: str, preprocessing: Any, *, limit: int | None, labelled: bool | None, progress: Progress
    ) -> LabelledSamples:
        """Raise DataError for what cannot be loaded; says why and what is taken."""


@dataclass(frozen=True)
class SampleKind:
    """A kind of samples.

    ``preparer``: made of a preprocessing, the model's input shape and the bundle's blobs. ``load``: samples with labels
    by reference. ``read``: one sample from a file.
    """

    preprocessing: type[msgspec.Struct]
    preparer: Callable[[Any, tuple[int, ...], ReadBlob], Preparer]
    load: Load
    read: Callable[[Path, Any], Any]


def _load_images(
    reference: str, preprocessing: Preprocessing, *, limit: int | None, labelled: bool | None, progress: Progress
) -> LabelledSamples:
    return load_dataset(
        reference, progress=progress, limit=limit, preprocessing=preprocessing, labelled=labelled is not False
    )


def _load_texts(
    reference: str, preprocessing: TextPreprocessing, *, limit: int | None, labelled: bool | None, progress: Progress
) -> LabelledSamples:
    return load_texts(reference, limit=limit, labelled=labelled)


def _load_sounds(
    reference: str, preprocessing: SoundPreprocessing, *, limit: int | None, labelled: bool | None, progress: Progress
) -> LabelledSamples:
    return load_sounds(reference, limit=limit, labelled=labelled, sample_rate_hz=preprocessing.sample_rate_hz)


def _load_tensors(
    reference: str, preprocessing: TensorPreprocessing, *, limit: int | None, labelled: bool | None, progress: Progress
) -> LabelledSamples:
    return load_tensors(reference, limit=limit, labelled=labelled)


KINDS: Mapping[str, SampleKind] = {
    IMAGE: SampleKind(
        Preprocessing, ImagePreparer, _load_images, lambda path, how: read_image(path, channels=how.channels)
    ),
    "text": SampleKind(TextPreprocessing, TextPreparer, _load_texts, lambda path, how: read_text_file(path)),
    "sound": SampleKind(
        SoundPreprocessing,
        SoundPreparer,
        _load_sounds,
        lambda path, how: read_sound(path, sample_rate_hz=how.sample_rate_hz),
    ),
    "tensor": SampleKind(TensorPreprocessing, TensorPreparer, _load_tensors, lambda path, how: read_values(path)),
}


def kind_name(preprocessing: AnyPreprocessing) -> str:
    """The name of the kind of samples that ``preprocessing`` is for."""
    return next(name for name, kind in KINDS.items() if isinstance(preprocessing, kind.preprocessing))


def preparer_of(preprocessing: AnyPreprocessing, shape: tuple[int, ...], read_blob: ReadBlob) -> Preparer:
    """The preparer for a model that takes ``shape`` [channels, *size]."""
    return KINDS[kind_name(preprocessing)].preparer(preprocessing, shape, read_blob)


def decode_preprocessing(value: Any) -> AnyPreprocessing:
    """The preprocessing in JSON's types; one without ``kind`` is for images.

    Raises:
        UnsupportedFormatError: no kind that this SDK knows.
        ValueError: a value that breaks the kind's schema.
    """
    if not isinstance(value, dict):
        raise ValueError(f"Expected `object`, got `{type(value).__name__}`")
    kind = value.get("kind", IMAGE)
    if not isinstance(kind, str) or kind not in KINDS:
        raise UnsupportedFormatError(
            f"the model takes samples of the kind {str(kind)[:80]!r}; this SDK knows {', '.join(KINDS)}",
            hint="update Pathweave on the device",
        )
    try:
        found = msgspec.convert(value, KINDS[kind].preprocessing)
    except msgspec.ValidationError as error:  # msgspec adds the place in the manifest to other errors alone
        reason, _, field = str(error).partition(" - at `$.")
        raise ValueError(f"{reason} (`{field})" if field else reason) from error
    assert isinstance(found, AnyPreprocessing)
    return found
