"""Data-parallel training over torch.distributed, in processes started by torchrun: an adapter of ``Ranks``.

Backends: gloo for tensors in CPU memory, NCCL for tensors on CUDA devices.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import distributed

from device_sdk.errors import UsageError
from packager.data.batches import Share
from packager.errors import TrainingError
from packager.training.ranks import Alone, Ranks

# A process that dies closes its connections and is detected at once; the timeout is for one that hangs. It exceeds the
# longest regular wait: the slowest process tracing a large model, rank 0 evaluating accuracy or saving its state.
_TIMEOUT = timedelta(minutes=10)
_GO_ON = "run the same command again: training resumes from the last saved state"


@dataclass(frozen=True)
class Place:
    """Rank and number of processes, and the rank on this machine."""

    share: Share
    local_rank: int


def find_place(environ: Mapping[str, str]) -> Place | None:
    """This process's place in the group, from the variables that torchrun sets; None if it is the only process.

    Raises:
        UsageError: the variables contradict each other.
    """
    if environ.get("WORLD_SIZE", "1") == "1":
        return None
    try:
        rank, count = int(environ["RANK"]), int(environ["WORLD_SIZE"])
        place = Place(Share(rank, count), int(environ.get("LOCAL_RANK", rank)))
        if (
            not 0 <= rank < count
            or place.local_rank < 0
            or not environ["MASTER_ADDR"]
            or not 0 < int(environ["MASTER_PORT"]) < 2**16
        ):
            raise ValueError
    except (KeyError, ValueError) as error:
        raise UsageError(
            f"WORLD_SIZE={environ['WORLD_SIZE']} means several processes, but RANK, LOCAL_RANK, MASTER_ADDR or"
            " MASTER_PORT is missing or wrong",
            hint="start with torchrun --nproc-per-node N -m pathweave package …, or unset WORLD_SIZE",
        ) from error
    return place


@contextlib.contextmanager
def joined(environ: Mapping[str, str]) -> Iterator[Ranks]:
    """Join the process group described by ``environ``, if any. Inside the context, SIGTERM raises a TrainingError.

    Raises:
        UsageError: see ``find_place``.
        TrainingError: the other processes cannot be reached.
    """
    place = find_place(environ)
    if place is None:
        yield Alone()
        return
    if not distributed.is_available():
        raise UsageError("this build of torch cannot train in several processes", hint="start a single one")
    with _request_to_end_as_error():
        group = ProcessGroup(place)
        try:
            yield group
        finally:
            group.close()


class ProcessGroup(Ranks):
    """Processes that rendezvous at MASTER_ADDR and MASTER_PORT."""

    def __init__(self, place: Place, *, timeout: timedelta = _TIMEOUT) -> None:
        super().__init__(place.share, local_rank=place.local_rank)
        rank, count = place.share.rank, place.share.count
        nccl = torch.cuda.is_available() and distributed.is_nccl_available()
        try:
            self._store, _, _ = next(distributed.rendezvous("env://", rank, count, timeout=timeout))
            distributed.init_process_group(
                "cpu:gloo,cuda:nccl" if nccl else "gloo",
                store=distributed.PrefixStore("training", self._store),
                rank=rank,
                world_size=count,
                timeout=timeout,
            )
        except (RuntimeError, ValueError, OSError) as error:
            why = (str(error) or type(error).__name__).splitlines()[0][:160]
            raise TrainingError(
                f"process {rank} of {count} cannot reach the others: {why}",
                hint="is another run using the same MASTER_PORT? torchrun --standalone takes a free one",
            ) from error
        self._left = False

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """One all-reduce. Tensors on devices other than the CPU and CUDA are copied to CPU memory first."""
        device = values.device
        carried = values if device.type in ("cpu", "cuda") else values.cpu()
        with _lost_processes():
            distributed.all_reduce(carried)
        return carried.to(device)

    def bytes_from_lead(self, data: bytes) -> bytes:
        """Two broadcasts: the length, then the data."""
        size = torch.tensor([len(data)])
        with _lost_processes():
            distributed.broadcast(size, src=0)
        buffer = torch.frombuffer(bytearray(data if self.leads else int(size)), dtype=torch.uint8)
        with _lost_processes():
            distributed.broadcast(buffer, src=0)
        return buffer.numpy().tobytes()

    def claim_error_report(self) -> bool:
        """An atomic counter in the rendezvous store, which outlives most processes."""
        try:
            return self._store.add("error reports", 1) == 1
        except RuntimeError:  # the process that held the store has ended
            return True

    def leave(self) -> None:
        """Barrier, then close the connections. Failures of other processes after the last exchange are ignored."""
        if self._left:
            return
        with contextlib.suppress(RuntimeError):
            distributed.all_reduce(torch.zeros(1))
        self.close()

    def close(self) -> None:
        """Close the connections without waiting: left open, they can abort the process at exit."""
        if self._left:
            return
        self._left = True
        with contextlib.suppress(RuntimeError):
            distributed.destroy_process_group()


@contextlib.contextmanager
def _lost_processes() -> Iterator[None]:
    """Convert errors of torch.distributed to TrainingError."""
    try:
        yield
    except RuntimeError as error:
        raise TrainingError("another process of this run has ended or does not respond", hint=_GO_ON) from error


@contextlib.contextmanager
def _request_to_end_as_error() -> Iterator[None]:
    """Raise TrainingError on SIGTERM, which torchrun sends to the remaining processes when one has ended."""

    def end(_number: int, _frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # ignore repeated signals
        raise TrainingError("this run was terminated, or another process of it has ended", hint=_GO_ON)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except BaseException:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # this process is ending and may still have to report an error
        raise
    signal.signal(signal.SIGTERM, before)
