"""The request that every loader is given, and the checks and messages that they share."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import nn

from packager.errors import ModelLoadError
from packager.inputs.answer_checks import require_one_tensor
from packager.inputs.loaded_model import Shape
from packager.inputs.pixels import Pixels

WRITE = "write zoo:NAME, torchvision:NAME, timm:NAME, hf:FOLDER, bert:FOLDER, module:callable, FILE.pt2 or FILE.onnx"


@dataclass(frozen=True)
class ModelRequest:
    """A specification such as ``timm:resnet18``, and what the user says of the model.

    ``scheme`` and ``name``: its parts; of a file its suffix and its name without it. ``schemes``: all that there are.
    """

    specification: str
    scheme: str
    name: str
    input_shape: Shape | None
    classes: int | None
    pixels: Pixels
    schemes: tuple[str, ...] = ()


def build(constructor: Callable[[], nn.Module], request: ModelRequest) -> nn.Module:
    """The module that ``constructor`` returns (ModelLoadError for whatever it raises)."""
    try:
        return constructor()
    except Exception as error:  # a model's constructor may raise anything
        raise ModelLoadError(f"{request.specification} cannot be built: {reason(error)}") from error


def check_takes(
    module: nn.Module, input_shape: Shape, request: ModelRequest, sample: torch.Tensor | None = None
) -> None:
    """Run one forward pass, on zeros by default, to report a wrong shape here instead of inside the tracer.

    Raises:
        ModelLoadError: the module fails, or answers with more than one tensor.
    """
    sample = torch.zeros(1, *input_shape) if sample is None else sample
    try:
        with torch.no_grad():
            answer = module.float().cpu().eval()(sample)
    except Exception as error:  # a model's forward may raise anything
        raise ModelLoadError(
            f"{request.specification} does not take inputs of shape {tuple(input_shape)}: {reason(error)}",
            hint="the shape is channels, height, width; of texts rows, tokens; of sounds 1, samples",
        ) from error
    require_one_tensor(answer, request.specification)


def unknown_name(request: ModelRequest, names: Iterable[str]) -> ModelLoadError:
    """The error of a library that has no model of this name."""
    return ModelLoadError(
        f"{request.scheme} has no model {request.name!r}",
        hint=nearest(request.name, names) or "look the name up in its documentation",
    )


def nearest(name: str, names: Iterable[str]) -> str | None:
    """A hint with the names that are most like ``name``; None if none is."""
    close = difflib.get_close_matches(name, list(names), n=3, cutoff=0.5)
    return f"did you mean {' or '.join(close)}?" if close else None


def reason(error: BaseException) -> str:
    """The first line of an error's message, or its type."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
