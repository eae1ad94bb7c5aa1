"""The number of threads that torch uses in a run."""

from __future__ import annotations

import torch

from device_sdk.machine import usable_cores


def use_threads(threads: int | None) -> None:
    """Have torch use ``threads``, by default its own choice, but no more than the cores that this process may use.

    torch follows the affinity of the process but no quota: in a container of two cores on a machine of 64 it would
    start 64 threads, which the kernel then halts most of the time.
    """
    torch.set_num_threads(threads or min(torch.get_num_threads(), usable_cores()))
