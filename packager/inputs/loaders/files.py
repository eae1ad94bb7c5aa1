"""Models in files, ``.pt2`` and ``.onnx``, and in folders of Hugging Face and of our text encoders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from device_sdk.errors import UsageError
from device_sdk.extras import require
from packager.errors import ModelLoadError
from packager.inputs.huggingface import load_folder
from packager.inputs.imported_model import ImportedModel, require_images, stored_value
from packager.inputs.loaded_model import LoadedModel, Shape
from packager.inputs.loaders.request import ModelRequest, check_takes
from packager.inputs.model_attributes import class_names_of, preprocessing_of
from packager.inputs.text_input import text_input
from packager.zoo.text_folder import TextFolder


def load_bert(request: ModelRequest) -> LoadedModel:
    """A text classifier that ``packager.zoo.fit_text`` wrote."""
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


def load_file(request: ModelRequest) -> LoadedModel:
    """A model of ``torch.export.save`` or ``torch.onnx.export``, weights inside."""
    path = Path(request.specification)
    if request.classes is not None:
        raise UsageError(f"the number of classes cannot be set for {path.name}")
    found = IMPORTERS[request.scheme](path, request.input_shape)
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


IMPORTERS: Mapping[str, Callable[[Path, Shape | None], ImportedModel]] = {
    ".pt2": _import_program,
    ".onnx": _import_onnx,
}


def load_huggingface(request: ModelRequest) -> LoadedModel:
    """A folder of Hugging Face; see ``huggingface.load_folder``."""
    model = load_folder(request.name, input_shape=request.input_shape, classes=request.classes, pixels=request.pixels)
    check_takes(model.module, model.input_shape, request, model.noise(1))
    return model
