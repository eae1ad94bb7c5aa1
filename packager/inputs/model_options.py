"""The options of ``package`` and ``doctor`` for the model and its preprocessing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., object])

existing_file = click.Path(dir_okay=False, path_type=Path)


def model_options(command: Command) -> Command:
    """Add the options ``weights``, ``input_shape``, ``classes``, ``normalisation``, ``interpolation`` and ``crop``."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def parse_shape(_: click.Context, __: click.Parameter, value: str | None) -> tuple[int, int, int] | None:
    """The callback of an option for an input shape."""
    if value is None:
        return None
    parts = value.lower().replace(",", "x").split("x")
    if len(parts) != 3 or not all(part.isdigit() and int(part) for part in parts):
        raise click.BadParameter("give channels x height x width, for example 3x224x224")
    return int(parts[0]), int(parts[1]), int(parts[2])


def parse_statistics(_: click.Context, __: click.Parameter, value: str | None) -> Any:
    """The callback of an option for the mean and standard deviation of pixels."""
    from packager.inputs.pixels import parse_normalisation

    try:
        return None if value is None else parse_normalisation(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def _crop(_: click.Context, __: click.Parameter, value: str | None) -> Any:
    if value in (None, "whole"):
        return value
    try:
        share = float(value)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise click.BadParameter("give whole, or a share above 0 and up to 1")
    return share


_OPTIONS = (
    click.option("--weights", type=existing_file, help="The model's pretrained weights (.safetensors, .pth)."),
    click.option("--input-shape", callback=parse_shape, help="Channels x height x width, if the model has no default."),
    click.option("--classes", help="The model's classes: imagenet-1k, or a FILE with one per line, ids after tabs."),
    click.option(
        "--preprocessing",
        "normalisation",
        callback=parse_statistics,
        help="imagenet, inception, unit, or MEAN/STD of pixels from 0 to 1 [default: the model's].",
    ),
    click.option(
        "--interpolation",
        type=click.Choice(["bilinear", "bicubic"]),
        help="How images are resized [default: the model's].",
    ),
    click.option(
        "--crop",
        callback=_crop,
        help="Centre crop as a share of the image, or whole [default: the model's].",
    ),
)
