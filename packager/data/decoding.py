"""Decoding batches ahead of their use, in worker processes (torch's DataLoader) where the machine has the cores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from device_sdk.data.records import Positions
from device_sdk.errors import PathweaveError
from device_sdk.machine import usable_cores
from packager.data.image_set import Decoded, ImageSet

_MOST_WORKERS = 4
_AHEAD = 2  # batches that each worker prepares ahead


class BatchDecoder:
    """Decodes the batch of each step; ``positions_of(step)`` returns its image positions, None after the last step.

    The result depends only on the positions, not on the process. If steps are consecutive, the next ones are decoded
    ahead. With ``fill`` corrupt images are replaced by the next readable ones, otherwise they are left out.
    """

    def __init__(
        self, images: ImageSet, positions_of: Callable[[int], Positions | None], *, fill: bool, workers: int
    ) -> None:
        self._images = images
        self._positions_of = positions_of
        self._reading = _Reading(images, fill)
        self._workers = workers
        self._ahead: Iterator[Decoded | PathweaveError] | None = None
        self._next = 0  # the next step that ``_ahead`` yields
        self._last: tuple[int, Decoded] | None = None

    def batch(self, step: int) -> Decoded:
        """The images of ``step``, for which ``positions_of`` must not return None.

        Raises:
            DataError: see ``ImageSet.read`` and ``ImageSet.note``.
        """
        if self._last is not None and self._last[0] == step:
            return self._last[1]
        decoded = self._fetch(step)
        if isinstance(decoded, PathweaveError):
            self.close()
            raise decoded
        self._images.note(decoded.corrupt)
        self._last = step, decoded
        return decoded

    def close(self) -> None:
        """Stop the workers."""
        self._ahead = None

    def _fetch(self, step: int) -> Decoded | PathweaveError:
        follows = self._last is not None and step == self._last[0] + 1
        if self._ahead is not None and step != self._next:
            self.close()
        if self._ahead is None and follows and self._workers:
            self._ahead, self._next = self._start(step), step
        if self._ahead is not None:
            try:
                decoded = next(self._ahead)
            except (RuntimeError, OSError):  # a worker has died, possibly out of memory: continue without workers
                self.close()
                self._workers = 0
            else:
                self._next = step + 1
                return decoded
        positions = self._positions_of(step)
        assert positions is not None, "the step does not exist"
        return self._reading[positions]

    def _start(self, step: int) -> Iterator[Decoded | PathweaveError]:
        """Workers that decode from ``step`` on. Their own generator leaves torch's global one unchanged."""
        loader = torch.utils.data.DataLoader(
            self._reading,
            batch_size=None,
            sampler=_Steps(self._positions_of, step),
            num_workers=self._workers,
            prefetch_factor=_AHEAD,
            collate_fn=_as_it_is,  # tensors would be sent through shared memory, which is small in containers
            generator=torch.Generator(),
        )
        return iter(loader)


def worker_count(*, processes: int = 1) -> int:
    """Workers for each of ``processes`` training processes on the cores that this one may use; 0 on a single core."""
    cores = usable_cores()
    return 0 if cores < 2 else min(_MOST_WORKERS, max(1, cores // processes - 1))


@dataclass(frozen=True)
class _Reading(torch.utils.data.Dataset[Any]):
    """Decodes the images at some positions. Errors are returned, since raising them in a worker loses their hint."""

    images: ImageSet
    fill: bool

    def __getitem__(self, positions: Positions) -> Decoded | PathweaveError:
        try:
            return self.images.read_filled(positions) if self.fill else self.images.read(positions)
        except PathweaveError as error:
            return error


@dataclass(frozen=True)
class _Steps:
    positions_of: Callable[[int], Positions | None]
    first: int

    def __iter__(self) -> Iterator[Positions]:
        step = self.first
        while (positions := self.positions_of(step)) is not None:
            yield positions
            step += 1


def _as_it_is(decoded: Any) -> Any:
    return decoded
