"""Device, precision and number of threads that torch computes with."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import fx, nn

from device_sdk.errors import UsageError
from device_sdk.machine import usable_cores


def resolve_device(name: str, *, local_rank: int | None = None) -> torch.device:
    """The device of this name; ``auto`` selects CUDA, else MPS, else the CPU.

    ``local_rank``: the number of this process on its machine in distributed training; selects its CUDA device.

    Raises:
        UsageError: the device is not available.
    """
    present = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        name = next(device for device in ("cuda", "mps", "cpu") if present[device])
    if not present.get(name):
        raise UsageError(f"there is no device {name} here", hint='set the recipe\'s device to "auto" or "cpu"')
    if name != "cuda" or local_rank is None:
        return torch.device(name)
    if local_rank >= torch.cuda.device_count():
        raise UsageError(
            f"process {local_rank + 1} of this machine has no CUDA device: there are {torch.cuda.device_count()}",
            hint="start at most one process per device",
        )
    return torch.device(name, local_rank)


def resolve_precision(precision: str, device: torch.device | None = None) -> torch.dtype:
    """The number format of the training's arithmetic; ``auto`` is bfloat16 where ``device`` has units for it."""
    if precision == "auto":
        kind = "cpu" if device is None else device.type
        return torch.bfloat16 if _has_bfloat16_units(kind) else torch.float32
    return torch.bfloat16 if precision == "bfloat16" else torch.float32


def _has_bfloat16_units(kind: str) -> bool:
    if kind == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return kind == "cpu" and bool(getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)())


@contextlib.contextmanager
def on_device(modules: Sequence[nn.Module], device: torch.device) -> Iterator[None]:
    """Inside the context, ``modules`` are on ``device`` with channels-last weights; afterwards on the CPU as before."""
    for module in modules:
        _place(module, device)
        module.to(memory_format=torch.channels_last)
    try:
        yield
    finally:
        for module in modules:
            _place(module, torch.device("cpu"))
            module.to(memory_format=torch.contiguous_format)


def _place(module: nn.Module, device: torch.device) -> None:
    """Move weights, and rewrite the device arguments of operators in traced graphs."""
    module.to(device)
    for part in module.modules():
        if not isinstance(part, fx.GraphModule):
            continue
        named = [node for node in part.graph.nodes if "device" in node.kwargs]
        for node in named:
            node.kwargs = node.kwargs | {"device": device}
        if named:
            part.recompile()


def free_memory(device: torch.device) -> None:
    """Return torch's cached allocations to the device."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def use_threads(threads: int | None) -> None:
    """Have torch use ``threads``, by default its own choice, but no more than the cores that this process may use.

    torch follows the affinity of the process but no quota: in a container of two cores on a machine of 64 it would
    start 64 threads, which the kernel then halts most of the time.
    """
    torch.set_num_threads(threads or min(torch.get_num_threads(), usable_cores()))
