"""The port for data-parallel training: a single process, or a process group (``process_group.py``).

Every process trains the same sampled path on its share of each batch. Gradients are averaged before the optimizer step,
so all processes have equal weights after it. Rank 0 makes every decision that depends on time, memory or measured
accuracy. It alone shows progress, saves state and writes the bundle.
"""

from __future__ import annotations

import hashlib
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from packager.data.batches import WHOLE, Share
from packager.errors import TrainingError
from packager.output.checkpoints import decode_state, encode_state


class Ranks(ABC):
    """A port: collective operations. All processes must call the same ones in the same order.

    ``share``: the part of each batch for this process. ``local_rank``: its number on its machine in distributed
    training.

    Raises (every collective operation):
        TrainingError: another process has ended or does not respond.
    """

    def __init__(self, share: Share = WHOLE, *, local_rank: int | None = None) -> None:
        self.share = share
        self.local_rank = local_rank

    @abstractmethod
    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sum of all processes' ``values``, the same bits everywhere; ``values`` may be overwritten."""

    @abstractmethod
    def bytes_from_lead(self, data: bytes) -> bytes:
        """Broadcast: rank 0's ``data``."""

    @abstractmethod
    def claim_error_report(self) -> bool:
        """Claim the error report to the user. True for the first process that calls this, False for all others."""

    @abstractmethod
    def leave(self) -> None:
        """Leave after the last exchange. Waits for all processes."""

    @property
    def alone(self) -> bool:
        """True if this is the only process."""
        return self.share.count == 1

    @property
    def leads(self) -> bool:
        """True if this is the first process."""
        return self.share.rank == 0

    def any(self, here: bool) -> bool:
        """True if ``here`` is true in at least one process."""
        return self.sum(torch.tensor(float(here))).item() > 0

    def from_lead(self, value: float) -> float:
        """Broadcast: rank 0's ``value``."""
        return self.sum(torch.tensor(value if self.leads else 0.0, dtype=torch.float64)).item()

    def average(self, tensors: Sequence[torch.Tensor], *, weight: float | None = None) -> None:
        """Replace each of ``tensors`` by its mean over all processes, in one all-reduce.

        ``weight``: of this process in the mean; all weights add up to 1. Equal weights by default.
        """
        if self.alone or not tensors:
            return
        with torch.no_grad():
            mine = torch.cat([tensor.flatten() for tensor in tensors])
            total = self.sum(mine.mul_(1 / self.share.count if weight is None else weight))
            for tensor, part in zip(tensors, total.split([tensor.numel() for tensor in tensors]), strict=True):
                tensor.copy_(part.view(tensor.shape))

    def state_from_lead(self, state: dict[str, Any] | None) -> dict[str, Any] | None:
        """Broadcast: rank 0's saved ``state``, None if it has none."""
        if self.alone:
            return state
        received = self.bytes_from_lead(encode_state(state if self.leads else None))
        return state if self.leads else decode_state(received)

    def require_same(self, described: Callable[[], Mapping[str, object]]) -> None:
        """Check that ``described`` returns equal values in all processes. Not called in a single process.

        Raises:
            TrainingError: it does not; names the entries that differ.
        """
        if self.alone:
            return
        own = {name: hashlib.sha256(json.dumps(value).encode()).hexdigest() for name, value in described().items()}
        lead = json.loads(self.bytes_from_lead(json.dumps(own).encode()))
        differs = self.sum(torch.tensor([float(own.get(name) != lead[name]) for name in lead])).tolist()
        if any(differs):
            names = ", ".join(name for name, count in zip(lead, differs, strict=True) if count)
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
    """Rank 0's clock in seconds, equal in all processes. The reading only changes in ``tick``."""

    def __init__(self, ranks: Ranks, clock: Callable[[], float] = time.monotonic) -> None:
        self._ranks = ranks
        self._clock = clock
        self._now_s = 0.0

    def __call__(self) -> float:
        return self._now_s

    def tick(self) -> float:
        """Read the clock. A collective operation: all processes call it at the same point."""
        self._now_s = self._ranks.from_lead(self._clock())
        return self._now_s
