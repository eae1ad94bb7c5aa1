"""The runtime port: loads a stretch of blocks and runs it. Adapters stand beside this file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy.typing as npt

from device_sdk.bundles.composition import Stretch

Array = npt.NDArray[Any]


class LoadedStretch(Protocol):
    """A stretch that is ready to run. ``run`` may be called from several threads at once."""

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Run one batch.

        ``inputs``: one array [batch, *shape] per tensor of the stretch's start; returns the same for its end.

        Raises:
            RuntimeFailedError: the runtime refused the inputs or failed, or the stretch was closed.
        """

    def close(self) -> None:
        """Free what it holds, as does dropping the last reference. May be called twice."""


class Runtime(Protocol):
    """One inference engine with fixed settings."""

    @property
    def identity(self) -> str:
        """Name, version, provider really used and threads: profiles are valid for one identity."""

    def load(self, stretch: Stretch) -> LoadedStretch:
        """Make ``stretch`` ready to run.

        Raises:
            RuntimeFailedError: the runtime refused the model.
            CompositionError: the fragments do not make one model.
        """

    def taking_turns(self) -> Runtime:
        """The same runtime for many stretches of which one runs at a time: they share their working memory."""
