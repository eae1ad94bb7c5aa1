"""Trained weights and tokenizers of the bench's small networks: those of zoo/, or made anew."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save
from torch import nn

from benchmarks.runner.run import BenchOptions
from benchmarks.support.bundles import ZOO
from device_sdk.files.atomic import write_atomically
from packager.inputs.weights import load_weights


def trained_file(name: str, options: BenchOptions, make: Callable[[], bytes]) -> Path:
    """The file ``name`` of zoo/; in a quick run, and where zoo/ has none, what ``make`` returns, in the work folder."""
    if not options.quick and (ZOO / name).exists():
        return ZOO / name
    write_atomically(options.work_folder / name, make())
    return options.work_folder / name


def with_weights(module: nn.Module, name: str, options: BenchOptions, train: Callable[[], None]) -> None:
    """Bring ``module`` to the weights of the network ``name``, rounded to half precision, and evaluate it."""

    def trained() -> bytes:
        train()
        floats = {key: value for key, value in module.state_dict().items() if value.is_floating_point()}
        return save({key: value.to(torch.float16).contiguous() for key, value in floats.items()})

    load_weights(module, trained_file(f"tasks-{name}.safetensors", options, trained))
    module.eval().requires_grad_(False)
