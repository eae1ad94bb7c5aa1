"""A model from a file, and the comparison of a rebuilt module with what it was rebuilt from."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from packager.errors import ModelLoadError

BATCHES = (1, 3)
TOLERANCE = 1e-4  # of the largest answer
_ROUNDING = 20.0  # a difference of so many times the model's own rounding error is rounding
_FAINT = 0.01  # answers below this are compared as if they were this large
_SEED = 0
_COARSE, _FINE = 4, 0.2  # patches of a side; noise on them
_INTEGERS = 100  # an integer input is drawn below this; embeddings are larger
_IMAGE_RANK = 4  # [batch, channels, height, width]


@dataclass(frozen=True)
class ImportedModel:
    """A module rebuilt from a file: [batch, *input_shape] → [batch, …], in evaluation mode, single precision.

    ``metadata``: texts that the file carries. ``difference``: the largest one from the file's own answers, as a share
    of the largest answer. ``notes``: what is unusual about the file, or lost.
    """

    module: nn.Module
    input_shape: tuple[int, ...]
    dtype: torch.dtype
    difference: float
    metadata: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def compared(
    module: nn.Module,
    reference: Callable[[Tensor], Tensor],
    *,
    shape: Sequence[int],
    dtype: torch.dtype,
    name: str,
    tolerance: float = TOLERANCE,
) -> float:
    """The largest difference between the answers to noise, at batches of 1 and 3, as a share of the largest answer.

    Where it is above ``tolerance``, the module's own rounding error decides, measured in double precision.

    Raises:
        ModelLoadError: ``module`` does not run, or answers differently from ``reference``.
    """
    worst = 0.0
    for batch in BATCHES:
        samples = noise(batch, shape, dtype)
        try:
            with torch.no_grad():
                found, expected = module(samples), reference(samples)
        except Exception as error:  # of operators, which raise many types
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)[:200]
            raise ModelLoadError(
                f"the model in {name} does not run at batch {batch}: {reason}",
                hint="export it with a dynamic batch axis: single images and batches are run",
            ) from error
        worst = max(worst, _difference(module, samples, found, expected, name, tolerance))
    return worst


def noise(batch: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Seeded inputs [batch, *shape]: images with coarse patterns, normal numbers, or integers below 100.

    Noise alone looks the same to late layers, whose statistics then magnify the rounding errors of earlier ones.
    """
    generator = torch.Generator().manual_seed(_SEED + batch)
    if dtype.is_floating_point and len(shape) == _IMAGE_RANK - 1 and batch:
        coarse = torch.randn(batch, shape[0], _COARSE, _COARSE, generator=generator)
        fine = torch.randn(batch, *shape, generator=generator)
        return nn.functional.interpolate(coarse, tuple(shape[1:]), mode="bicubic") + _FINE * fine
    if dtype.is_floating_point:
        return torch.randn(batch, *shape, generator=generator).to(dtype)
    return torch.randint(0, _INTEGERS, (batch, *shape), generator=generator).to(dtype)


def _difference(
    module: nn.Module, samples: Tensor, found: Tensor, expected: Tensor, name: str, tolerance: float
) -> float:
    if found.shape != expected.shape:
        raise ModelLoadError(
            f"the rebuilt model answers {list(found.shape)} where {name} answers {list(expected.shape)}",
            hint="export it with a dynamic batch axis",
        )
    largest = max(_FAINT, expected.abs().max().item())
    difference = (found - expected).abs().max().item() / largest
    if difference <= tolerance or difference <= _ROUNDING * _rounding(module, samples, found) / largest:
        return difference
    raise ModelLoadError(
        f"the rebuilt model's answers differ from those of {name} by {difference:.2g} of the largest, at batch"
        f" {len(samples)}",
        hint="package the nn.Module itself (--model package.module:callable)",
    )


def _rounding(module: nn.Module, samples: Tensor, found: Tensor) -> float:
    """The error of ``found`` against double precision: a deep chain can magnify rounding."""
    wide = samples.double() if samples.is_floating_point() else samples
    try:
        with torch.no_grad():
            return float((copy.deepcopy(module).double()(wide) - found).abs().max())
    except RuntimeError:  # of a model that names its own precision
        return 0.0


def stored_value(model: ImportedModel, name: str, file: str) -> object:
    """The value stored in the file under ``name`` or ``name.json``, decoded from JSON; None if there is none.

    Raises:
        ModelLoadError: the text is no JSON.
    """
    text = model.metadata.get(f"{name}.json", model.metadata.get(name))
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"{name} in {file} is no JSON", hint=f"store {name} as JSON, or leave it out") from error


def require_images(model: ImportedModel, name: str) -> tuple[int, int, int]:
    """The input shape of a model of images: channels, height, width.

    Raises:
        ModelLoadError: the input is something else, or has no batch axis.
    """
    if len(model.input_shape) == _IMAGE_RANK - 1 and model.dtype.is_floating_point:
        channels, height, width = model.input_shape
        return channels, height, width
    shape = "×".join(["batch", *map(str, model.input_shape)])
    raise ModelLoadError(
        f"{name} takes {str(model.dtype).removeprefix('torch.')} inputs of shape {shape}, which are no images",
        hint="images are batch × channels × height × width, float32",
    )
