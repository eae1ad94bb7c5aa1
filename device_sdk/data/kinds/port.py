"""The port to kinds of samples: how a manifest describes their preparation, and what a session asks of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy.typing as npt

from device_sdk.data.inputs import Inputs

Array = npt.NDArray[Any]
ReadBlob = Callable[[str], bytes]
"""The verified bytes of a bundle's blob by its digest (BlobError)."""


class Preparer(Protocol):
    """Prepares samples of one kind for a model.

    ``names``: the samples in messages, such as images or texts.
    """

    names: str

    def is_prepared(self, samples: object) -> bool:
        """True for tensors as the model takes them, where their type tells them from raw samples."""

    def prepare(self, samples: Any, input_size: tuple[int, ...] = ()) -> Array:
        """One sample or several as [count, *input], at an input size (empty: the model's own).

        Raises:
            InputError: samples of another kind, type or size.
        """

    def listed(self, samples: Any) -> Sequence[Any]:
        """One entry for each sample; a single one counts as a list of one."""

    def inputs(self, samples: Any) -> Inputs:
        """The samples, checked, and prepared when they are needed, at any input size (InputError)."""

    def notes(self, samples: Any) -> tuple[str, ...]:
        """A sentence on each kind of loss in preparing these samples, such as texts that are cut."""
