"""Loads a torch module for packaging from a specification such as ``zoo:resnet20_cifar10`` and a weights file."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType

import torch
from torch import nn

from device_sdk.data.preprocessing import AnyPreprocessing, Preprocessing
from device_sdk.errors import PathweaveError, UsageError
from device_sdk.extras import require
from packager.errors import ModelLoadError
from packager.inputs.answer_checks import require_one_tensor
from packager.inputs.huggingface import load_folder
from packager.inputs.imported_model import ImportedModel, require_images, stored_value
from packager.inputs.model_attributes import attribute_of, class_names_of, input_shape_of, preprocessing_of, unwrapped
from packager.inputs.noise import noise
from packager.inputs.pixels import Pixels, nearest_interpolation, require_fitting_scale
from packager.inputs.sample_inputs import SampleInput, sample_input_of
from packager.inputs.text_input import text_input
from packager.inputs.weights import load_weights, require_finite
from packager.zoo import ZOO
from packager.zoo.text_folder import TextFolder

Shape = tuple[int, ...]  # channels, then height and width, or a length

RANDOM_WEIGHTS_SEED = 0
_WRITE = "write zoo:NAME, torchvision:NAME, timm:NAME, hf:FOLDER, bert:FOLDER, module:callable, FILE.pt2 or FILE.onnx"
_WITH_AUXILIARY_HEADS = frozenset({"googlenet", "inception_v3"})


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model to be packaged.

    ``module`` is in evaluation mode, float32, on the CPU; [batch, *input_shape] -> logits [batch, classes].
    ``input_shape`` is [channels, height, width]; of texts [rows, tokens], of sounds [1, samples]. ``class_names`` and
    ``licence`` are None if unknown; ``source``: the
    origin of module and weights. ``class_ids``: additional names of each class, or empty. ``notes``: sentences on what
    is unusual about the model. ``blobs``: what its preprocessing needs beside the manifest, by digest.
    ``weights_inside``: it came with its weights, from a file or a folder.
    """

    module: nn.Module
    input_shape: Shape
    preprocessing: AnyPreprocessing
    class_names: tuple[str, ...] | None
    name: str
    licence: str | None
    source: str
    class_ids: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()
    blobs: Mapping[str, bytes] = field(default_factory=dict)
    weights_inside: bool = False

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width (UsageError where the model takes no images)."""
        self.preprocessing.of_images()
        channels, height, width = self.input_shape
        return channels, height, width

    def noise(self, count: int, *, seed: int = 0) -> torch.Tensor:
        """Random samples [count, *input_shape] of the model's kind."""
        return noise(self.preprocessing, self.input_shape, self.blobs, count=count, seed=seed)


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
    if load is _load_file and weights is not None:
        raise UsageError(f"{Path(specification).name} holds its weights", hint="leave --weights out")
    if input_shape is not None and len(input_shape) != 3 and load not in _WITH_OTHER_INPUTS:
        raise UsageError("the shape of an image is channels x height x width, for example 3x224x224")
    with _seeded():
        model = load(request)
        if load not in (*_WITH_OTHER_INPUTS, _load_file) and input_shape is not None:
            _check_takes(model.module, input_shape, request)
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


@dataclass(frozen=True)
class _Request:
    specification: str
    scheme: str
    name: str
    input_shape: Shape | None
    classes: int | None
    pixels: Pixels


def _requested(
    specification: str, input_shape: Shape | None, classes: int | None, pixels: Pixels
) -> tuple[_Request, Callable[[_Request], LoadedModel]]:
    """The request, and the function that loads it: by the scheme, or of a file by its suffix."""
    path, (scheme, _, name) = Path(specification), specification.partition(":")
    if scheme not in _SCHEMES and path.suffix.lower() in _IMPORTERS:
        return _Request(specification, path.suffix.lower(), path.stem, input_shape, classes, pixels), _load_file
    if not scheme or not name:
        raise ModelLoadError(f"{specification!r} does not name a model", hint=_WRITE)
    request = _Request(specification, scheme, name, input_shape, classes, pixels)
    return request, _SCHEMES.get(scheme, _load_callable)


@contextlib.contextmanager
def _seeded() -> Iterator[None]:
    """Seed torch's generator inside the context, and restore its state afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(RANDOM_WEIGHTS_SEED)
        yield


# Schemes: one function each, and a line in _SCHEMES; suffixes of files: a line in _IMPORTERS


def _load_zoo(request: _Request) -> LoadedModel:
    entry = ZOO.get(request.name)
    if entry is None:
        raise _unknown_name(request, ZOO)
    classes = request.classes or len(entry.class_names)
    module = entry.constructor(classes=classes)
    return LoadedModel(
        module=module,
        input_shape=request.input_shape or entry.input_shape,
        preprocessing=entry.preprocessing,
        class_names=entry.class_names if classes == len(entry.class_names) else None,
        name=request.name,
        licence=entry.licence,
        source=entry.source,
    )


def _load_torchvision(request: _Request) -> LoadedModel:
    torchvision = _import_library("torchvision")
    models = torchvision.models
    names = models.list_models(module=models)
    if request.name not in names:
        raise _unknown_name(request, names)
    published = models.get_model_weights(request.name).DEFAULT
    transforms, categories = published.transforms(), tuple(published.meta["categories"])
    options: dict[str, object] = {"num_classes": request.classes or len(categories)}
    mean, std = tuple(transforms.mean), tuple(transforms.std)
    if request.name in _WITH_AUXILIARY_HEADS:
        options |= {"aux_logits": False, "init_weights": True, "transform_input": False}
        mean = std = (0.5, 0.5, 0.5)  # equivalent to transform_input inside the model
    module = _build(lambda: models.get_model(request.name, weights=None, **options), request)
    input_shape = request.input_shape or (3, transforms.crop_size[0], transforms.crop_size[0])
    return LoadedModel(
        module=module,
        input_shape=input_shape,
        preprocessing=Preprocessing(
            scale=1 / 255,
            mean=mean,
            std=std,
            resize=(input_shape[1], input_shape[2]),
            interpolation=nearest_interpolation(transforms.interpolation.value),
            crop=min(transforms.crop_size[0] / transforms.resize_size[0], 1.0),
        ),
        class_names=categories if request.classes in (None, len(categories)) else None,
        name=request.name,
        licence="BSD-3-Clause (architecture)",
        source=f"torchvision {torchvision.__version__}",
    )


def _load_timm(request: _Request) -> LoadedModel:
    timm = _import_library("timm")
    if not timm.is_model(request.name):  # also excludes hub addresses, which timm would download
        raise _unknown_name(request, timm.list_models())
    options = {} if request.classes is None else {"num_classes": request.classes}
    if request.input_shape is not None:
        options["in_chans"] = request.input_shape[0]
    module = _build(lambda: timm.create_model(request.name, pretrained=False, **options), request)
    config = timm.data.resolve_model_data_config(module)
    input_shape = request.input_shape or tuple(config["input_size"])
    channels = input_shape[0]
    return LoadedModel(
        module=module,
        input_shape=input_shape,
        preprocessing=Preprocessing(
            scale=1 / 255,
            mean=_for_channels(config["mean"], channels),
            std=_for_channels(config["std"], channels),
            resize=(input_shape[1], input_shape[2]) if channels in (1, 3) else None,
            channels=channels,
            interpolation=nearest_interpolation(config["interpolation"]),
            crop=None if config["crop_mode"] == "squash" else min(config["crop_pct"], 1.0),
        ),
        class_names=None,
        name=request.name.replace("/", "_"),
        licence="Apache-2.0 (architecture)",
        source=f"timm {timm.__version__}",
    )


def _load_callable(request: _Request) -> LoadedModel:
    if request.classes is not None:
        raise UsageError(f"the number of classes cannot be set for {request.specification}")
    with _current_directory_importable():
        module = _build(_find_callable(request), request)
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
    _check_takes(module, model.input_shape, request, model.noise(1))
    return model


def _image_input(returned: object, module: nn.Module, request: _Request) -> SampleInput:
    own_shape = attribute_of(returned, "input_shape")
    input_shape = request.input_shape or (None if own_shape is None else input_shape_of(own_shape, module))
    if input_shape is None:
        raise ModelLoadError(
            f"the input shape of {request.specification} is unknown",
            hint="give it as channels, height, width, for example 3,224,224",
        )
    _check_takes(module, input_shape, request)
    shape = input_shape[0], input_shape[1], input_shape[2]
    preprocessing = preprocessing_of(attribute_of(returned, "preprocessing"), shape)
    preprocessing = preprocessing or request.pixels.alone(shape[0])
    if preprocessing is None:
        raise ModelLoadError(
            f"the preprocessing of {request.specification} is unknown",
            hint="give --preprocessing imagenet, inception, unit or MEAN/STD, or the module an attribute preprocessing",
        )
    return SampleInput(preprocessing, input_shape)


def _load_bert(request: _Request) -> LoadedModel:
    if request.classes is not None:
        raise UsageError(f"the number of classes cannot be set for {request.specification}")
    path = Path(request.name)
    module = TextFolder.read(path).classifier(max_tokens=request.input_shape[-1] if request.input_shape else None)
    preprocessing, blobs = text_input(module.tokenizer, max_tokens=module.max_tokens)
    return LoadedModel(
        module=module,
        input_shape=(preprocessing.rows, module.max_tokens),
        preprocessing=preprocessing,
        class_names=module.class_names,
        name=path.stem,
        licence=None,
        source=f"bert:{path.name}",
        blobs=blobs,
        weights_inside=True,
    )


def _load_file(request: _Request) -> LoadedModel:
    path = Path(request.specification)
    if request.classes is not None:
        raise UsageError(f"the number of classes cannot be set for {path.name}")
    found = _IMPORTERS[request.scheme](path, request.input_shape)
    input_shape = require_images(found, path.name)
    preprocessing = preprocessing_of(stored_value(found, "preprocessing", path.name), input_shape)
    preprocessing = preprocessing or request.pixels.alone(input_shape[0])
    if preprocessing is None:
        raise ModelLoadError(
            f"the preprocessing of {path.name} is unknown",
            hint="give --preprocessing imagenet, inception, unit or MEAN/STD",
        )
    return LoadedModel(
        module=found.module,
        input_shape=input_shape,
        preprocessing=preprocessing,
        class_names=class_names_of(stored_value(found, "class_names", path.name)),
        name=request.name,
        licence=None,
        source=path.name,
        notes=found.notes,
        weights_inside=True,
    )


def _import_program(path: Path, input_shape: Shape | None) -> ImportedModel:
    from packager.inputs.exported_program.importing import import_program

    return import_program(path, input_shape=input_shape)


def _import_onnx(path: Path, input_shape: Shape | None) -> ImportedModel:
    require("onnx", extra="packager")
    from packager.inputs.onnx_model.importing import import_onnx

    return import_onnx(path, input_shape=input_shape)


_IMPORTERS: Mapping[str, Callable[[Path, Shape | None], ImportedModel]] = {
    ".pt2": _import_program,
    ".onnx": _import_onnx,
}


def _load_huggingface(request: _Request) -> LoadedModel:
    found = load_folder(request.name, input_shape=request.input_shape, classes=request.classes, pixels=request.pixels)
    model = LoadedModel(**vars(found), weights_inside=True)
    _check_takes(model.module, model.input_shape, request, model.noise(1))
    return model


_SCHEMES: Mapping[str, Callable[[_Request], LoadedModel]] = {
    "zoo": _load_zoo,
    "torchvision": _load_torchvision,
    "timm": _load_timm,
    "hf": _load_huggingface,
    "bert": _load_bert,
}
_WITH_OTHER_INPUTS = (_load_callable, _load_bert, _load_huggingface)  # than images
_WITH_OWN_WEIGHTS = (*_WITH_OTHER_INPUTS, _load_file)


def _find_callable(request: _Request) -> Callable[[], nn.Module]:
    try:
        module = importlib.import_module(request.scheme)
    except Exception as error:  # a user's module may raise anything
        missing = isinstance(error, ModuleNotFoundError) and error.name == request.scheme.partition(".")[0]
        if missing:
            raise _unknown_scheme(request.specification) from error
        raise ModelLoadError(f"{request.scheme} cannot be imported: {_reason(error)}") from error
    found = getattr(module, request.name, None)
    if not callable(found):
        names = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise ModelLoadError(f"{request.scheme} has no callable {request.name!r}", hint=_nearest(request.name, names))
    return found


def _build(constructor: Callable[[], nn.Module], request: _Request) -> nn.Module:
    try:
        return constructor()
    except Exception as error:  # a model's constructor may raise anything
        raise ModelLoadError(f"{request.specification} cannot be built: {_reason(error)}") from error


def _check_takes(module: nn.Module, input_shape: Shape, request: _Request, sample: torch.Tensor | None = None) -> None:
    """Run one forward pass, on zeros by default, to report a wrong shape here instead of inside the tracer."""
    sample = torch.zeros(1, *input_shape) if sample is None else sample
    try:
        with torch.no_grad():
            answer = module.float().cpu().eval()(sample)
    except Exception as error:  # a model's forward may raise anything
        raise ModelLoadError(
            f"{request.specification} does not take inputs of shape {tuple(input_shape)}: {_reason(error)}",
            hint="the shape is channels, height, width; of texts rows, tokens; of sounds 1, samples",
        ) from error
    require_one_tensor(answer, request.specification)


def _import_library(name: str) -> ModuleType:
    try:
        return require(name, extra="vision")
    except PathweaveError:
        raise
    except Exception as error:  # with a mismatched build of torch: RuntimeError, operator torchvision::nms
        raise ModelLoadError(
            f"{name} cannot be imported: {_reason(error)}",
            hint=f"install a build of {name} for torch {torch.__version__}",
        ) from error


@contextlib.contextmanager
def _current_directory_importable() -> Iterator[None]:
    sys.path.insert(0, os.getcwd())
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(os.getcwd())


def _for_channels(values: Sequence[float], channels: int) -> tuple[float, ...]:
    """One value per channel: the published ones if their number fits, else their mean."""
    return tuple(values) if len(values) == channels else (sum(values) / len(values),) * channels


def _unknown_scheme(specification: str) -> ModelLoadError:
    scheme = specification.partition(":")[0]
    return ModelLoadError(
        f"unknown model {specification!r}: {scheme!r} is neither a scheme nor a module",
        hint=_nearest(scheme, _SCHEMES) or _WRITE,
    )


def _unknown_name(request: _Request, names: Iterable[str]) -> ModelLoadError:
    return ModelLoadError(
        f"{request.scheme} has no model {request.name!r}",
        hint=_nearest(request.name, names) or "look the name up in its documentation",
    )


def _nearest(name: str, names: Iterable[str]) -> str | None:
    close = difflib.get_close_matches(name, list(names), n=3, cutoff=0.5)
    return f"did you mean {' or '.join(close)}?" if close else None


def _reason(error: BaseException) -> str:
    """The first line of an error's message, or its type."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
