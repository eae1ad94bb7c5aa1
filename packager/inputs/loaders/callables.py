"""Models that a user's own code makes: ``package.module:callable``."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Iterator

from torch import nn

from device_sdk.errors import UsageError
from packager.errors import ModelLoadError
from packager.inputs.loaded_model import LoadedModel
from packager.inputs.loaders.request import WRITE, ModelRequest, build, check_takes, nearest, reason
from packager.inputs.model_attributes import attribute_of, class_names_of, input_shape_of, preprocessing_of, unwrapped
from packager.inputs.sample_inputs import SampleInput, sample_input_of


def load_callable(request: ModelRequest) -> LoadedModel:
    """Import the module and call what it names; see ``load_model``."""
    if request.classes is not None:
        raise UsageError(f"the number of classes cannot be set for {request.specification}")
    with _current_directory_importable():
        module = build(_find_callable(request), request)
    if not isinstance(module, nn.Module):
        raise ModelLoadError(f"{request.specification} returned a {type(module).__name__}, not an nn.Module")
    returned, module = module, unwrapped(module)
    found = sample_input_of(returned, module, request.input_shape)
    if found is None:
        found = _image_input(returned, module, request)
    model = LoadedModel(
        module=module,
        input_shape=found.shape,
        preprocessing=found.preprocessing,
        class_names=class_names_of(attribute_of(returned, "class_names")),
        name=request.name,
        licence=None,
        source=request.specification,
        blobs=found.blobs,
    )
    check_takes(module, model.input_shape, request, model.noise(1))
    return model


def _image_input(returned: object, module: nn.Module, request: ModelRequest) -> SampleInput:
    own_shape = attribute_of(returned, "input_shape")
    input_shape = request.input_shape or (None if own_shape is None else input_shape_of(own_shape, module))
    if input_shape is None:
        raise ModelLoadError(
            f"the input shape of {request.specification} is unknown",
            hint="give it as channels, height, width, for example 3,224,224",
        )
    check_takes(module, input_shape, request)
    shape = input_shape[0], input_shape[1], input_shape[2]
    preprocessing = preprocessing_of(attribute_of(returned, "preprocessing"), shape)
    preprocessing = preprocessing or request.pixels.alone(shape[0])
    if preprocessing is None:
        raise ModelLoadError(
            f"the preprocessing of {request.specification} is unknown",
            hint="give --preprocessing imagenet, inception, unit or MEAN/STD, or the module an attribute preprocessing",
        )
    return SampleInput(preprocessing, input_shape)


def _find_callable(request: ModelRequest) -> Callable[[], nn.Module]:
    try:
        module = importlib.import_module(request.scheme)
    except Exception as error:  # a user's module may raise anything
        missing = isinstance(error, ModuleNotFoundError) and error.name == request.scheme.partition(".")[0]
        if missing:
            raise ModelLoadError(
                f"unknown model {request.specification!r}: {request.scheme!r} is neither a scheme nor a module",
                hint=nearest(request.scheme, request.schemes) or WRITE,
            ) from error
        raise ModelLoadError(f"{request.scheme} cannot be imported: {reason(error)}") from error
    found = getattr(module, request.name, None)
    if not callable(found):
        names = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise ModelLoadError(f"{request.scheme} has no callable {request.name!r}", hint=nearest(request.name, names))
    return found


@contextlib.contextmanager
def _current_directory_importable() -> Iterator[None]:
    sys.path.insert(0, os.getcwd())
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(os.getcwd())
