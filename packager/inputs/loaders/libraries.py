"""Models by name: of our zoo, of torchvision and of timm."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import torch

from device_sdk.data.preprocessing import Preprocessing
from device_sdk.errors import PathweaveError
from device_sdk.extras import require
from packager.errors import ModelLoadError
from packager.inputs.loaded_model import LoadedModel
from packager.inputs.loaders.request import ModelRequest, build, reason, unknown_name
from packager.inputs.pixels import nearest_interpolation
from packager.zoo import ZOO

_WITH_AUXILIARY_HEADS = frozenset({"googlenet", "inception_v3"})


def load_zoo(request: ModelRequest) -> LoadedModel:
    """A model of ``packager.zoo``."""
    entry = ZOO.get(request.name)
    if entry is None:
        raise unknown_name(request, ZOO)
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


def load_torchvision(request: ModelRequest) -> LoadedModel:
    """A classification model of torchvision, without its weights."""
    torchvision = _import_library("torchvision")
    models = torchvision.models
    names = models.list_models(module=models)
    if request.name not in names:
        raise unknown_name(request, names)
    published = models.get_model_weights(request.name).DEFAULT
    transforms, categories = published.transforms(), tuple(published.meta["categories"])
    options: dict[str, object] = {"num_classes": request.classes or len(categories)}
    mean, std = tuple(transforms.mean), tuple(transforms.std)
    if request.name in _WITH_AUXILIARY_HEADS:
        options |= {"aux_logits": False, "init_weights": True, "transform_input": False}
        mean = std = (0.5, 0.5, 0.5)  # equivalent to transform_input inside the model
    module = build(lambda: models.get_model(request.name, weights=None, **options), request)
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


def load_timm(request: ModelRequest) -> LoadedModel:
    """A model of timm, without its weights."""
    timm = _import_library("timm")
    if not timm.is_model(request.name):  # also excludes hub addresses, which timm would download
        raise unknown_name(request, timm.list_models())
    options = {} if request.classes is None else {"num_classes": request.classes}
    if request.input_shape is not None:
        options["in_chans"] = request.input_shape[0]
    module = build(lambda: timm.create_model(request.name, pretrained=False, **options), request)
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


def _import_library(name: str) -> ModuleType:
    try:
        return require(name, extra="vision")
    except PathweaveError:
        raise
    except Exception as error:  # with a mismatched build of torch: RuntimeError, operator torchvision::nms
        raise ModelLoadError(
            f"{name} cannot be imported: {reason(error)}",
            hint=f"install a build of {name} for torch {torch.__version__}",
        ) from error


def _for_channels(values: Sequence[float], channels: int) -> tuple[float, ...]:
    """One value per channel: the published ones if their number fits, else their mean."""
    return tuple(values) if len(values) == channels else (sum(values) / len(values),) * channels
