"""Resuming after a kill at any point: the run's description, training state and elapsed time on disk."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from device_sdk.files.atomic import write_atomically
from device_sdk.machine import peak_resident_bytes
from packager.errors import ResumeError
from packager.output.folder_exchange import discard
from packager.output.ownership import RUN

Description = Mapping[str, Any]

_STATE = "state.pt"
_RESTART = "repeat that run's options to resume it, or add --restart to start afresh"


class Checkpoints:
    """A work folder with the run's description and one atomically written file of training state.

    ``seconds`` is the time spent on the run, ``peak_rss_bytes`` its peak memory; interrupted runs count up to their
    last saved state. In distributed training only the process that ``leads`` reads and writes files. ``started``: the
    run's start on ``clock``, by default now.

    Raises:
        ResumeError: the folder holds the work of a different run, or cannot be read.
    """

    def __init__(
        self,
        folder: Path,
        description: Description,
        *,
        leads: bool = True,
        started: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._leads = leads
        self._description = description
        self._clock = clock
        self._started = clock() if started is None else started
        claimed = leads and (folder / RUN).exists()
        if claimed:
            require_same_run(folder / RUN, description)
        self.state: dict[str, Any] | None = read_state(folder / _STATE) if claimed else None
        self._earlier: float = self.state["seconds"] if self.state else 0.0
        self._earlier_peak: int = self.state.get("peak_rss_bytes", 0) if self.state else 0

    @property
    def folder(self) -> Path:
        """The work folder. The run's other temporary files may be stored there; ``remove`` deletes them too."""
        return self._folder

    @property
    def seconds(self) -> float:
        """Time spent so far."""
        return self._earlier + self._clock() - self._started

    @property
    def peak_rss_bytes(self) -> int | None:
        """The peak resident memory so far; None where the system does not report it."""
        peak = peak_resident_bytes()
        return None if peak is None else max(self._earlier_peak, peak)

    def begin(self) -> None:
        """Claim the work folder for this run by writing its description.

        Raises:
            StorageError: the folder cannot be written.
        """
        if not self._leads:
            return
        write_atomically(self._folder / RUN, encode_description(self._description))

    def save(self, state: dict[str, Any]) -> None:
        """Replace the saved state."""
        if not self._leads:
            return
        self.state = state | {"seconds": self.seconds, "peak_rss_bytes": self.peak_rss_bytes or 0}
        write_state(self._folder / _STATE, self.state)

    def save_time(self) -> None:
        """Record the time spent so far, beside the training state as it was saved last."""
        self.save(self.state or {})

    def remove(self) -> None:
        """Delete the work folder, once the bundle is written."""
        discard(self._folder)


def encode_state(state: Any) -> bytes:
    """Plain values and tensors as bytes, which ``decode_state`` reads."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def decode_state(data: bytes) -> Any:
    """Undoes ``encode_state``: nothing but plain values and tensors, on the CPU."""
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


def write_state(path: Path, state: Any) -> None:
    """Write a state, atomically (StorageError)."""
    write_atomically(path, encode_state(state))


def read_state(path: Path) -> Any:
    """The state that ``write_state`` wrote; None without a file.

    Raises:
        ResumeError: it is damaged.
    """
    if not path.exists():
        return None
    try:
        return decode_state(path.read_bytes())
    except Exception as error:  # a damaged file raises many types
        raise ResumeError(
            f"{path} cannot be read: truncated or damaged", hint="add --restart to start afresh"
        ) from error


def encode_description(description: Description) -> bytes:
    """The description as it is stored."""
    return json.dumps(description, sort_keys=True, indent=1).encode() + b"\n"


def require_same_run(path: Path, description: Description) -> None:
    """Raise ResumeError unless the description stored at ``path`` has the entries of ``description``."""
    try:
        stored = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ResumeError(f"{path} cannot be read: {error}", hint="add --restart to start afresh") from error
    if not isinstance(stored, dict):
        raise ResumeError(f"{path} cannot be read: it describes no run", hint="add --restart to start afresh")
    wanted = json.loads(encode_description(description))
    changed = sorted(key for key in wanted if stored.get(key) != wanted[key])
    if changed:
        raise ResumeError(f"{path.parent} belongs to another run: {', '.join(changed)} differ", hint=_RESTART)
