"""Prepared values: tensors of sensors or features, normalised per channel at most."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import numpy as np

from device_sdk.data.inputs import PreparedInputs, resize_prepared
from device_sdk.data.kinds.port import Array, ReadBlob
from device_sdk.data.preprocessing import AnyPreprocessing
from device_sdk.errors import InputError

_MOST_CHANNELS = 65_536
_PerChannel = Annotated[tuple[float, ...], msgspec.Meta(max_length=_MOST_CHANNELS)]


class TensorPreprocessing(msgspec.Struct, AnyPreprocessing, frozen=True, tag_field="kind", tag="tensor"):
    """Values as the model takes them, but for ``prepared = (value − mean) / std`` per channel, in float32.

    A channel is an index of the first axis after the batch. Empty ``mean`` and ``std``: nothing is changed.

    Raises:
        ValueError: a value is out of range (msgspec turns it into a validation error when decoding).
    """

    mean: _PerChannel = ()
    std: _PerChannel = ()

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std):
            raise ValueError(f"{len(self.mean)} means need as many deviations, not {len(self.std)}")
        if not all(map(math.isfinite, (*self.mean, *self.std))) or not all(value > 0 for value in self.std):
            raise ValueError("mean and std must be finite, every std above zero")

    def blobs(self) -> dict[str, int]:
        """See ``AnyPreprocessing``."""
        return {}

    def accepts(self, shape: tuple[int, ...], dtype: str) -> bool:
        """See ``AnyPreprocessing``."""
        return dtype == "float32" and len(self.mean) in (0, shape[0] if shape else 0)


class TensorPreparer:
    """Values for a model that takes ``shape``; see the port. Several are an array [n, *shape] or a list of arrays."""

    names = "tensors"

    def __init__(self, preprocessing: TensorPreprocessing, shape: tuple[int, ...], read_blob: ReadBlob) -> None:
        self._preprocessing, self._shape = preprocessing, shape

    def is_prepared(self, samples: object) -> bool:
        """See the port: raw values have the same type, so that none count as prepared."""
        return False

    def listed(self, samples: Any) -> Sequence[Array]:
        """See the port."""
        alone = isinstance(samples, np.ndarray) and samples.ndim == len(self._shape)
        return samples[np.newaxis] if alone else samples

    def prepare(self, samples: Any, input_size: tuple[int, ...] = ()) -> Array:
        """See the port: float32 [n, *shape]."""
        return resize_prepared(np.stack([self._one(one) for one in self.listed(samples)]), input_size)

    def inputs(self, samples: Any) -> PreparedInputs:
        """See the port; values are prepared at once."""
        return PreparedInputs(self.prepare(samples))

    def notes(self, samples: Any) -> tuple[str, ...]:
        """Nothing is lost."""
        return ()

    def _one(self, values: Any) -> Array:
        found = np.asarray(values)
        if found.shape != self._shape or found.dtype.kind not in "fiu" or not np.isfinite(found).all():
            raise InputError(
                f"expected finite numbers of shape {list(self._shape)}, got {found.dtype} {list(found.shape)}"
            )
        found = found.astype(np.float32)
        if not self._preprocessing.mean:
            return found
        axes = (-1, *[1] * (len(self._shape) - 1))
        mean, std = (
            np.array(v, dtype=np.float32).reshape(axes) for v in (self._preprocessing.mean, self._preprocessing.std)
        )
        return np.asarray((found - mean) / std)
