"""The processes that train together, as one of them sees them: itself alone, or several (``process_group.py``).

Every process takes its share of each batch and trains the same sampled path with it. Gradients are averaged before they
are followed, so that all have the same weights after every step. What depends on time, memory or a look at the accuracy
is decided once, for all. The first process, rank 0, leads: it alone shows progress, saves state and writes the bundle.
"""

from __future__ import annotations

import hashlib
import io
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from packager.errors import TrainingError
from packager.training.batches import WHOLE, Share


class Ranks(ABC):
    """A port: what one of the processes can do together with the others. All have to call the same in the same order.

    ``share``: the samples of a batch that this process takes. ``local_rank``: its number on its machine, where several
    train.

    Raises (every method that exchanges something):
        TrainingError: another process is gone or does not answer.
    """

    def __init__(self, share: Share = WHOLE, *, local_rank: int | None = None) -> None:
        self.share = share
        self.local_rank = local_rank

    @abstractmethod
    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sum of all processes' ``values``, the same bits everywhere; ``values`` may be overwritten."""

    @abstractmethod
    def bytes_from_lead(self, data: bytes) -> bytes:
        """What the first process passes."""

    @abstractmethod
    def claim_error_report(self) -> bool:
        """Whether it is on this process to tell the user what went wrong: so it is for the first one that asks."""

    @abstractmethod
    def leave(self) -> None:
        """There is nothing more to exchange. Waits until all are here."""

    @property
    def alone(self) -> bool:
        """Whether there are no others."""
        return self.share.count == 1

    @property
    def leads(self) -> bool:
        """Whether this is the first process."""
        return self.share.rank == 0

    def any(self, here: bool) -> bool:
        """Whether it is so in at least one process."""
        return self.sum(torch.tensor(float(here))).item() > 0

    def from_lead(self, value: float) -> float:
        """What the first process passes."""
        return self.sum(torch.tensor(value if self.leads else 0.0, dtype=torch.float64)).item()

    def average(self, tensors: Sequence[torch.Tensor], *, weight: float | None = None) -> None:
        """Replace each of ``tensors`` by its mean over all processes, in one exchange.

        ``weight``: what this process counts for; those of all processes add up to 1. All count the same without it.
        """
        if self.alone or not tensors:
            return
        with torch.no_grad():
            mine = torch.cat([tensor.flatten() for tensor in tensors])
            total = self.sum(mine.mul_(1 / self.share.count if weight is None else weight))
            for tensor, part in zip(tensors, total.split([tensor.numel() for tensor in tensors]), strict=True):
                tensor.copy_(part.view(tensor.shape))

    def state_from_lead(self, state: dict[str, Any] | None) -> dict[str, Any] | None:
        """The saved state that the first process has, if any."""
        if self.alone:
            return state
        buffer = io.BytesIO()
        torch.save(state if self.leads else None, buffer)
        told = self.bytes_from_lead(buffer.getvalue())
        return state if self.leads else torch.load(io.BytesIO(told), map_location="cpu", weights_only=True)

    def require_same(self, described: Callable[[], Mapping[str, object]]) -> None:
        """Make sure that all processes describe what they start from alike; alone, nothing is described.

        Raises:
            TrainingError: they do not; names the entries that differ anywhere.
        """
        if self.alone:
            return
        mine = {name: hashlib.sha256(json.dumps(value).encode()).hexdigest() for name, value in described().items()}
        theirs = json.loads(self.bytes_from_lead(json.dumps(mine).encode()))
        differs = self.sum(torch.tensor([float(mine.get(name) != theirs[name]) for name in theirs])).tolist()
        if any(differs):
            names = ", ".join(name for name, count in zip(theirs, differs, strict=True) if count)
            raise TrainingError(
                f"the processes of this run do not start from the same: {names} differ",
                hint="start all of them with the same command, files and versions",
            )


class Alone(Ranks):
    """The only process."""

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """``values``."""
        return values

    def bytes_from_lead(self, data: bytes) -> bytes:
        """``data``."""
        return data

    def claim_error_report(self) -> bool:
        """Always."""
        return True

    def leave(self) -> None:
        """Nothing."""


class LeadClock:
    """The first process's clock, in seconds: it stands still for all processes between two calls of ``tick``."""

    def __init__(self, ranks: Ranks, clock: Callable[[], float] = time.monotonic) -> None:
        self._ranks = ranks
        self._clock = clock
        self._now_s = 0.0

    def __call__(self) -> float:
        return self._now_s

    def tick(self) -> float:
        """What it is now; all processes ask at the same point."""
        self._now_s = self._ranks.from_lead(self._clock())
        return self._now_s
