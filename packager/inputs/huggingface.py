"""Models in a Hugging Face folder: config.json, model.safetensors, preprocessor_config.json or tokenizer.json.

Everything is read from the folder: nothing is downloaded, no code of the folder runs, and weights are safetensors
alone. What the folder may hold is checked before transformers sees it.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn

from device_sdk.data.kinds.texts import MAX_TOKENS
from device_sdk.data.preprocessing import AnyPreprocessing
from device_sdk.errors import UsageError
from device_sdk.extras import require
from packager.errors import ModelLoadError, WeightsError
from packager.inputs.image_processor import ProcessedImages, read_processor, resizing_whole
from packager.inputs.loaded_model import LoadedModel
from packager.inputs.model_attributes import class_names_of
from packager.inputs.pixels import Pixels
from packager.inputs.set_detector import cells_of_boxes
from packager.inputs.sound_extractor import EXTRACTOR_TYPE, FromSounds, SoundExtractor
from packager.inputs.text_input import FromRows, TokensFromRows, text_input
from packager.zoo.bert_family import first_token_classifier, token_classifier

CONFIG, PROCESSOR, WEIGHTS, SHARDS, CARD = (
    *("config.json", "preprocessor_config.json", "model.safetensors", "model.safetensors.index.json"),
    "README.md",
)
# The end of an architecture's name, and the class that loads it.
TASKS = {
    "ForImageClassification": "AutoModelForImageClassification",
    "ForImageClassificationWithTeacher": "AutoModelForImageClassification",
    "ForSemanticSegmentation": "AutoModelForSemanticSegmentation",
    "ForObjectDetection": "AutoModelForObjectDetection",
    "ForSequenceClassification": "AutoModelForSequenceClassification",
    "ForTokenClassification": "AutoModelForTokenClassification",
}
_OF_TEXTS, _OF_TOKENS = "AutoModelForSequenceClassification", "AutoModelForTokenClassification"
_OF_SOUNDS, _OF_BOXES = "AutoModelForAudioClassification", "AutoModelForObjectDetection"
TOKENIZER, _TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
_POSITIONS_BEHIND_PADDING = ("roberta", "xlm-roberta", "camembert", "xlm-roberta-xl", "roberta-prelayernorm")
_MOST_BYTES = 16_000_000  # of a JSON file
_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".h5", ".msgpack")
_REFUSED = {  # in config.json: loads more than the folder, or weights that are not plain numbers
    "quantization_config": "its weights are quantised",
    "use_pretrained_backbone": "its backbone would be downloaded",
}
_LICENCE = re.compile(r"^license:\s*['\"]?([A-Za-z0-9_.+-]+)['\"]?\s*$", re.MULTILINE)
_NAMED = 3


class Logits(nn.Module):
    """The logits alone of a model of transformers: images [batch, channels, h, w] -> [batch, classes], of pixels
    [batch, classes, rows, columns].

    ``reversed_channels``: the model takes blue first, the wrapper red.
    """

    def __init__(self, model: nn.Module, *, reversed_channels: bool = False) -> None:
        super().__init__()
        self.model = model
        self.reversed_channels = reversed_channels

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """See the class."""
        logits = self.model(pixel_values=images.flip(1) if self.reversed_channels else images).logits
        return torch.as_tensor(logits)


def load_folder(
    name: str, *, input_shape: tuple[int, ...] | None = None, classes: int | None = None, pixels: Pixels
) -> LoadedModel:
    """The model in the folder ``name``, its preprocessing and its classes. Nothing is downloaded or run from it.

    ``pixels`` with a normalisation takes the place of the folder's processor; without a processor it is required. Of a
    model of texts, ``input_shape`` is [2, tokens]: fewer tokens than its own.

    Raises:
        ModelLoadError: no such folder, another task, code of its own, or a processor that devices cannot follow.
        WeightsError: no safetensors, or tensors that do not fit the model.
        MissingExtraError: transformers is not installed.
        UsageError: ``classes`` is given, which the folder states itself.
    """
    if classes is not None:
        raise UsageError("the number of classes cannot be set for hf:FOLDER", hint="its config.json says it (id2label)")
    folder = Path(name)
    config = _config(folder)
    sound = _is_of_sounds(config, folder)
    loader = _OF_SOUNDS if sound else _loader(config, folder)
    _require_safetensors(folder)
    transformers = require("transformers", extra="huggingface")
    with _quiet(transformers):
        masked = loader in (_OF_TEXTS, _OF_TOKENS, _OF_SOUNDS, _OF_BOXES)  # masks go along as numbers
        eager = {"attn_implementation": "eager"} if masked else {}
        extracted = SoundExtractor.of(_read(folder / PROCESSOR) or {}, input_shape, folder.name) if sound else None
        model, notes = _load(getattr(transformers, loader), folder, **eager)
        if extracted is not None:
            prepared = _sounds(model, extracted)
        elif loader in (_OF_TEXTS, _OF_TOKENS):
            prepared = _texts(model, folder, config, input_shape, of_tokens=loader == _OF_TOKENS)
        else:
            of_boxes, shape = loader == _OF_BOXES, _of_images(input_shape)
            images = _images(transformers, folder, config, shape, pixels, whole=of_boxes)
            prepared = _boxes(model, images) if of_boxes else _pictures(model, images)
    return LoadedModel(
        module=prepared.module,
        input_shape=input_shape or prepared.input_shape,
        preprocessing=prepared.preprocessing,
        class_names=_class_names(model.config),
        name=folder.resolve().name,
        licence=_licence(folder),
        source=f"{type(model).__name__} of transformers {transformers.__version__}, from a folder",
        notes=(*notes, *prepared.notes),
        blobs=prepared.blobs,
        weights_inside=True,
    )


@dataclass(frozen=True, eq=False)
class _Prepared:
    """A model as it is packaged, with what prepares its samples."""

    module: nn.Module
    input_shape: tuple[int, ...]
    preprocessing: AnyPreprocessing
    notes: tuple[str, ...] = ()
    blobs: Mapping[str, bytes] = field(default_factory=dict)


def _pictures(model: nn.Module, images: ProcessedImages) -> _Prepared:
    module = Logits(model, reversed_channels=images.reversed_channels)
    return _Prepared(module, images.input_shape, images.preprocessing, images.notes)


def _boxes(model: nn.Module, images: ProcessedImages) -> _Prepared:
    module = cells_of_boxes(model, images.input_shape[1:])
    return _Prepared(module.eval(), images.input_shape, images.preprocessing, images.notes)


def _sounds(model: nn.Module, extracted: SoundExtractor) -> _Prepared:
    module = FromSounds(model, extracted.front).eval()
    shape = (1, extracted.preprocessing.window_samples)
    return _Prepared(module, shape, extracted.preprocessing, extracted.notes)


def _of_images(input_shape: tuple[int, ...] | None) -> tuple[int, int, int] | None:
    if input_shape is None:
        return None
    if len(input_shape) != 3:
        raise UsageError("the shape of an image is channels x height x width, for example 3x224x224")
    return input_shape[0], input_shape[1], input_shape[2]


def _texts(
    model: nn.Module,
    folder: Path,
    config: Mapping[str, Any],
    input_shape: tuple[int, ...] | None,
    *,
    of_tokens: bool,
) -> _Prepared:
    """A model of texts with the folder's tokenizer, at its own number of tokens or fewer."""
    if not (folder / TOKENIZER).is_file():
        raise ModelLoadError(
            f"{folder} has no {TOKENIZER}: the tokens of its texts are unknown",
            hint="AutoTokenizer.from_pretrained(NAME).save_pretrained(FOLDER) writes it",
        )
    most = _most_tokens(folder, config)
    tokens = most if input_shape is None else input_shape[-1]
    if input_shape is not None and (len(input_shape) != 2 or not 2 <= tokens <= most):
        raise UsageError(f"the shape of texts is 2, tokens; {folder.name} takes at most {most} tokens")
    preprocessing, blobs = text_input(folder / TOKENIZER, max_tokens=tokens)
    module = (
        token_classifier(model, config) or TokensFromRows(model)
        if of_tokens
        else first_token_classifier(model, config) or FromRows(model)
    )
    return _Prepared(module, (preprocessing.rows, tokens), preprocessing, blobs=blobs)


def _most_tokens(folder: Path, config: Mapping[str, Any]) -> int:
    """The tokens of the longest text, as the tokenizer's settings and the model's positions allow."""
    positions = _whole(config.get("max_position_embeddings"))
    if positions is not None and config.get("model_type") in _POSITIONS_BEHIND_PADDING:
        positions -= 1 + (_whole(config.get("pad_token_id")) or 0)
    stated = _whole((_read(folder / _TOKENIZER_CONFIG) or {}).get("model_max_length"))
    known = [one for one in (positions, stated, MAX_TOKENS) if one is not None and one > 1]
    return min(known)


def _config(folder: Path) -> dict[str, Any]:
    """config.json, after checks of what it and the processor's file ask for."""
    if not folder.is_dir():
        raise ModelLoadError(
            f"{folder} is no folder",
            hint="hf: takes a local folder with config.json and model.safetensors; nothing is downloaded",
        )
    config = _read(folder / CONFIG)
    if config is None:
        raise ModelLoadError(f"{folder} has no {CONFIG}", hint="a folder as save_pretrained or `hf download` writes it")
    for file, content in ((CONFIG, config), (PROCESSOR, _read(folder / PROCESSOR) or {})):
        if "auto_map" in content or "custom_pipelines" in content:
            raise ModelLoadError(
                f"{file} of {folder} asks for code of its own (auto_map), which is never run",
                hint="build the model yourself and package it as module:callable, or remove the entry if transformers"
                " knows the architecture",
            )
    for key, reason in _REFUSED.items():
        if config.get(key):
            raise ModelLoadError(f"{folder} cannot be packaged: {reason} ({key})", hint="save the model without it")
    if (folder / "adapter_config.json").exists():
        raise ModelLoadError(
            f"{folder} holds an adapter of another model", hint="merge them (merge_and_unload) and save the result"
        )
    return config


def _read(path: Path) -> dict[str, Any] | None:
    """A JSON object; None if there is no such file."""
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ModelLoadError(f"{path} cannot be read: {error.strerror}") from error
    try:
        found = json.loads(data) if len(data) <= _MOST_BYTES else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ModelLoadError(f"{path} is not a JSON object of at most {_MOST_BYTES // 1_000_000} MB")
    return found


def _is_of_sounds(config: Mapping[str, Any], folder: Path) -> bool:
    """True of a classifier with a feature extractor; those of raw sound are named as classifiers of sequences."""
    if EXTRACTOR_TYPE not in (_read(folder / PROCESSOR) or {}):
        return False
    names = config.get("architectures")
    ends = ("ForSequenceClassification", "ForAudioClassification")
    return isinstance(names, list) and any(isinstance(name, str) and name.endswith(ends) for name in names)


def _loader(config: Mapping[str, Any], folder: Path) -> str:
    """The name of the class of transformers that loads the folder's architecture."""
    names = config.get("architectures")
    names = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
    for name in names:
        task = "For" + name.rpartition("For")[2]
        if task in TASKS:
            return TASKS[task]
    if not names and isinstance(config.get("architecture"), str):
        raise ModelLoadError(
            f"{folder} is a model of timm", hint=f"--model timm:{config['architecture']} --weights FOLDER/{WEIGHTS}"
        )
    raise ModelLoadError(
        f"{folder} holds {names[0] if names else 'a model without a task'}; only classification of images,"
        " texts, tokens and sounds, semantic segmentation and boxes are taken from hf: folders so far",
        hint="build the model in a callable, --model module:callable",
    )


def _require_safetensors(folder: Path) -> None:
    if (folder / WEIGHTS).is_file():
        return
    index = _read(folder / SHARDS)
    if index is not None:
        _require_shards(folder, index)
        return
    pickled = sorted(path.name for path in folder.iterdir() if path.suffix in _PICKLED)
    if pickled:
        raise WeightsError(
            f"{folder} has its weights in {pickled[0]}, which is not opened: pickles run code",
            hint="load the model where you trust it and save it again: model.save_pretrained(FOLDER)",
        )
    raise WeightsError(f"{folder} has no {WEIGHTS}")


def _require_shards(folder: Path, index: Mapping[str, Any]) -> None:
    named = index.get("weight_map")
    shards = set(named.values()) if isinstance(named, dict) else set()
    for shard in sorted(map(str, shards)):
        if Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise WeightsError(f"{SHARDS} of {folder} names {shard!r}, which is no safetensors file of the folder")
        if not (folder / shard).is_file():
            raise WeightsError(f"{folder} lacks {shard}, which {SHARDS} names")
    if not shards:
        raise WeightsError(f"{SHARDS} of {folder} names no files")


@contextlib.contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """No log lines and no progress bars of transformers: errors are raised, and the rest is in our notes."""
    logging = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _load(loader: Any, folder: Path, **options: object) -> tuple[Any, tuple[str, ...]]:
    """The model with all of its weights, and a note on tensors that it has no place for."""
    try:
        model, report = loader.from_pretrained(
            folder,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            dtype=torch.float32,
            output_loading_info=True,
            **options,
        )
    except Exception as error:  # a constructor may raise anything
        raise ModelLoadError(f"{folder} cannot be loaded: {_first_line(error)}") from error
    lacking = sorted(report["missing_keys"]) or sorted(map(str, report["mismatched_keys"]))
    if lacking:
        raise WeightsError(
            f"{WEIGHTS} of {folder} does not fit {CONFIG}: {_listed(lacking)} missing or of another shape",
            hint="a base model without a head has to be trained first",
        )
    unused = sorted(report["unexpected_keys"])
    notes = (f"{len(unused)} tensors of the folder are not used: {_listed(unused)}",) if unused else ()
    return model, notes


def _images(
    transformers: Any,
    folder: Path,
    config: Mapping[str, Any],
    input_shape: tuple[int, int, int] | None,
    pixels: Pixels,
    *,
    whole: bool = False,
) -> ProcessedImages:
    """The folder's preprocessing, or that of ``pixels``, which has a normalisation, at the model's own size.

    ``whole``: images are resized to one size, whatever their shape, as targets that are of all that they show require.
    """
    channels = _whole(config.get("num_channels")) or 3
    given = pixels.alone(input_shape[0] if input_shape else channels)
    if given is not None:
        shape = input_shape or _own_shape(config, channels)
        if shape is None:
            raise ModelLoadError(
                f"the input shape of {folder} is unknown", hint="give --input-shape, such as 3x224x224"
            )
        return ProcessedImages(given, shape)
    if not (folder / PROCESSOR).is_file():
        raise ModelLoadError(
            f"{folder} has no {PROCESSOR}: the preprocessing of its images is unknown",
            hint="give --preprocessing imagenet, inception, unit or MEAN/STD, and --interpolation and --crop",
        )
    try:
        processor = transformers.AutoImageProcessor.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, backend="pil"
        )
    except Exception as error:  # a constructor may raise anything
        raise ModelLoadError(f"{PROCESSOR} of {folder} cannot be used: {_first_line(error)}") from error
    if whole:
        processor = resizing_whole(processor, None if input_shape is None else input_shape[1:])
    found = read_processor(processor, channels=channels)
    if input_shape is None:
        return found
    resized = msgspec.structs.replace(found.preprocessing, resize=input_shape[1:])
    return replace(found, preprocessing=resized, input_shape=input_shape)


def _own_shape(config: Mapping[str, Any], channels: int) -> tuple[int, int, int] | None:
    size = config.get("image_size")
    sides = size if isinstance(size, list) and len(size) == 2 else [size, size]
    height, width = (_whole(side) for side in sides)
    return (channels, height, width) if height and width else None


def _whole(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _class_names(config: Any) -> tuple[str, ...] | None:
    """The names of id2label, shared ones with their position; None for placeholders LABEL_0, LABEL_1 …"""
    labels = {position: str(label).strip() for position, label in config.id2label.items()}
    if all(re.fullmatch(r"LABEL_\d+", label) for label in labels.values()):
        return None
    count = Counter(labels.values())
    return class_names_of(
        {position: f"{label} ({position})" if count[label] > 1 else label for position, label in labels.items()}
    )


def _licence(folder: Path) -> str | None:
    """The licence that the front matter of the folder's model card names; None without one."""
    try:
        with (folder / CARD).open(encoding="utf-8", errors="replace") as file:
            opened, _, rest = file.read(_MOST_BYTES).partition("---\n")
    except OSError:
        return None
    found = None if opened.strip() else _LICENCE.search(rest.partition("\n---")[0])
    return found[1] if found else None


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
