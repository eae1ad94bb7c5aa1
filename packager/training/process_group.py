"""Several processes that train together over torch.distributed, as torchrun starts them: an adapter of ``Ranks``.

gloo carries what lies in the processor's memory, NCCL what lies on CUDA devices.
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
from packager.errors import TrainingError
from packager.training.batches import Share
from packager.training.ranks import Alone, Ranks

# A process that died closes its connections and is noticed at once; this is for one that hangs. Longer than any honest
# wait: for the slowest one to trace a large model, for the first to look at the accuracy or to save its state.
_TIMEOUT = timedelta(minutes=10)
_GO_ON = "give the same command again: training goes on from the last saved state"


@dataclass(frozen=True)
class Place:
    """Which of how many processes this one is, and its number on its machine."""

    share: Share
    local_rank: int


def find_place(environ: Mapping[str, str]) -> Place | None:
    """This process's place in what torchrun, or something that sets the same variables, started; None if it is alone.

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
            f"WORLD_SIZE={environ['WORLD_SIZE']} asks for several processes, but RANK, LOCAL_RANK, MASTER_ADDR or"
            " MASTER_PORT is missing or wrong",
            hint="start with torchrun --nproc-per-node N -m pathweave package …, or unset WORLD_SIZE",
        ) from error
    return place


@contextlib.contextmanager
def joined(environ: Mapping[str, str]) -> Iterator[Ranks]:
    """Join the other processes that ``environ`` tells of, if any. While open, a request to end is a TrainingError.

    Raises:
        UsageError: see ``find_place``.
        TrainingError: the others cannot be reached.
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
    """Processes that find each other at MASTER_ADDR and MASTER_PORT."""

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
        """One all-reduce; what lies elsewhere than on the processor or CUDA goes through the processor's memory."""
        device = values.device
        carried = values if device.type in ("cpu", "cuda") else values.cpu()
        with _lost_processes():
            distributed.all_reduce(carried)
        return carried.to(device)

    def bytes_from_lead(self, data: bytes) -> bytes:
        """Two broadcasts: how much there is, then it."""
        size = torch.tensor([len(data)])
        with _lost_processes():
            distributed.broadcast(size, src=0)
        told = torch.frombuffer(bytearray(data if self.leads else int(size)), dtype=torch.uint8)
        with _lost_processes():
            distributed.broadcast(told, src=0)
        return told.numpy().tobytes()

    def claim_error_report(self) -> bool:
        """Counted in the store where the processes met, which outlives most of them."""
        try:
            return self._store.add("told", 1) == 1
        except RuntimeError:  # gone together with the process that kept it
            return True

    def leave(self) -> None:
        """Wait for all, then close the connections. All has been exchanged: who is gone by now is not missed."""
        if self._left:
            return
        with contextlib.suppress(RuntimeError):
            distributed.all_reduce(torch.zeros(1))
        self.close()

    def close(self) -> None:
        """Close the connections, whatever the others do: left open, they can abort the process as it ends."""
        if self._left:
            return
        self._left = True
        with contextlib.suppress(RuntimeError):
            distributed.destroy_process_group()


@contextlib.contextmanager
def _lost_processes() -> Iterator[None]:
    """Turn what torch.distributed raises into ours."""
    try:
        yield
    except RuntimeError as error:
        raise TrainingError("another process of this run is gone or does not answer", hint=_GO_ON) from error


@contextlib.contextmanager
def _request_to_end_as_error() -> Iterator[None]:
    """torchrun asks the processes that are left to end when one is gone: let them say so."""

    def end(_number: int, _frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough
        raise TrainingError("this run was ended, or another process of it is gone", hint=_GO_ON)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except BaseException:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # this process is about to end, and may have to say why
        raise
    signal.signal(signal.SIGTERM, before)
