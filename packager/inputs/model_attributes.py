"""Users' modules without the wrappers of training, and their attributes, in the forms that libraries give them:
validated once, into the types used inside.

Every function raises ModelLoadError with one line that names the attribute, what it holds, and a form that is taken.
"""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from device_sdk.data.preprocessing import Interpolation, Preprocessing
from packager.errors import ModelLoadError
from packager.inputs.pixels import nearest_interpolation

_CHANNELS = 3  # of a model whose first layer does not say
_BICUBIC = 3  # Pillow's number, as image processors have it

_SHAPE_HINT = "input_shape is channels, height, width, for example (3, 224, 224), or one side in pixels"
_NAMES_HINT = "class_names is one name for each output, in their order, or a dict from position to name (id2label)"
_PIXELS_HINT = (
    "preprocessing is a dict with mean and std, a data config of timm, torchvision's transforms(), or a"
    " device_sdk.data.preprocessing.Preprocessing"
)

_Settings = dict[str, Any]
# The attribute that holds the wrapped module, by the wrapper's class.
_INSIDE = {
    "OptimizedModule": "_orig_mod",  # torch.compile
    "DataParallel": "module",
    "DistributedDataParallel": "module",
    "AveragedModel": "module",
    "EMAModel": "module",
    "ModelEma": "module",  # timm
    "ModelEmaV2": "module",
    "ModelEmaV3": "module",
}


def input_shape_of(value: object, module: nn.Module) -> tuple[int, int, int]:
    """Channels, height and width: from these, a side, height and width, or a shape with a batch of one before them."""
    sides = (value, value) if isinstance(value, numbers.Integral) else value
    if not isinstance(sides, Iterable) or isinstance(sides, (str, bytes, Mapping)):
        raise ModelLoadError(f"the attribute input_shape is {_shown(value)}", hint=_SHAPE_HINT)
    shape = [_whole(side) for side in sides]
    if len(shape) == 4 and shape[0] == 1:
        shape = shape[1:]
    if len(shape) == 2:
        shape = [_first_channels(module), *shape]
    if len(shape) != 3 or not all(side > 0 for side in shape):
        raise ModelLoadError(f"the attribute input_shape is {_shown(value)}", hint=_SHAPE_HINT)
    return shape[0], shape[1], shape[2]


def class_names_of(value: object) -> tuple[str, ...] | None:
    """One name for each output, from a sequence of texts or numbers, id2label or label2id; None from None."""
    if value is None:
        return None
    listed = _by_position(value) if isinstance(value, Mapping) else value
    listed = listed.tolist() if hasattr(listed, "tolist") else listed  # arrays and tensors
    if isinstance(listed, (str, bytes, set, frozenset)) or not isinstance(listed, Iterable):
        raise ModelLoadError(f"the attribute class_names is {_shown(value)}", hint=_NAMES_HINT)
    names = list(listed)
    odd = [name for name in names if not isinstance(name, (str, numbers.Integral)) or isinstance(name, bool)]
    if odd:
        raise ModelLoadError(f"the attribute class_names holds {_shown(odd[0])}, which is no name", hint=_NAMES_HINT)
    found = tuple(str(name).strip() for name in names)
    if len(found) < 2 or not all(found):
        why = "an empty name" if len(found) > 1 else f"{len(found)} names; a classifier has two or more"
        raise ModelLoadError(f"the attribute class_names holds {why}", hint=_NAMES_HINT)
    twice = next((name for name in found if found.count(name) > 1), None) if len(set(found)) < len(found) else None
    if twice is not None:
        raise ModelLoadError(f"the attribute class_names holds {twice!r} more than once", hint=_NAMES_HINT)
    return found


def preprocessing_of(value: object, input_shape: tuple[int, int, int]) -> Preprocessing | None:
    """The preprocessing that ``value`` describes; None from None. A dict's means above 1 are of pixels 0 to 255."""
    if value is None or isinstance(value, Preprocessing):
        return value
    if isinstance(value, type) or not isinstance(value, Mapping):
        return _normalised(_settings_of_transforms(value), value, input_shape)
    return _normalised(_settings_of_dict(value), value, input_shape)


def _by_position(value: Mapping[Any, Any]) -> list[Any]:
    """The names of id2label in the order of its keys, or the keys of label2id in the order of its values."""
    positions = {_position(key): name for key, name in value.items()}
    if None in positions:
        positions = {_position(number): name for name, number in value.items()}
    if set(positions) != set(range(len(value))):
        raise ModelLoadError("the attribute class_names does not name every output from 0 on", hint=_NAMES_HINT)
    return [positions[number] for number in range(len(value))]


def _position(value: object) -> int | None:
    if isinstance(value, numbers.Integral):
        return int(value)
    return int(value) if isinstance(value, str) and value.isdecimal() else None


def _first_channels(module: nn.Module) -> int:
    convolutions = (layer for layer in module.modules() if isinstance(layer, nn.Conv2d))
    return next((layer.in_channels for layer in convolutions), _CHANNELS)


def _whole(side: object) -> int:
    return int(side) if isinstance(side, numbers.Integral) and not isinstance(side, bool) else 0


# Settings: mean, std, and what else is known of scale, interpolation and crop


def _settings_of_dict(value: Mapping[Any, Any]) -> _Settings:
    """The settings in a data config of timm, an image processor's config, or a dict of one's own."""
    found: _Settings = {
        "mean": value.get("mean", value.get("image_mean")),
        "std": value.get("std", value.get("image_std")),
        "scale": value.get("scale", value.get("rescale_factor")),
        "interpolation": value.get("interpolation", value.get("resample")),
        "crop": value.get("crop", value.get("crop_pct")),
    }
    if value.get("crop_mode") == "squash":
        found["crop"] = None
    if value.get("do_normalize") is False:
        found |= {"mean": 0.0, "std": 1.0}
    return found


def _settings_of_transforms(value: object) -> _Settings:
    """The settings of torchvision's ``weights.transforms()`` or a ``Compose`` of its transforms."""
    if hasattr(value, "mean") and hasattr(value, "std") and hasattr(value, "crop_size"):
        steps: _Settings = {
            "mean": value.mean,
            "std": value.std,
            "interpolation": getattr(value, "interpolation", None),
        }
        resized = getattr(value, "resize_size", None)
        return steps | {"crop": _share(value.crop_size, resized)}
    found: _Settings = {}
    resized = None
    for step in _steps(value):
        kind = type(step).__name__
        if kind == "Normalize":
            found |= {"mean": step.mean, "std": step.std}
        elif kind == "Resize":
            resized, found["interpolation"] = step.size, getattr(step, "interpolation", None)
        elif kind == "CenterCrop":
            found["crop"] = _share(step.size, resized)
        elif kind not in ("ToTensor", "PILToTensor", "ToImage", "ToDtype", "ConvertImageDtype", "MaybeToTensor"):
            raise ModelLoadError(
                f"the attribute preprocessing has a step {kind}, which devices lack", hint=_PIXELS_HINT
            )
    return found if "mean" in found else found | {"mean": 0.0, "std": 1.0}


def _steps(value: object) -> Sequence[Any]:
    steps = getattr(value, "transforms", None)
    if not isinstance(steps, Sequence) or isinstance(steps, str):
        raise ModelLoadError(f"the attribute preprocessing is {_shown(value)}", hint=_PIXELS_HINT)
    return steps


def _share(crop: object, resized: object) -> float | None:
    """The crop as a share of what it is cut from; None if one of them is unknown."""
    inner, outer = _side(crop), _side(resized)
    return min(inner / outer, 1.0) if inner and outer else None


def _side(size: object) -> int | None:
    if isinstance(size, Sequence) and not isinstance(size, str) and size:
        size = min(size)
    return int(size) if isinstance(size, numbers.Integral) else None


def _normalised(found: _Settings, value: object, input_shape: tuple[int, int, int]) -> Preprocessing:
    """The settings as a Preprocessing for a model that takes ``input_shape``."""
    channels = input_shape[0]
    mean, std = (_per_channel(found.get(name), channels) for name in ("mean", "std"))
    if mean is None or std is None:
        raise ModelLoadError(
            f"the attribute preprocessing, {_shown(value)}, lacks mean and std for {channels} channels",
            hint=_PIXELS_HINT,
        )
    scale = found.get("scale")
    try:
        return Preprocessing(
            scale=float(scale) if scale is not None else 1.0 if max(mean) > 1 else 1 / 255,
            mean=mean,
            std=std,
            resize=input_shape[1:] if channels in (1, 3) else None,
            channels=channels,
            interpolation=_interpolation(found.get("interpolation")),
            crop=None if found.get("crop") is None else min(float(found["crop"]), 1.0),
        )
    except (TypeError, ValueError) as error:
        raise ModelLoadError(f"the attribute preprocessing cannot be used: {error}", hint=_PIXELS_HINT) from error


def _per_channel(value: object, channels: int) -> tuple[float, ...] | None:
    """One number for each channel; None if ``value`` is not that."""
    value = value.tolist() if hasattr(value, "tolist") else value
    listed = (value,) if isinstance(value, numbers.Real) else value
    if not isinstance(listed, Sequence) or not all(isinstance(number, numbers.Real) for number in listed):
        return None
    spread = tuple(map(float, listed)) * (channels if len(listed) == 1 else 1)
    return spread if len(spread) == channels else None


def _interpolation(value: object) -> Interpolation:
    if isinstance(value, numbers.Integral):
        return "bicubic" if int(value) == _BICUBIC else "bilinear"
    return nearest_interpolation(str(getattr(value, "value", value)).lower())


def _shown(value: object) -> str:
    """A value in a message: short, in one line."""
    text = " ".join(repr(value).split())
    return f"{text[:60]}…" if len(text) > 60 else text


def unwrapped(module: nn.Module) -> nn.Module:
    """The module inside its wrappers, and without those around its parts; attributes of a wrapper stay readable.

    ``module`` itself is changed where parts of it are wrapped. What ``module.compile()`` set is removed.

    Raises:
        ModelLoadError: a TorchScript module, which cannot be cut.
    """
    bare = _inside(module)
    for layer in list(bare.modules()):
        for name, part in list(layer.named_children()):
            if _inside(part) is not part:
                setattr(layer, name, _inside(part))
    for layer in bare.modules():
        if isinstance(layer, torch.jit.ScriptModule):
            raise ModelLoadError(
                f"the model holds a TorchScript module ({layer.original_name}), which cannot be cut into blocks",
                hint="return the nn.Module that was scripted or traced",
            )
        if layer._compiled_call_impl is not None:
            layer._compiled_call_impl = None
    return bare


def attribute_of(module: nn.Module, name: str) -> object:
    """An attribute of a module, or of what it wraps, outermost first; None if none has it."""
    while True:
        found = getattr(module, name, None)
        inner = _next(module)
        if found is not None or inner is None:
            return found
        module = inner


def _inside(module: nn.Module) -> nn.Module:
    inner = _next(module)
    return module if inner is None else _inside(inner)


def _next(module: nn.Module) -> nn.Module | None:
    """The module that a wrapper holds; None if ``module`` is no wrapper."""
    attribute = _INSIDE.get(type(module).__name__)
    inner = None if attribute is None else getattr(module, attribute, None)
    return inner if isinstance(inner, nn.Module) else None
