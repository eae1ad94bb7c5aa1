"""Files from which the branch zoo resumes after an interruption, and the gathering of results from all processes."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from device_sdk.files.atomic import write_atomically
from packager.errors import ResumeError
from packager.training.ranks import Ranks

State = dict[str, Any]


class ZooCheckpoints:
    """Files in the run's work folder: one per finished cut point, one per process for the one that is being trained.

    ``saved``: called after each is written.
    """

    def __init__(self, folder: Path, ranks: Ranks, *, saved: Callable[[], None] = lambda: None) -> None:
        self._saved = saved
        self._folder = folder
        self._ranks = ranks

    def finished(self, positions: Sequence[int]) -> dict[int, State]:
        """The results of the finished cut points, the same positions in all processes; full only in rank 0.

        Raises:
            ResumeError: a file is damaged.
        """
        found: dict[int, State] = {}
        for position in positions:
            there = self._ranks.leads and self._result(position).exists()
            if not self._ranks.from_lead(float(there)):
                break
            found[position] = _read(self._result(position)) if there else _EMPTY
        return found

    def finish(self, position: int, mine: State) -> State:
        """Gather all processes' results of a cut point and keep them. Returns them, in rank 0."""
        parts = [self._from(rank, mine) for rank in range(self._ranks.share.count)]
        whole: State = {
            "exits": sorted((one for part in parts for one in part["exits"]), key=lambda one: str(one["name"])),
            "trained": sum(part["trained"] for part in parts),
            "dropped_late": sum(part["dropped_late"] for part in parts),
            "steps": parts[0]["steps"],
            "batches": min(part["batches"] for part in parts),
        }
        if self._ranks.leads:
            write_atomically(self._result(position), _bytes(whole))
        self._saved()
        self._own().unlink(missing_ok=True)
        return whole

    def save(self, position: int, state: State) -> None:
        """Replace this process's state of the cut point that is being trained."""
        write_atomically(self._own(), _bytes(state | {"position": position}))
        self._saved()

    def unfinished(self, position: int) -> State | None:
        """The saved state of this cut point, if all processes saved it at the same step; else None: it begins anew.

        Raises:
            ResumeError: the file is damaged.
        """
        state = _read(self._own()) if self._own().exists() else None
        place = -1.0 if state is None or state["position"] != position else float(state["before"] + state["done"])
        agreed = self._ranks.from_lead(place)
        if self._ranks.any(place != agreed) or agreed < 0:
            return None
        return state

    def _from(self, rank: int, mine: State) -> State:
        """The result of process ``rank``, in all processes."""
        if self._ranks.alone:
            return mine
        data = _bytes(mine) if rank == self._ranks.share.rank else b""
        size = int(self._ranks.sum(torch.tensor(len(data))).item())
        buffer = torch.zeros(size, dtype=torch.uint8)
        if data:
            buffer = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        received = self._ranks.sum(buffer).to(torch.uint8).numpy().tobytes()
        loaded: State = torch.load(io.BytesIO(received), map_location="cpu", weights_only=True)
        return loaded

    def _result(self, position: int) -> Path:
        return self._folder / f"branches-{position}.pt"

    def _own(self) -> Path:
        share = self._ranks.share
        return self._folder / f"branches.{share.rank}-of-{share.count}.pt"


_EMPTY: State = {"exits": [], "trained": 0, "dropped_late": 0, "steps": 0, "batches": 1}


def _bytes(state: State) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def _read(path: Path) -> State:
    try:
        found: State = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file raises many types
        raise ResumeError(
            f"{path} cannot be read: truncated or damaged", hint="add --restart to start afresh"
        ) from error
    return found
