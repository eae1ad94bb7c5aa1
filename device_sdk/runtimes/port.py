"""The port of runtimes: stretches, what loads and runs them, and how a run is stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import numpy.typing as npt

from device_sdk.errors import RuntimeFailedError
from device_sdk.fragments.composition import Stretch


class StopSignal:
    """Once set, from any thread, calls that take it end soon. It stays set."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards what follows
        self._set = False
        self._enders: list[Callable[[], None]] = []

    @property
    def is_set(self) -> bool:
        """True once calls have to end."""
        return self._set

    def set(self) -> None:
        """End the calls that run now, and those that begin later. Idempotent; waits for none of them."""
        with self._lock:
            self._set = True
            for end in self._enders:
                end()

    def ending_by(self, end: Callable[[], None]) -> AbstractContextManager[None]:
        """While the block runs, ``set`` calls ``end``, which has to be quick; at once if it is set already."""
        return _Ending(self, end)

    def _begin(self, end: Callable[[], None]) -> None:
        with self._lock:
            self._enders.append(end)
            if self._set:
                end()

    def _finish(self, end: Callable[[], None]) -> None:
        with self._lock:
            self._enders.remove(end)


class _Ending:
    """``with``: ``end`` is among the enders of ``signal``. A class, for a generator would cost every call more."""

    __slots__ = ("_end", "_signal")

    def __init__(self, signal: StopSignal, end: Callable[[], None]) -> None:
        self._signal, self._end = signal, end

    def __enter__(self) -> None:
        self._signal._begin(self._end)

    def __exit__(self, *error: object) -> None:
        self._signal._finish(self._end)


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

    @property
    def concurrency(self) -> int:
        """The number of stretches that can run at once at full speed; 1 where they would wait for each other."""

    @property
    def waits_for_threads(self) -> bool:
        """True if runs wait for other threads of the runtime, so that this waiting is part of their latency."""

    def taking_turns(self) -> Runtime:
        """The same runtime for many stretches of which few run at a time: they share their working memory."""


def require_one_home(stretch: Stretch) -> None:
    """Raise RuntimeFailedError where a stretch names homes: a runtime of one home runs what names none."""
    named = stretch.home or ", ".join(part.home or "the first" for part in stretch.parts)
    if named:
        hint = "open the bundle with homes= that include what the plan names"
        raise RuntimeFailedError(
            f"the plan runs blocks at {named}, and the bundle is open at one home alone", hint=hint
        )
