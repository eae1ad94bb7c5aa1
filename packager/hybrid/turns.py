"""The turns of hybrid training, and the checkpointed state of the one that runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from device_sdk.supernet.plan import Router
from packager.hybrid.path_network import State

Learner = Literal["global", "base"]
Learned = Literal["global", "base", "statistics"]


@dataclass(frozen=True)
class Turn:
    """One network's turn: its steps, and the hybrid's held-out accuracy at the coverage before and after.

    ``learner``: ``statistics`` for the batch norms of the base alone. ``kept``: False if it was set back to its start.
    """

    round: int
    learner: Learned
    steps: int
    loss: float | None
    before: float
    after: float
    kept: bool

    def __str__(self) -> str:
        """One line for the terminal."""
        kept = "kept" if self.kept else "not kept"
        loss = "" if self.loss is None else f", loss {self.loss:.4f}"
        said = f"round {self.round + 1}, {self.learner}: {self.steps} steps{loss}"
        return f"{said}; hybrid accuracy {self.before:.4f} -> {self.after:.4f}, {kept}"


@dataclass
class TurnProgress:
    """State of a network in a checkpoint besides its weights: steps and seconds of this turn, ``earlier`` steps."""

    done: int = 0
    elapsed: float = 0.0
    earlier: int = 0
    optimizer: dict[str, Any] | None = None


@dataclass
class Where:
    """The turn that runs, the initial state of its network, the router then, and the seconds of all turns.

    ``right``: mask of the hybrid's correct answers at the coverage, to the routing images, then the held-out ones.
    """

    turn: int = 0
    loss: float | None = None
    start: State | None = None
    router: Router | None = None
    right: Tensor | None = None
    seconds: float = 0.0
    report: list[dict[str, Any]] = field(default_factory=list)
