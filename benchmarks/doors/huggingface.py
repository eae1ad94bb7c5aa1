"""Hugging Face: architectures of transformers, saved as folders, loaded as hf:FOLDER and cut into supernets.

``python -m benchmarks.doors.huggingface NAME`` checks one and prints its row; ``huggingface_rows`` checks all, each in
a process of its own. Weights are random and configurations small: the structure counts, and nothing is downloaded.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.generality.check import check_model
from benchmarks.generality.models import CLASSES, INPUTS, SIDE, with_images
from benchmarks.support.bundles import CHECKOUT
from packager.inputs.huggingface import PROCESSOR, Logits
from packager.inputs.model_loader import load_model
from packager.inputs.noise import noise
from packager.inputs.set_detector import cells_of_boxes
from packager.inputs.sound_extractor import FromSounds, SoundExtractor
from packager.inputs.text_input import FromRows, TokensFromRows, text_input

SECONDS = 180.0
QUICK = ("vit", "resnet", "mobilevit", "segformer for pixels")
_SAME = 1e-5  # largest difference between the folder's model and the one that was saved
_SQUARE = {"height": SIDE, "width": SIDE}
_RESIZED = {"shortest_edge": SIDE * 8 // 7}
_ATTENTION: Mapping[str, Any] = {
    "image_size": SIDE,
    "patch_size": 16,
    "hidden_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 3,
    "intermediate_size": 96,
}
_CONVOLUTIONS: Mapping[str, Any] = {"hidden_sizes": [16, 24, 32, 48], "depths": [2, 2, 3, 2]}
_PYRAMID: Mapping[str, Any] = {**_CONVOLUTIONS, "num_attention_heads": [1, 2, 4, 8]}
_CROPPED: Mapping[str, Any] = {"size": _RESIZED, "crop_size": _SQUARE}


@dataclass(frozen=True)
class Architecture:
    """Names of classes of transformers without their ends, and what is set in configuration and image processor."""

    model: str
    processor: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    images: Mapping[str, Any] = field(default_factory=lambda: {"size": _SQUARE})
    task: str = "ForImageClassification"


def _of_pixels(model: str, processor: str, config: Mapping[str, Any], images: Mapping[str, Any]) -> Architecture:
    return Architecture(model, processor, config, images, "ForSemanticSegmentation")


_WORDS = 200
_TOKENS = 32
_EXTRACTORS = {"AST": "ASTFeatureExtractor", "Wav2Vec2": "Wav2Vec2FeatureExtractor"}
_TOKENS_TASK, _BOXES_TASK = "ForTokenClassification", "ForObjectDetection"
_DETR: Mapping[str, Any] = {"layers": 2, "attention_heads": 2, "ffn_dim": 64}


def _of_texts(model: str, task: str = "ForSequenceClassification") -> Architecture:
    config = {"vocab_size": _WORDS, "max_position_embeddings": 2 * _TOKENS, "pad_token_id": 0}
    small = {**_ATTENTION, "dim": 48, "n_layers": 4, "n_heads": 3, "hidden_dim": 96, "embedding_size": 48}
    return Architecture(model, config={**small, **config}, task=task)


def _of_sounds(model: str, task: str, **config: Any) -> Architecture:
    """Its extractor has the settings of the same name."""
    return Architecture(model, config={**_ATTENTION, **config}, task=task)


ARCHITECTURES: Mapping[str, Architecture] = {
    "vit": Architecture("ViT", "ViT", _ATTENTION),
    "deit": Architecture("DeiT", "DeiT", _ATTENTION, _CROPPED),
    "dinov2": Architecture("Dinov2", "Bit", {**_ATTENTION, "patch_size": 8}, _CROPPED),
    "beit": Architecture("Beit", "Beit", {**_ATTENTION, "use_relative_position_bias": True}),
    "swin": Architecture(
        "Swin",
        "ViT",
        {"image_size": SIDE, "embed_dim": 24, "depths": [2, 2, 2], "num_heads": [2, 4, 8], "window_size": 4},
    ),
    "convnext": Architecture("ConvNext", "ConvNext", _CONVOLUTIONS, {"size": {"shortest_edge": SIDE}}),
    "convnextv2": Architecture("ConvNextV2", "ConvNext", _CONVOLUTIONS, {"size": {"shortest_edge": SIDE}}),
    "resnet": Architecture("ResNet", "ConvNext", _CONVOLUTIONS, {"size": {"shortest_edge": SIDE}}),
    "regnet": Architecture(
        "RegNet", "ConvNext", {**_CONVOLUTIONS, "groups_width": 8}, {"size": {"shortest_edge": SIDE}}
    ),
    "mobilenet_v2": Architecture("MobileNetV2", "MobileNetV2", {"depth_multiplier": 0.5}, _CROPPED),
    "efficientnet": Architecture(
        "EfficientNet",
        "EfficientNet",
        {"image_size": SIDE, "width_coefficient": 0.5, "depth_coefficient": 1.0, "hidden_dim": 640},
    ),
    "mobilevit": Architecture("MobileViT", "MobileViT", {"image_size": SIDE}, _CROPPED),
    "segformer": Architecture("Segformer", "Segformer", _PYRAMID),
    "pvt_v2": Architecture("PvtV2", "ViT", {**_PYRAMID, "image_size": SIDE, "mlp_ratios": [4, 4, 4, 4]}),
    "poolformer": Architecture(
        "PoolFormer", "PoolFormer", _CONVOLUTIONS, {"size": {"shortest_edge": SIDE}, "crop_size": _SQUARE}
    ),
    "levit": Architecture(
        "Levit",
        "Levit",
        {"image_size": SIDE, "hidden_sizes": [32, 48, 64], "num_attention_heads": [2, 3, 4], "depths": [2, 2, 2]},
        {"size": {"shortest_edge": SIDE}, "crop_size": _SQUARE},
    ),
    "segformer for pixels": _of_pixels(
        "Segformer", "Segformer", {**_PYRAMID, "decoder_hidden_size": 32}, {"size": _SQUARE}
    ),
    "mobilenet_v2 for pixels": _of_pixels("MobileNetV2", "MobileNetV2", {"depth_multiplier": 0.5}, _CROPPED),
    "mobilevit for pixels": _of_pixels("MobileViT", "MobileViT", {"image_size": SIDE}, _CROPPED),
    "bert for texts": _of_texts("Bert"),
    "distilbert for texts": _of_texts("DistilBert"),
    "roberta for texts": _of_texts("Roberta"),
    "electra for texts": _of_texts("Electra"),
    "bert for tokens": _of_texts("Bert", _TOKENS_TASK),
    "distilbert for tokens": _of_texts("DistilBert", _TOKENS_TASK),
    "electra for tokens": _of_texts("Electra", _TOKENS_TASK),
    "spectrogram transformer for sounds": _of_sounds("AST", "ForAudioClassification", max_length=96, num_mel_bins=32),
    "wav2vec2 for sounds": _of_sounds(
        "Wav2Vec2", "ForSequenceClassification", conv_dim=(32,) * 7, num_conv_pos_embedding_groups=4
    ),
    "yolos for boxes": Architecture(
        "Yolos",
        "Yolos",
        {**_ATTENTION, "image_size": [SIDE, SIDE], "num_detection_tokens": 30},
        {"size": _SQUARE, "do_pad": False},
        _BOXES_TASK,
    ),
    "detr for boxes": Architecture(
        "Detr",
        "Detr",
        {
            "use_timm_backbone": False,
            "use_pretrained_backbone": False,
            "backbone_config": {"model_type": "resnet", **_CONVOLUTIONS, "out_features": ["stage4"]},
            "d_model": 32,
            **{f"{part}_{name}": value for part in ("encoder", "decoder") for name, value in _DETR.items()},
            "num_queries": 30,
        },
        {"size": _SQUARE, "do_pad": False},
        _BOXES_TASK,
    ),
}


def huggingface_rows(names: Sequence[str] = tuple(ARCHITECTURES)) -> list[dict[str, object]]:
    """A row for each architecture: ``passed``, the figures of ``check_model``, or ``failure``, a line."""
    return [_row(name) for name in names]


def huggingface_share(rows: Sequence[Mapping[str, object]]) -> float:
    """The share of the rows that passed."""
    return sum(bool(row["passed"]) for row in rows) / len(rows)


def check(name: str) -> dict[str, object]:
    """Save the architecture as a folder, load it through the door, compare, and check subnets of it."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / name.replace(" ", "-")
        saved, inputs = write_folder(ARCHITECTURES[name], folder)
        shape = tuple(inputs.shape[1:])
        loaded = load_model(f"hf:{folder}", input_shape=None if len(shape) == 3 else shape)
    with torch.no_grad():
        expected, found = saved(inputs[:4]), loaded.module(inputs[:4])
    difference = float((found - expected).abs().max() / expected.abs().max())
    row = check_model(name, loaded.module, inputs)
    row |= {"difference": difference, "preprocessing": str(loaded.preprocessing), "remarks": list(loaded.notes)}
    row["passed"] = bool(row["passed"]) and difference <= _SAME and loaded.input_shape == shape
    return row


def write_folder(architecture: Architecture, folder: Path) -> tuple[nn.Module, torch.Tensor]:
    """Write model and processor or tokenizer to ``folder``; the model, whose answers depend on all weights, and inputs.

    Inputs: images, texts of random tokens and lengths as rows, or noise.
    """
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{architecture.model}Config")(num_labels=CLASSES, **architecture.config)
    model = getattr(transformers, architecture.model + architecture.task)(config)
    if architecture.model in _EXTRACTORS:
        model.save_pretrained(folder)
        settings = {name: one for name, one in architecture.config.items() if name in ("max_length", "num_mel_bins")}
        getattr(transformers, _EXTRACTORS[architecture.model])(**settings).save_pretrained(folder)
        extracted = SoundExtractor.of(json.loads((folder / PROCESSOR).read_bytes()), None, architecture.model)
        shape = (1, extracted.preprocessing.window_samples)
        sounds = noise(extracted.preprocessing, shape, {}, count=INPUTS, seed=0)
        return FromSounds(model.eval(), extracted.front).eval(), sounds
    if not architecture.processor:
        model.save_pretrained(folder)
        preprocessing, blobs = text_input(_tokenizer(), max_tokens=_TOKENS)
        (folder / "tokenizer.json").write_bytes(blobs[preprocessing.tokenizer])
        texts = noise(preprocessing, (preprocessing.rows, _TOKENS), blobs, count=INPUTS, seed=0)
        wrapper = TokensFromRows if architecture.task == _TOKENS_TASK else FromRows
        return wrapper(model.eval()), texts
    processor = getattr(transformers, f"{architecture.processor}ImageProcessor")(**architecture.images)
    flips = bool(processor.to_dict().get("do_flip_channel_order"))
    boxes = architecture.task == _BOXES_TASK
    wrapped = cells_of_boxes(model, (SIDE, SIDE)) if boxes else Logits(model, reversed_channels=flips)
    whole, images = with_images(wrapped, SIDE)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return whole, images


def _tokenizer() -> bytes:
    """A tokenizer.json of as many words as the models know."""
    from tokenizers import Tokenizer, models

    words = {name: at for at, name in enumerate(("[PAD]", "[UNK]", *(f"w{number}" for number in range(2, _WORDS))))}
    return str(Tokenizer(models.WordLevel(words, unk_token="[UNK]")).to_str()).encode()


def _row(name: str) -> dict[str, object]:
    command = [sys.executable, "-m", "benchmarks.doors.huggingface", name]
    try:
        done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=2 * SECONDS)
    except subprocess.TimeoutExpired:
        return {"model": name, "passed": False, "failure": f"took more than {2 * SECONDS:.0f} s"}
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    if done.returncode or not lines:
        last = [line for line in done.stderr.splitlines() if line.strip()] or ["it died"]
        return {"model": name, "passed": False, "failure": last[-1][:300]}
    row: dict[str, object] = json.loads(lines[-1])
    return row


if __name__ == "__main__":
    print(json.dumps(check(sys.argv[1])))
