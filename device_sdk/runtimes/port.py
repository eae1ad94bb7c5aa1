"""The runtime port: loads a stretch of blocks and runs it. Adapters are in this folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy.typing as npt

from device_sdk.fragments.composition import Stretch
from device_sdk.runtimes.stop_signal import StopSignal

Array = npt.NDArray[Any]


class LoadedStretch(Protocol):
    """A stretch that is ready to run. Both ways to run it are thread-safe."""

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Run one batch.

        ``inputs``: one array [batch, *shape] per tensor of the stretch's start; returns the same for its end.

        Raises:
            RuntimeFailedError: the runtime refused the inputs or failed, or the stretch was closed.
        """

    def run_until(self, inputs: Sequence[Array], stop: StopSignal) -> list[Array] | None:
        """As ``run``, but ends soon after ``stop`` is set: then None, unless the outputs were ready.

        A runtime that cannot end a run finishes the block that it runs.
        """

    def close(self) -> None:
        """Free its resources, as does dropping the last reference. Idempotent."""


class MakeRuntime(Protocol):
    """A runtime's class, which makes one with fixed settings and says what it can run.

    ``reads``: the ``runtime`` of the renditions that it runs. If that is ``COMPOSED``, a stretch is fragments that it
    composes; else whole programs, which it runs one after the other. ``providers``: the ones that run on the processor
    alone, the default first.
    """

    reads: str
    providers: tuple[str, ...]

    def __call__(
        self, *, threads: int, provider: str, lean: bool, spin_us: int, cache_folder: Path | None
    ) -> Runtime: ...


class Runtime(Protocol):
    """One inference engine with fixed settings."""

    @property
    def identity(self) -> str:
        """Name, version, provider in use and threads: profiles are valid for one identity."""

    def load(self, stretch: Stretch) -> LoadedStretch:
        """Load ``stretch``.

        Raises:
            RuntimeFailedError: the runtime refused the model.
            CompositionError: the fragments do not compose.
        """

    def taking_turns(self) -> Runtime:
        """The same runtime for stretches that run one at a time and share their working memory."""
