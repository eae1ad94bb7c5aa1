"""Placement problem that every strategy solves, and its result."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from device_sdk.policies.placement.candidates import ExitCandidate
from device_sdk.policies.placement.expectation import Survival, accuracy_until_stopped


@dataclass(frozen=True)
class Choice:
    """Chosen candidates; ``optimal`` if no better choice exists, which only an exhausted exact search knows."""

    exits: tuple[ExitCandidate, ...] = ()
    optimal: bool = False


@dataclass(frozen=True)
class Placement:
    """The exits to keep, by position.

    ``expectation``: expected accuracy when inference is interrupted before the full model's answer; ``memory_bytes``:
    of the kept exits; ``optimal``: proven to be the best. Without proof a better one may exist.
    """

    exits: tuple[str, ...]
    expectation: float
    memory_bytes: int
    optimal: bool = False


@dataclass(frozen=True, kw_only=True)
class PlacementProblem:
    """Worthwhile candidates by position, and limits on the memory of those kept and on the time of the search.

    ``per_byte``: greedy gains are divided by bytes; ``late``: returns True once the time for the search is over.
    """

    candidates: tuple[ExitCandidate, ...]
    survival: Survival
    memory_bytes: int
    per_byte: bool
    late: Callable[[], bool]

    def value(self, exits: Iterable[ExitCandidate]) -> float:
        """The expectation of ``exits``."""
        return accuracy_until_stopped(exits, self.survival)

    def placement(self, choice: Choice) -> Placement:
        """``choice`` as the caller gets it."""
        kept = sorted(choice.exits, key=lambda candidate: candidate.position)
        return Placement(
            exits=tuple(candidate.exit for candidate in kept),
            expectation=self.value(kept),
            memory_bytes=sum(candidate.memory_bytes for candidate in kept),
            optimal=choice.optimal,
        )
