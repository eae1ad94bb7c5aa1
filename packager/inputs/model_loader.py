"""Loads a torch module for packaging from a specification such as ``zoo:resnet20_cifar10`` and a weights file."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import torch

from device_sdk.data.preprocessing import AnyPreprocessing, Preprocessing
from device_sdk.errors import UsageError
from packager.errors import ModelLoadError
from packager.inputs.loaded_model import LoadedModel, Shape
from packager.inputs.loaders.callables import load_callable
from packager.inputs.loaders.files import IMPORTERS, load_bert, load_file, load_huggingface
from packager.inputs.loaders.libraries import load_timm, load_torchvision, load_zoo
from packager.inputs.loaders.request import WRITE, ModelRequest, check_takes
from packager.inputs.pixels import Pixels, require_fitting_scale
from packager.inputs.weights import load_weights, require_finite

RANDOM_WEIGHTS_SEED = 0

Load = Callable[[ModelRequest], LoadedModel]
_SCHEMES: Mapping[str, Load] = {
    "zoo": load_zoo,
    "torchvision": load_torchvision,
    "timm": load_timm,
    "hf": load_huggingface,
    "bert": load_bert,
}
"""A function each; suffixes of files: a line in ``IMPORTERS``."""
_WITH_OTHER_INPUTS = (load_callable, load_bert, load_huggingface)  # than images
_WITH_OWN_WEIGHTS = (*_WITH_OTHER_INPUTS, load_file)


def load_model(
    specification: str,
    *,
    weights: Path | None = None,
    input_shape: Shape | None = None,
    classes: int | None = None,
    pixels: Pixels | None = None,
) -> LoadedModel:
    """Build the model of ``specification`` and load ``weights`` into it. Nothing is downloaded.

    * ``zoo:NAME``: a model of ``packager.zoo``
    * ``torchvision:NAME``: a classification model of torchvision
    * ``timm:NAME``: a model of timm
    * ``hf:FOLDER``: a folder of Hugging Face with config.json, model.safetensors and preprocessor_config.json, or
      tokenizer.json
    * ``bert:FOLDER``: a text classifier that ``packager.zoo.fit_text`` wrote
    * ``package.module:callable``: called without arguments, returns an ``nn.Module``; the current directory
      is importable. The module's attributes ``input_shape``, ``preprocessing`` and ``class_names`` are used
      if present, in the forms that ``model_attributes`` takes; wrappers such as torch.compile's are removed. A model
      of texts has the attributes ``tokenizer`` (a tokenizer.json) and ``max_tokens`` instead of the first two.
    * ``FILE.pt2``, ``FILE.onnx``: a model of ``torch.export.save`` or ``torch.onnx.export``, weights inside, rebuilt as
      a trainable module. Of its additional files or metadata, ``preprocessing.json`` or ``preprocessing`` and
      ``class_names.json`` or ``class_names`` are used, JSON in the same forms as the attributes.

    ``pixels`` overrides the model's own preprocessing, and is required if it has none. ``classes`` sets the size of the
    head (not for callables, files and folders). Without weights, the first three are initialised from a fixed seed.
    Weights are ``.safetensors``, ``.pth`` or ``.pt`` (tensors only).

    Raises:
        ModelLoadError: unknown scheme or name, a file that has no import or whose answers the rebuilt module does not
            give, a model that cannot be imported, built or run with this shape, that answers with more than one tensor,
            or a callable or file without preprocessing or with attributes of no known form.
        WeightsError: the file is missing or unreadable, its names or shapes do not match the model's, or a weight is
            not a number.
        MissingExtraError: torchvision or timm is not installed.
        UsageError: fewer than two classes, ``classes`` for a callable or file, ``weights`` for a file, or means and
            deviations for pixels of another range.
    """
    if classes is not None and classes < 2:
        raise UsageError(f"a classifier needs two classes or more, not {classes}")
    request, load = _requested(specification, input_shape, classes, pixels or Pixels())
    if load is load_file and weights is not None:
        raise UsageError(f"{Path(specification).name} holds its weights", hint="leave --weights out")
    if input_shape is not None and len(input_shape) != 3 and load not in _WITH_OTHER_INPUTS:
        raise UsageError("the shape of an image is channels x height x width, for example 3x224x224")
    with _seeded():
        model = load(request)
        if load not in (*_WITH_OTHER_INPUTS, load_file) and input_shape is not None:
            check_takes(model.module, input_shape, request)
    model = replace(model, preprocessing=_overridden(model.preprocessing, request.pixels))
    model.module.to(device="cpu", dtype=torch.float32).eval()
    if weights is not None:
        removed = "; ".join(load_weights(model.module, weights))
        require_finite(model.module)
        said = f" (without {removed})" if removed else ""
        return replace(model, source=f"{model.source}, weights from {weights.name}{said}")
    require_finite(model.module)
    if load in _WITH_OWN_WEIGHTS:
        return model
    return replace(model, source=f"{model.source}, random weights (seed {RANDOM_WEIGHTS_SEED})")


def _overridden(own: AnyPreprocessing, pixels: Pixels) -> AnyPreprocessing:
    """``own`` with what the user says of pixels (UsageError)."""
    if isinstance(own, Preprocessing):
        chosen = pixels.applied_to(own)
        require_fitting_scale(chosen)
        return chosen
    if pixels != Pixels():
        raise UsageError("preprocessing, interpolation and crop are of images; this model takes none")
    return own


def _requested(
    specification: str, input_shape: Shape | None, classes: int | None, pixels: Pixels
) -> tuple[ModelRequest, Load]:
    """The request, and the function that loads it: by the scheme, or of a file by its suffix."""
    path, (scheme, _, name) = Path(specification), specification.partition(":")
    if scheme not in _SCHEMES and path.suffix.lower() in IMPORTERS:
        return ModelRequest(specification, path.suffix.lower(), path.stem, input_shape, classes, pixels), load_file
    if not scheme or not name:
        raise ModelLoadError(f"{specification!r} does not name a model", hint=WRITE)
    request = ModelRequest(specification, scheme, name, input_shape, classes, pixels, tuple(_SCHEMES))
    return request, _SCHEMES.get(scheme, load_callable)


@contextlib.contextmanager
def _seeded() -> Iterator[None]:
    """Seed torch's generator inside the context, and restore its state afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(RANDOM_WEIGHTS_SEED)
        yield
