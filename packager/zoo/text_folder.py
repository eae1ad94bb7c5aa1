"""A text classifier as a folder: ``config.json`` and ``tokenizer.json`` as Hugging Face writes them for a BERT encoder,
and ``model.safetensors`` with the encoder's weights and the classifier's.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from safetensors.torch import load, save
from torch import Tensor

from device_sdk.errors import PathweaveError
from device_sdk.files.atomic import write_atomically
from packager.errors import ModelLoadError, WeightsError
from packager.zoo.text_encoder import EncoderSize, TextClassifier

CONFIG, TOKENIZER, WEIGHTS = "config.json", "tokenizer.json", "model.safetensors"
_WEIGHT, _BIAS = "classifier.weight", "classifier.bias"
_MOST_BYTES = 4_000_000_000
_HINT = "python -m packager.zoo.fit_text makes such a folder of an encoder and labelled texts"


class EncoderConfig(msgspec.Struct, frozen=True):
    """The part of ``config.json`` that a BERT encoder needs. ``pathweave_*``: of a folder with a classifier."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int
    model_type: str = "bert"
    hidden_act: str = "gelu"
    position_embedding_type: str = "absolute"
    pathweave_classes: tuple[str, ...] = ()
    pathweave_max_tokens: int = 128

    def size(self) -> EncoderSize:
        """The sizes of the encoder.

        Raises:
            ModelLoadError: another architecture than BERT's with GELU and learnt positions.
        """
        if (self.model_type, self.hidden_act, self.position_embedding_type) != ("bert", "gelu", "absolute"):
            raise ModelLoadError(
                f"the encoder is a {self.model_type} with {self.hidden_act}, {self.position_embedding_type} positions",
                hint="BERT encoders with gelu and absolute positions are supported, such as MiniLM",
            )
        return EncoderSize(
            self.vocab_size,
            self.hidden_size,
            self.num_hidden_layers,
            self.num_attention_heads,
            self.intermediate_size,
            self.max_position_embeddings,
        )


@dataclass(frozen=True)
class TextFolder:
    """Contents of a folder, or a zip of one: configuration, tokenizer and weights by name."""

    config: EncoderConfig
    tokenizer: bytes
    weights: Mapping[str, Tensor]

    @classmethod
    def read(cls, path: Path) -> TextFolder:
        """The folder or zip at ``path``.

        Raises:
            ModelLoadError: a file is missing or not of its form.
            WeightsError: the weights cannot be read.
        """
        config, tokenizer, weights = (_read(path, name) for name in (CONFIG, TOKENIZER, WEIGHTS))
        try:
            described = msgspec.json.decode(config, type=EncoderConfig)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ModelLoadError(f"{path}: {CONFIG} describes no BERT encoder: {error}", hint=_HINT) from error
        try:
            tensors = load(weights)
        except Exception as error:  # the library raises its own kinds on damaged bytes
            raise WeightsError(f"{path}: {WEIGHTS} cannot be read", hint="download or save it again") from error
        bare = {name.removeprefix("bert."): value.float() for name, value in tensors.items()}
        return cls(described, tokenizer, bare)

    def classifier(self, classes: Sequence[str] | None = None, max_tokens: int | None = None) -> TextClassifier:
        """The network with the encoder's weights, and the classifier's where the folder has them.

        ``classes``: of a classifier that is to be fitted; default: the folder's.

        Raises:
            ModelLoadError: the folder has no classifier, or another architecture.
            WeightsError: weights are missing or have other shapes.
        """
        names = classes or self.config.pathweave_classes
        if len(names) < 2:
            raise ModelLoadError("the encoder has no classifier", hint=_HINT)
        module = TextClassifier(
            self.config.size(),
            classes=len(names),
            tokenizer=self.tokenizer,
            max_tokens=max_tokens or self.config.pathweave_max_tokens,
            class_names=names,
        )
        try:
            module.load_encoder(self.weights)
        except (KeyError, RuntimeError) as error:
            raise WeightsError(f"the weights are not those of the encoder: {str(error)[:200]}", hint=_HINT) from error
        if classes is None:
            with torch.no_grad():
                module.classifier.weight.copy_(self.weights[_WEIGHT])
                module.classifier.bias.copy_(self.weights[_BIAS])
        return module.eval()

    def with_classifier(self, module: TextClassifier) -> TextFolder:
        """The same with the classifier of ``module``."""
        fitted = {_WEIGHT: module.classifier.weight.detach(), _BIAS: module.classifier.bias.detach()}
        config = msgspec.structs.replace(
            self.config, pathweave_classes=module.class_names or (), pathweave_max_tokens=module.max_tokens
        )
        return TextFolder(config, self.tokenizer, {**self.weights, **fitted})

    def write(self, folder: Path) -> None:
        """Write the three files into ``folder`` (StorageError)."""
        weights = {name: value.contiguous() for name, value in self.weights.items()}
        write_atomically(folder / TOKENIZER, self.tokenizer)
        write_atomically(folder / WEIGHTS, save(weights))
        write_atomically(folder / CONFIG, msgspec.json.format(msgspec.json.encode(self.config)) + b"\n")


def _read(path: Path, name: str) -> bytes:
    try:
        if path.is_dir():
            return (path / name).read_bytes()
        with zipfile.ZipFile(path) as archive:
            if archive.getinfo(name).file_size > _MOST_BYTES:
                raise ModelLoadError(f"{path}: {name} has more than {_MOST_BYTES} bytes")
            return archive.read(name)
    except PathweaveError:
        raise
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise ModelLoadError(f"{path} has no readable {name}: {error}", hint=_HINT) from error
