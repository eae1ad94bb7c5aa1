"""A promise, the inputs of its trial, and the findings."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from benchmarks.faults.small_bundle import SmallBundle

Harm = Literal["torn", "hung", "crashed", "leaked"]
LOG = "process.log"
TOLD = 10  # of what broke, so many are told


@dataclass
class Findings:
    """``cases``: number of cases tried; ``broken``: those that did not hold, a line each, the first ones only.

    ``kills``: processes that were killed on purpose. ``harms``: of the cases that did not hold, the number torn
    (neither the old state nor the new one, or bytes used that were not verified), hung (beyond their deadline), crashed
    (a dead process, an error without a type) or leaked (what is another's). ``missing``: parts of the promise that this
    version or this machine cannot be tried for. ``notes``: on the conduct of the trial.
    """

    cases: int = 0
    kills: int = 0
    failures: int = 0
    harms: dict[Harm, int] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def kept(self) -> bool:
        """True if something was tried and all of it held."""
        return self.cases > 0 and self.failures == 0

    def case(self, holds: bool, what: str, harm: Harm | None = None) -> bool:
        """Count a case; ``what`` broke and which ``harm`` that is, unless it ``holds``. Thread-safe."""
        with self._lock:
            self.cases += 1
            if holds:
                return True
            self.failures += 1
            if harm is not None:
                self.harms[harm] = self.harms.get(harm, 0) + 1
            if len(self.broken) < TOLD:
                self.broken.append(what)
            return False

    def note(self, text: str) -> None:
        """Add a note on the conduct of the trial, unless it is there already. Thread-safe."""
        with self._lock:
            if text not in self.notes:
                self.notes.append(text)

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())


@dataclass(frozen=True)
class Trial:
    """Inputs of a trial. ``folder``: empty, its own; ``bundle``: never altered; ``seconds``: its share of time.

    ``clock``: monotonic, in seconds.
    """

    folder: Path
    bundle: SmallBundle
    seconds: float
    seed: int = 0
    clock: Callable[[], float] = time.monotonic

    @property
    def log_path(self) -> Path:
        """File with the output and the logs of this process and its libraries."""
        return self.folder.parent / LOG

    @property
    def random(self) -> np.random.Generator:
        """A new generator from the seed."""
        return np.random.default_rng(self.seed)

    def ends_s(self, share: float = 1.0) -> float:
        """On ``clock``: when this share of the seconds, from now on, is over."""
        return self.clock() + share * self.seconds

    def new_folder(self, name: str) -> Path:
        """A new, empty folder named ``name``; it must not exist yet."""
        path = self.folder / name
        path.mkdir(parents=True)
        return path


@dataclass(frozen=True)
class Promise:
    """``statement``: the promise to users, in one sentence; ``seconds`` and ``quick_seconds``: its share of time."""

    name: str
    statement: str
    seconds: float
    quick_seconds: float
    check: Callable[[Trial, Findings], None]
